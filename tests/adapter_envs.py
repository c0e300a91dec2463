"""Factories as users write them; each returns another library's environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


def single(render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """One environment, whose actions are bounded by ±2."""
    return gymnasium.make("Pendulum-v1", render_mode=render_mode, max_episode_steps=20)


def vector(num_envs: int, mode: str) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Several in one process, in the autoreset mode asked for."""
    makers = [lambda: gymnasium.make("CartPole-v1")] * num_envs
    return gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=gymnasium.vector.AutoresetMode[mode])


def whole(num_envs: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Gymnasium's own batched CartPole: NEXT_STEP, and it cannot be reset in part."""
    return gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point")


class Picture(gymnasium.Env[np.ndarray, np.ndarray]):
    """A dot in a picture of 12 x 12; the action is two choices, of three and of two. Episodes have 10 steps."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (12, 12, 1), np.uint8)
        self.action_space = gymnasium.spaces.MultiDiscrete([3, 2], start=[-1, 5])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._drawn(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._steps += 1
        return self._drawn(), float(action[0]), False, self._steps == 10, {}

    def _drawn(self) -> np.ndarray:
        picture = np.zeros((12, 12, 1), np.uint8)
        picture[self.np_random.integers(12), self.np_random.integers(12)] = 255
        return picture
