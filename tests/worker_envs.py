"""Environments in processes of their own, as Gymnasium makes them; named as ``worker_envs:<factory>``."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium
import numpy as np


class Drawn(gymnasium.Env[Any, Any]):
    """Observation and action of one number; ``hang_at``: the step that does not return."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, hang_at: int = 0) -> None:
        self.hang_at, self.steps = hang_at, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == self.hang_at:
            threading.Event().wait()
        return self._observe(), float(action[0]), False, self.steps % 10 == 0, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)


def workers(num_envs: int, hang_at: int = 0) -> gymnasium.vector.AsyncVectorEnv:
    """One process for each environment."""
    return gymnasium.vector.AsyncVectorEnv([lambda: Drawn(hang_at)] * num_envs, context="fork")
