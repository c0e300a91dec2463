"""Twins that keep poles upright on a cart: InvertedPendulum and InvertedDoublePendulum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from appo_collector.envs.native.mujoco_task import Rows
from appo_collector.envs.native.options import option
from appo_collector.envs.native.twins.twin import Twin, TwinOptions, weight


@dataclass(frozen=True)
class PendulumOptions(TwinOptions):
    """Options of InvertedPendulum."""

    frame_skip: int = option(2, low=1)
    reset_noise_scale: float = option(0.01)
    """Bounds of the noise in the first positions and velocities."""


@dataclass(frozen=True)
class DoublePendulumOptions(TwinOptions):
    """Options of InvertedDoublePendulum."""

    reset_noise_scale: float = option(0.1)
    """Bounds of the noise in the first positions, standard deviation of that in the velocities."""
    healthy_reward: float = weight(10.0)
    """Reward of every step after which the poles stand."""


class InvertedPendulum(Twin):
    """Action [1]: force on the cart, ±3. Observation [4]: place of the cart, angle of the pole, their velocities."""

    options_type = PendulumOptions
    options: PendulumOptions
    id = "InvertedPendulum-v5"
    scene = "inverted_pendulum.xml"
    terms = ("survive",)

    def _size(self, model: mujoco.MjModel) -> int:
        return 4

    def _parts(self, rows: Rows) -> Sequence[np.ndarray]:
        return self.qpos[rows], self.qvel[rows]

    def _start(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        self._disturb(rows, rng, self.options.reset_noise_scale)

    def _terminated(self) -> np.ndarray:
        return np.abs(self.qpos[:, 1]) > 0.2

    def _rewards(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        return {"survive": 1.0 - self._terminated()}


class InvertedDoublePendulum(Twin):
    """Action [1]: force on the cart. Observation [9]: place of the cart, sines and cosines of the poles' angles,
    velocities (clipped to ±10), force on the cart by the rail's ends (clipped to ±10).
    """

    options_type = DoublePendulumOptions
    options: DoublePendulumOptions
    id = "InvertedDoublePendulum-v5"
    scene = "inverted_double_pendulum.xml"
    terms = ("survive", "distance_penalty", "velocity_penalty")
    normal_noise = True

    def __init__(self, num_envs: int, *, threads: int = 1, **overrides: Any) -> None:
        """Make the task; see :class:`Twin`."""
        super().__init__(num_envs, threads=threads, **overrides)
        self._tip = self.data_field("site_xpos")[:, 0]
        self._constraint_force = self.data_field("qfrc_constraint")

    def _size(self, model: mujoco.MjModel) -> int:
        return 9

    def _parts(self, rows: Rows) -> Sequence[np.ndarray]:
        place, angles = self.qpos[rows, :1], self.qpos[rows, 1:]
        velocities, force = self.qvel[rows], self._constraint_force[rows, :1]
        return place, np.sin(angles), np.cos(angles), np.clip(velocities, -10, 10), np.clip(force, -10, 10)

    def _start(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        self._disturb(rows, rng, self.options.reset_noise_scale)

    def _terminated(self) -> np.ndarray:
        return self._tip[:, 2] <= 1

    def _rewards(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        x, height = self._tip[:, 0], self._tip[:, 2]
        return {
            "survive": self.options.healthy_reward * ~self._terminated(),
            "distance_penalty": -(0.01 * x**2 + (height - 2) ** 2),
            "velocity_penalty": -(1e-3 * self.qvel[:, 1] ** 2 + 5e-3 * self.qvel[:, 2] ** 2),
        }
