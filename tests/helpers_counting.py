"""Environments that count, in every shape the adapters know, and what a rollout of them must hold.

An observation is ``[steps of this episode, episodes before it]``, a reward is worked out from the same two numbers,
and :data:`SCRIPT` says at which step each environment's episodes end.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from helpers_collector import KINDS
from helpers_unit import TRAIN

from appo_collector.envs.contract import Observations, Step, VectorEnv
from appo_collector.policy import Policy
from appo_collector.rollout import RolloutLoop
from appo_common.layout import rollout_layout
from appo_common.messages import Episodes
from appo_common.spec import EnvSpec

STEPS = 6
"""Of one rollout; the script covers two."""
SCRIPT = (
    "...T.UU..T..",  # a time-out in the last step of a rollout, and another in the first step of the next
    "T..B....U...",  # one step long; terminated and truncated at once; across two rollouts
    ".....T.UBU..",  # terminated in the last step of a rollout; one step long, cut short both ways, and by time alone
)
"""One letter of ``KINDS`` per real step of an environment; after the last one it goes on for ever."""
GROUPS = {"actor": ["policy"], "critic": ["policy"]}


def observation(episode: int, age: int) -> list[float]:
    return [age, episode]


def reward(env: int, episode: int, age: int) -> float:
    return 100.0 * (env + 1) + 10.0 * episode + age


class Counter:
    """One counting environment: plain numbers, no library's interface. Its caller resets it after an end."""

    def __init__(self, env: int, script: str) -> None:
        self.env, self._script = env, script
        self.restart()

    def restart(self) -> None:
        """Begin the script anew, before its first episode."""
        self._step, self._episode, self._age = 0, -1, 0

    def reset(self) -> list[float]:
        self._episode, self._age = self._episode + 1, 0
        return observation(self._episode, 0)

    def step(self) -> tuple[list[float], float, bool, bool]:
        """Return observation, reward, terminated and truncated."""
        kind = self._script[self._step] if self._step < len(self._script) else "."
        earned = reward(self.env, self._episode, self._age)
        self._step, self._age = self._step + 1, self._age + 1
        return observation(self._episode, self._age), earned, *KINDS[kind]


def counters(script: tuple[str, ...] = SCRIPT) -> list[Counter]:
    return [Counter(env, line) for env, line in enumerate(script)]


class CountingGym(gymnasium.Env[Any, Any]):
    """A Gymnasium environment. ``in_place``: it returns the same array for ever; ``as_dict``: a Dict of one key."""

    def __init__(self, env: int, script: str, in_place: bool = False, as_dict: bool = False) -> None:
        box = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.observation_space = gymnasium.spaces.Dict({"policy": box}) if as_dict else box
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
        self._counter = Counter(env, script)
        self._array = np.zeros(2)
        self._in_place = in_place
        self._as_dict = as_dict

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._counter.restart()
        return self._show(self._counter.reset()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, earned, terminated, truncated = self._counter.step()
        return self._show(seen), earned, terminated, truncated, {"noise": 1.0}

    def _show(self, seen: list[float]) -> Any:
        if not self._in_place:
            self._array = np.zeros(2)
        self._array[:] = seen
        return {"policy": self._array} if self._as_dict else self._array


class CountingVector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector environment of its own kind, as a simulator on a GPU has one: it reuses its array of observations.

    NEXT_STEP resets only by itself; DISABLED only with ``reset_mask``.
    """

    def __init__(self, mode: Any, script: tuple[str, ...] = SCRIPT) -> None:
        self.num_envs = len(script)
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
        self._counters = counters(script)
        self._obs = np.zeros((self.num_envs, 2), dtype=np.float32)
        self._ended = np.zeros(self.num_envs, dtype=bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        assert seed is None or isinstance(seed, int), "one seed for all of them"
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=bool))
        assert mask.all() or self.metadata["autoreset_mode"] == AutoresetMode.DISABLED
        for counter in self._counters if seed is not None else []:
            counter.restart()
        for env in np.flatnonzero(mask):
            self._obs[env] = self._counters[env].reset()
        self._ended[mask] = False
        return self._obs, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        mode, resets, infos = self.metadata["autoreset_mode"], self._ended.copy(), {}
        rewards, terminated, truncated = (np.zeros(self.num_envs, dtype=kind) for kind in ("f8", bool, bool))
        for env, counter in enumerate(self._counters):
            if resets[env]:
                assert mode == AutoresetMode.NEXT_STEP, "an ended environment was stepped"
                self._obs[env] = counter.reset()
            else:
                self._obs[env], rewards[env], terminated[env], truncated[env] = counter.step()
        self._ended = terminated | truncated
        if mode == AutoresetMode.SAME_STEP and self._ended.any():
            infos = {"final_obs": self._obs.copy(), "_final_obs": self._ended.copy()}
            for env in np.flatnonzero(self._ended):
                self._obs[env] = self._counters[env].reset()
            self._ended[:] = False
        return self._obs, rewards, terminated, truncated, infos


class CountingContract(VectorEnv):
    """Our own contract."""

    def __init__(self, script: tuple[str, ...] = SCRIPT) -> None:
        self.spec = EnvSpec.model_validate(
            {"name": "counting", "observations": {"policy": {"shape": [2]}}, "num_actions": 1, "num_envs": len(script)}
        )
        self._counters = counters(script)

    def reset(self, seed: int) -> Observations:
        for counter in self._counters:
            counter.restart()
        return {"policy": np.array([counter.reset() for counter in self._counters], dtype=np.float32)}

    def step(self, actions: np.ndarray) -> Step:
        seen, earned, terminated, truncated = (
            np.array(column) for column in zip(*[counter.step() for counter in self._counters], strict=True)
        )
        obs = seen.astype(np.float32)
        ended = np.flatnonzero(terminated | truncated)
        final = {"policy": obs[ended]}
        for env in ended:
            obs[env] = self._counters[env].reset()
        return Step({"policy": obs}, earned.astype(np.float32), terminated, truncated, final, {})


class OneSlot:
    """A session without a learner: the same slot again and again, always with credit."""

    def __init__(self, spec: EnvSpec, num_steps: int = STEPS) -> None:
        self.layout = rollout_layout(spec, num_steps, GROUPS)
        self.weights = SimpleNamespace(version=0)
        self.env_steps = 0
        self.final_count = 0
        self.episodes = Episodes(returns=[], lengths=[], timeouts=[], terms={})
        self._block = bytearray(self.layout.nbytes)

    def next_slot(self) -> tuple[int, None]:
        return 0, None

    def views(self, slot: int) -> dict[str, np.ndarray]:
        return self.layout.views(self._block)

    def service(self) -> None:
        """There is nobody to hear."""

    def send(self, slot: int, version: int, final_count: int, episodes: Episodes, timers_ms: dict[str, float]) -> None:
        self.final_count, self.episodes = final_count, episodes


def rollouts(env: VectorEnv, number: int = 2, num_steps: int = STEPS) -> list[dict[str, Any]]:
    """Collect with the collector's own loop; return each rollout's fields and episodes as lists, rows in use only."""
    session: Any = OneSlot(env.spec, num_steps)
    loop = RolloutLoop(session, env, Policy(env.spec, GROUPS, TRAIN["actor"]), num_steps, seed=1)
    collected = []
    for _ in range(number):
        loop.collect_one()
        fields = {
            name: view[: session.final_count if name.startswith("final_") else None].tolist()
            for name, view in session.views(0).items()
            if name not in ("actions", "log_probs")
        }
        episodes = session.episodes
        fields["episodes"] = list(zip(episodes.returns, episodes.lengths, episodes.timeouts, strict=True))
        collected.append(fields)
    return collected
