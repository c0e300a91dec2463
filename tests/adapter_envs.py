"""Factories as users write them; each returns another library's environments."""

from __future__ import annotations

from typing import Any

import gymnasium


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
