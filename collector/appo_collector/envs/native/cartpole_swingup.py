"""``mujoco:cartpole-swingup``: push a cart so that its hanging pole swings up and stays up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from appo_collector.envs.contract import Observations
from appo_collector.envs.native.mujoco_task import MujocoTask, Rows, columns, load_asset
from appo_collector.envs.native.options import TaskOptions, option, read_options

SOLVED_RETURN = 180.0
"""Mean return of an episode of the default length (250 steps) that counts as solved.

A step with the pole upright, in the middle and at rest gives 1. Swinging up takes about 1.5 s, so the best
return seen is about 215; 180 needs a pole that was up and at rest for more than 7 of the 10 s.
A cart at rest below its pole earns 0, a pole that whirls round less than 100.
"""
_HANGING = np.array([0.0, np.pi])


@dataclass(frozen=True)
class CartpoleOptions(TaskOptions):
    """Options of ``mujoco:cartpole-swingup``."""

    episode_seconds: float = option(10.0, low=1e-3)
    """Simulated seconds of an episode; an environment step is 0.04 s."""
    reset_noise: float = option(0.1, high=3.0)
    """Standard deviation of the pole's angle (rad), and of the cart's position (m), at the start."""


class CartpoleSwingup(MujocoTask):
    """Observation group ``policy`` [5]: cart position / 1.8 m, sine and cosine of the pole's angle (0 is up),
    cart velocity / 2 m/s, pole velocity / 5 rad/s. Action [1]: force on the cart, ±1 is ±12 N.
    """

    def __init__(self, num_envs: int, *, threads: int = 1, **overrides: Any) -> None:
        """Make the task; ``overrides`` are the fields of :class:`CartpoleOptions`. Raises ConfigError."""
        self.options = read_options(CartpoleOptions, overrides)
        super().__init__(
            load_asset("cartpole.xml"),
            name="mujoco:cartpole-swingup",
            num_envs=num_envs,
            threads=threads,
            frame_skip=4,
            observations={"policy": 5},
            reward_terms=("upright", "calm", "centred", "gentle"),
            options=self.options,
        )

    def _start(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        noise = rng.normal(scale=self.options.reset_noise, size=(rows.size, 2))
        noise[:, 0] = np.clip(noise[:, 0], -1.0, 1.0)
        self.qpos[rows] = noise + _HANGING

    def _control(self, actions: np.ndarray) -> np.ndarray:
        return np.clip(actions, -1.0, 1.0)

    def _rewards(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        """Scale every term by how upright and how slow the pole is: neither hanging nor whirling pays."""
        position, angle = self.qpos.T
        spin = self.qvel[:, 1]
        upright = 0.5 + 0.5 * np.cos(angle)
        calm = upright * np.exp(-((spin / 3.0) ** 2))
        return {
            "upright": 0.3 * upright * np.exp(-((spin / 6.0) ** 2)),
            "calm": 0.4 * calm,
            "centred": 0.2 * calm * np.exp(-((position / 0.8) ** 2)),
            "gentle": 0.1 * calm * (1.0 - np.clip(actions[:, 0], -1.0, 1.0) ** 2),
        }

    def _terminated(self) -> np.ndarray:
        # The rail's ends stop the cart; only time ends an episode.
        return np.zeros(self.spec.num_envs, dtype=bool)

    def _observe(self, rows: Rows, rng: np.random.Generator) -> Observations:
        position, angle = self.qpos[rows].T
        velocity = self.qvel[rows] / (2.0, 5.0)
        return {"policy": columns(position / 1.8, np.sin(angle), np.cos(angle), velocity)}
