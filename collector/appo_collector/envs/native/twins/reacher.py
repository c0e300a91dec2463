"""The twin whose arm touches a target: Reacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from appo_collector.envs.native.mujoco_task import Rows
from appo_collector.envs.native.options import option
from appo_collector.envs.native.twins.twin import Twin, TwinOptions, effort, weight

_RADIUS = 0.2  # m, of the disk of targets


@dataclass(frozen=True)
class ReacherOptions(TwinOptions):
    """Options of Reacher."""

    max_episode_steps: int = option(50, low=1)
    frame_skip: int = option(2, low=1)
    reward_dist_weight: float = weight(1.0)
    """Cost of a distance of 1 m between fingertip and target."""
    reward_control_weight: float = weight(1.0)
    """Cost of a sum of squared actions of 1."""


class Reacher(Twin):
    """Action [2]: torques of the joints. Observation [10]: cosines and sines of the joints' angles, place of the
    target, velocities of the joints, fingertip less target (x and y).
    """

    options_type = ReacherOptions
    options: ReacherOptions
    id = "Reacher-v5"
    scene = "reacher.xml"
    terms = ("dist", "ctrl")

    def __init__(self, num_envs: int, *, threads: int = 1, **overrides: Any) -> None:
        """Make the task; see :class:`Twin`."""
        super().__init__(num_envs, threads=threads, **overrides)
        place = self.data_field("xpos")
        self._fingertip = place[:, self.model.body("fingertip").id]
        self._target = place[:, self.model.body("target").id]

    def _size(self, model: mujoco.MjModel) -> int:
        return 10

    def _parts(self, rows: Rows) -> Sequence[np.ndarray]:
        angles, target = self.qpos[rows, :2], self.qpos[rows, 2:]
        offset = self._fingertip[rows, :2] - self._target[rows, :2]
        return np.cos(angles), np.sin(angles), target, self.qvel[rows, :2], offset

    def _start(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        self.qpos[rows, :2] += rng.uniform(-0.1, 0.1, (rows.size, 2))
        self.qvel[rows, :2] += rng.uniform(-0.005, 0.005, (rows.size, 2))
        # Uniform in the disk: the square root gives the outer rings their larger share.
        angle, radius = rng.uniform(-np.pi, np.pi, rows.size), _RADIUS * np.sqrt(rng.random(rows.size))
        self.qpos[rows, 2:] = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=1)

    def _rewards(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        distance = np.linalg.norm(self._fingertip - self._target, axis=1)
        return {
            "dist": -distance * self.options.reward_dist_weight,
            "ctrl": -effort(actions) * self.options.reward_control_weight,
        }
