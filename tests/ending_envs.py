"""Environments that are particular about an end: of an episode, or their own. Found as ``ending_envs:<class>``."""

from __future__ import annotations

import threading

import numpy as np
from broken_envs import Good

from appo_collector.envs.contract import Observations, Step


class LapTrack(Good):
    """As good: every episode ends in the very state in which the next one starts."""

    def begin(self, rows: np.ndarray) -> None:
        self.age[rows] = 0

    def noise(self, size: int, scale: float) -> np.ndarray:
        return np.zeros(size)

    def observe(self) -> Observations:
        turn = 0.2 * np.pi * (self.age % 10)
        policy = np.stack([np.sin(turn), np.cos(turn), self.x * 0], axis=1)
        return super().observe() | {"policy": policy.astype(np.float32)}


class NextStep(Good):
    """As good: the step after an end only resets."""

    spec_changes = {"skips_steps": True}  # noqa: RUF012

    def reset(self, seed: int) -> Observations:
        self.due = np.zeros(self.count, dtype=bool)
        return super().reset(seed)

    def step(self, actions: np.ndarray) -> Step:
        self.steps += 1
        goes = ~self.due
        self.x += goes * (0.1 * np.tanh(actions[:, 0]) + self.noise(self.count, 0.2))
        self.age += goes
        self.begin(np.flatnonzero(self.due))
        near, alive = (goes * np.exp(-(self.x**2))).astype(np.float32), (0.5 * goes).astype(np.float32)
        terminated, truncated = goes & (np.abs(self.x) > 0.6), goes & (self.age >= self.limit)
        self.due = terminated | truncated
        obs = self.observe()
        final_obs = {name: group[self.due] for name, group in obs.items()}
        info = {"terms": {"near": near, "alive": alive}}
        return self.told(Step(obs, near + alive, terminated, truncated, final_obs, info, goes))


class NextStepUnmarked(NextStep):
    spec_changes = {"skips_steps": True, "episode_limit": None}  # noqa: RUF012

    def told(self, step: Step) -> Step:
        return step._replace(valid=np.ones(self.count, dtype=bool))


class NextStepOtherFinal(NextStep):
    def told(self, step: Step) -> Step:
        step.final_obs["policy"] += 1.0
        return step


class NextStepNotReset(NextStep):
    spec_changes = {"skips_steps": True, "episode_limit": None}  # noqa: RUF012

    def begin(self, rows: np.ndarray) -> None:
        if self.steps == 0:
            super().begin(rows)


class NextStepLap(LapTrack, NextStep):
    """As good: ends where it starts."""


class CloseRaises(Good):
    def close(self) -> None:
        raise RuntimeError("the window\nis gone")


class CloseHangs(Good):
    def close(self) -> None:
        threading.Event().wait()
