"""The twins with four legs: Ant-v4, which knows nothing of contact forces, and Ant-v5, which observes them and pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from appo_collector.envs.native.backend import best_physics
from appo_collector.envs.native.mujoco_task import Rows
from appo_collector.envs.native.options import option
from appo_collector.envs.native.physics_rollout import RolloutPhysics
from appo_collector.envs.native.twins.runners import Legged, LeggedOptions
from appo_collector.envs.native.twins.twin import limits, weight


@dataclass(frozen=True)
class AntV5Options(LeggedOptions):
    """Options of Ant-v5."""

    contact_cost_weight: float = weight(5e-4)
    """Cost of a sum of squared contact forces of 1."""
    contact_force_range: tuple[float, float] = limits(-1.0, 1.0)
    """Where contact forces (N, N m) are clipped."""
    include_cfrc_ext_in_observation: bool = option(True)
    """Observe the contact forces."""


class AntV4(Legged):
    """Action [8]: torques of the joints. Observation [27]: positions but the first two, velocities."""

    options_type = LeggedOptions
    id = "Ant-v4"
    scene = "ant.xml"
    normal_noise = True
    hidden = 2

    def __init__(self, num_envs: int, *, threads: int = 1, **overrides: Any) -> None:
        """Make the task; see :class:`Twin`."""
        super().__init__(num_envs, threads=threads, **overrides)
        self._torso = self.data_field("xpos")[:, self.model.body("torso").id]

    def _place(self) -> np.ndarray:
        return self._torso[:, 0]

    def _healthy(self) -> np.ndarray:
        height, (low, high) = self.qpos[:, 2], self.options.healthy_z_range
        return (low <= height) & (height <= high)

    def _survive(self) -> np.ndarray:
        # Unlike in the v5 environments, the last step of a fall is paid for too.
        return (self._is_healthy | self.options.terminate_when_unhealthy) * self.options.healthy_reward


class AntV5(AntV4):
    """As Ant-v4, and observes [105] with the contact forces on every body but the world, torques first."""

    options_type = AntV5Options
    options: AntV5Options
    id = "Ant-v5"
    terms = ("forward", "survive", "ctrl", "contact")

    def __init__(self, num_envs: int, *, threads: int = 1, **overrides: Any) -> None:
        """Make the task; see :class:`Twin`."""
        if best_physics() is not RolloutPhysics:  # else there is no mujoco.batch, and the base class says so
            from appo_collector.envs.native.twins.contact_physics import ContactPhysics

            self.physics = ContactPhysics
        super().__init__(num_envs, threads=threads, **overrides)
        self._forces = np.zeros((num_envs, 6 * self.model.nbody))  # as clipped; [N, 6 for each body]

    def _size(self, model: mujoco.MjModel) -> int:
        contacts = 6 * (model.nbody - 1) if self.options.include_cfrc_ext_in_observation else 0
        return super()._size(model) + contacts

    def _parts(self, rows: Rows) -> Sequence[np.ndarray]:
        state = super()._parts(rows)
        return (*state, self._forces[rows, 6:]) if self.options.include_cfrc_ext_in_observation else state

    def _start(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        super()._start(rows, rng)
        self._forces[rows] = np.clip(0.0, *self.options.contact_force_range)  # none are known before the first step

    def _survive(self) -> np.ndarray:
        return self._is_healthy * self.options.healthy_reward

    def _rewards(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        forces: np.ndarray = self._physics.contact_forces()  # type: ignore[attr-defined]
        np.clip(forces.reshape(self._forces.shape), *self.options.contact_force_range, out=self._forces)
        cost = self.options.contact_cost_weight * np.square(self._forces).sum(axis=1)
        return {**super()._rewards(actions), "contact": -cost}
