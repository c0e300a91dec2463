"""The hot loop: newest weights, T steps of actor and environment straight into a slot, send, wait for credit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from appo_collector.envs.contract import Observations, Step, VectorEnv
from appo_collector.envs.guard import Guard
from appo_collector.envs.watchdog import Watchdog
from appo_collector.episodes import EpisodeTracker
from appo_collector.policy import Policy
from appo_collector.session import Session
from appo_common.errors import EnvironmentFault
from appo_common.layout import env_steps

Views = dict[str, np.ndarray]


class Timers:
    """Sums of seconds by name, since the last reading."""

    def __init__(self) -> None:
        """Start at zero."""
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Add the time spent inside the ``with`` to ``name``."""
        start = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def read_ms(self, num_steps: int) -> dict[str, float]:
        """Return milliseconds: ``infer`` and ``env_step`` per step, ``send`` and ``credit_wait`` per rollout."""
        per_step = ("infer", "env_step")
        result = {
            name: 1000 * seconds / (num_steps if name in per_step else 1) for name, seconds in self._seconds.items()
        }
        self._seconds.clear()
        return result


class RolloutLoop:
    """Fills slots with rollouts for as long as the session lasts. Every rollout is made by one policy version."""

    def __init__(
        self,
        session: Session,
        env: VectorEnv,
        policy: Policy,
        num_steps: int,
        seed: int,
        watchdog: Watchdog | None = None,
    ) -> None:
        """Reset the environments with ``seed`` and start their episodes."""
        self._session = session
        self._env = Guard(env, watchdog)
        self._policy = policy
        self._num_steps = num_steps
        self._obs, ages = self._env.reset(seed)
        self._episodes = EpisodeTracker(env.spec.num_envs, env.spec.reward_terms, ages)
        self._timers = Timers()

    def run(self) -> None:
        """Collect until the session ends by one of its exceptions."""
        while True:
            self.collect_one()

    def collect_one(self) -> None:
        """Make one rollout and send it."""
        session, timers = self._session, self._timers
        with timers("credit_wait"):
            slot, newer_weights = session.next_slot()
            views = session.views(slot)
        if newer_weights is not None:
            self._policy.load(newer_weights)
        final_count = 0
        for step in range(self._num_steps):
            with timers("infer"):
                actions, log_probs = self._policy.act(self._obs)
            _write_decision(views, step, self._obs, actions, log_probs)
            with timers("env_step"):
                result = self._env.step(actions)
            final_count = self._write_outcome(views, step, result, final_count)
            self._episodes.step(result)
            self._obs = result.obs
            session.service()
        _write_last(views, self._obs)
        session.env_steps += env_steps(views)
        with timers("send"):
            timers_ms = timers.read_ms(self._num_steps)
            session.send(slot, session.weights.version, final_count, self._episodes.drain(), timers_ms)

    def _write_outcome(self, views: Views, step: int, result: Step, final_count: int) -> int:
        """Write what the environment returned; return the rows of ``final_obs`` in use."""
        np.copyto(views["rewards"][step], result.reward)
        np.copyto(views["terminated"][step], result.terminated)
        np.copyto(views["truncated"][step], result.truncated)
        if "valid" in views and result.valid is not None:
            np.copyto(views["valid"][step], result.valid)
        cut_short = result.truncated & ~result.terminated
        if not cut_short.any():
            return final_count
        # final_obs has a row for every environment that ended; the learner needs those that were cut short.
        ended = np.flatnonzero(result.terminated | result.truncated)
        rows = np.flatnonzero(cut_short[ended])
        stop = final_count + rows.size
        if stop > len(views["final_index"]):
            raise EnvironmentFault(
                f"{self._env.spec.name}: more episodes were truncated in one rollout than its "
                f"episode_limit = {self._env.spec.episode_limit} allows; correct the limit in its spec, or use None"
            )
        views["final_index"][final_count:stop, 0] = step
        views["final_index"][final_count:stop, 1] = ended[rows]
        for name in _groups(views, "final_obs/"):
            views[f"final_obs/{name}"][final_count:stop] = result.final_obs[name][rows]
        return stop


def _write_decision(views: Views, step: int, obs: Observations, actions: np.ndarray, log_probs: np.ndarray) -> None:
    for name in _groups(views, "obs/"):
        np.copyto(views[f"obs/{name}"][step], obs[name])
    np.copyto(views["actions"][step], actions)
    np.copyto(views["log_probs"][step], log_probs)


def _write_last(views: Views, obs: Observations) -> None:
    for name in _groups(views, "last_obs/"):
        np.copyto(views[f"last_obs/{name}"], obs[name])


def _groups(views: Views, prefix: str) -> list[str]:
    return [name.removeprefix(prefix) for name in views if name.startswith(prefix)]
