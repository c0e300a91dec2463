"""Small environments of the end-to-end tests. Collectors find them as ``e2e_envs:<factory>``."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np

from appo_collector.envs.contract import Observations, Step, VectorEnv
from appo_common.spec import EnvSpec, ObservationGroup


class Drift(VectorEnv):
    """A point that noise and the action push about. It falls beyond ``reach``; ``limit`` steps end its episode.

    ``log``: a directory; every episode that ends adds a line there, with the sum of its rewards as this class
    has added them up. ``progress``: a file that holds the number of steps so far. ``fail_at``: the step that
    raises. ``huge_at``: the step whose rewards are so large that their sum overflows. ``step_s``, ``reset_s``: how
    long a step, and a reset, takes.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        threads: int = 1,
        width: int = 3,
        limit: int = 10,
        reach: float = 0.6,
        log: str | None = None,
        progress: str | None = None,
        fail_at: int | None = None,
        huge_at: int | None = None,
        reset_s: float = 0.0,
        step_s: float = 0.0,
    ) -> None:
        self.spec = EnvSpec(
            name="e2e_envs:Drift",
            observations={"policy": ObservationGroup(shape=[width])},
            num_actions=1,
            num_envs=num_envs,
            episode_limit=limit,
            step_dt=0.02,
            reward_terms=["near", "alive"],
        )
        self._limit, self._reach, self._fail_at, self._step_s = limit, reach, fail_at, step_s
        self._log = Path(log) / f"{os.getpid()}.jsonl" if log else None
        self._progress = os.open(progress, os.O_RDWR | os.O_CREAT) if progress else None
        self._huge_at, self._reset_s = huge_at, reset_s
        self._steps = 0

    def reset(self, seed: int) -> Observations:
        threading.Event().wait(self._reset_s)
        self._rng = np.random.default_rng(seed)
        self._x = self._rng.normal(0.0, 0.1, self.spec.num_envs)
        self._age = np.zeros(self.spec.num_envs, dtype=np.int64)
        self._sums = [0.0] * self.spec.num_envs
        return self._observe()

    def step(self, actions: np.ndarray) -> Step:
        self._steps += 1
        if self._steps == self._fail_at:
            raise RuntimeError("the gripper is on fire")
        if self._step_s:
            threading.Event().wait(self._step_s)
        self._x += 0.1 * np.tanh(actions[:, 0]) + self._rng.normal(0.0, 0.2, self._x.size)
        self._age += 1
        near = (10.0 * np.exp(-(self._x**2))).astype(np.float32)
        alive = np.full_like(near, 0.5)
        reward = near + alive
        if self._steps == self._huge_at:
            near[:] = reward[:] = 3e38
        terminated = np.abs(self._x) > self._reach
        truncated = self._age >= self._limit
        obs = self._observe()
        ended = np.flatnonzero(terminated | truncated)
        final_obs = {"policy": obs["policy"][ended]}
        self._note(reward, terminated, ended)
        if ended.size:
            self._x[ended] = self._rng.normal(0.0, 0.1, ended.size)
            self._age[ended] = 0
            obs = self._observe()
        if self._progress is not None:
            os.pwrite(self._progress, b"%d\n" % self._steps, 0)
        return Step(obs, reward, terminated, truncated, final_obs, {"terms": {"near": near, "alive": alive}})

    def _observe(self) -> Observations:
        width = self.spec.observations["policy"].shape[0]
        obs = np.zeros((self.spec.num_envs, width), dtype=np.float32)
        obs[:, 0], obs[:, 1] = self._x, np.sin(self._age)
        return {"policy": obs}

    def _note(self, reward: np.ndarray, terminated: np.ndarray, ended: np.ndarray) -> None:
        for env, value in enumerate(reward):
            self._sums[env] += float(value)
        lines = []
        for env in ended:
            episode = {
                "step": self._steps,
                "return": self._sums[env],
                "length": int(self._age[env]),
                "timeout": not terminated[env],
            }
            lines.append(json.dumps(episode) + "\n")
            self._sums[env] = 0.0
        if self._log and lines:
            with self._log.open("a") as file:
                file.writelines(lines)


def drift_of_this_host(num_envs: int, **options: Any) -> Drift:
    """A factory whose observations depend on the host: the variable E2E_WIDTH says how wide they are."""
    return Drift(num_envs, width=int(os.environ.get("E2E_WIDTH", "3")), **options)


def killed_when_made(num_envs: int, **options: Any) -> Drift:
    """A factory that the kernel ends, as it does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return Drift(num_envs, **options)
