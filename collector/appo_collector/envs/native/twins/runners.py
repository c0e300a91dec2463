"""Twins that are paid for moving forward: HalfCheetah, Swimmer, Hopper, Walker2d (and Ant, in a module of its own)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

from appo_collector.envs.native.mujoco_task import Rows
from appo_collector.envs.native.options import option
from appo_collector.envs.native.twins.twin import Twin, TwinOptions, effort, limits, weight, within


@dataclass(frozen=True)
class RunnerOptions(TwinOptions):
    """Options of all that run, with the defaults of HalfCheetah."""

    forward_reward_weight: float = weight(1.0)
    """Reward for a velocity of 1 m/s."""
    ctrl_cost_weight: float = weight(0.1)
    """Cost of a sum of squared actions of 1."""
    reset_noise_scale: float = option(0.1)
    """Bounds, or standard deviation, of the noise in the first positions and velocities."""
    exclude_current_positions_from_observation: bool = option(True)
    """Leave the place along the track (Swimmer, Ant: in the plane) out of the observation."""


@dataclass(frozen=True)
class SwimmerOptions(RunnerOptions):
    """Options of Swimmer."""

    frame_skip: int = option(4, low=1)
    ctrl_cost_weight: float = weight(1e-4)


@dataclass(frozen=True)
class LeggedOptions(RunnerOptions):
    """Options of those that may fall, with the defaults of Ant."""

    ctrl_cost_weight: float = weight(0.5)
    healthy_reward: float = weight(1.0)
    """Reward of every step in a healthy state. (Ant-v4: of every step at all with ``terminate_when_unhealthy``.)"""
    terminate_when_unhealthy: bool = option(True)
    """End the episode in a state that is not healthy."""
    healthy_z_range: tuple[float, float] = limits(0.2, 1.0)
    """Heights (m) of a healthy torso."""


@dataclass(frozen=True)
class Walker2dOptions(LeggedOptions):
    """Options of Walker2d."""

    frame_skip: int = option(4, low=1)
    ctrl_cost_weight: float = weight(1e-3)
    reset_noise_scale: float = option(5e-3)
    healthy_z_range: tuple[float, float] = limits(0.8, 2.0)
    healthy_angle_range: tuple[float, float] = limits(-1.0, 1.0)
    """Angles (rad) of a healthy torso."""


@dataclass(frozen=True)
class HopperOptions(Walker2dOptions):
    """Options of Hopper."""

    healthy_z_range: tuple[float, float] = limits(0.7, math.inf)
    healthy_angle_range: tuple[float, float] = limits(-0.2, 0.2)
    healthy_state_range: tuple[float, float] = limits(-100.0, 100.0)
    """Healthy values of all of the state but the place along the track and the height."""


class Runner(Twin):
    """Rewarded for the mean velocity along x during a step. The observation is the state, less some positions."""

    options: RunnerOptions
    terms: Sequence[str] = ("forward", "ctrl")
    hidden = 1
    """Positions that the observation leaves out, the first ones."""
    velocity_limit = math.inf
    """Where the observed velocities are clipped."""

    def _size(self, model: mujoco.MjModel) -> int:
        return int(model.nq + model.nv) - self._hidden

    @property
    def _hidden(self) -> int:
        return self.hidden if self.options.exclude_current_positions_from_observation else 0

    def _parts(self, rows: Rows) -> Sequence[np.ndarray]:
        velocities = np.clip(self.qvel[rows], -self.velocity_limit, self.velocity_limit)
        return self.qpos[rows, self._hidden :], velocities

    def _start(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        self._disturb(rows, rng, self.options.reset_noise_scale)

    def _place(self) -> np.ndarray:
        """Return ``[N]``, a view of the places along x (m)."""
        return self.qpos[:, 0]

    def _control(self, actions: np.ndarray) -> np.ndarray:
        self._before = self._place().copy()
        return actions

    def _rewards(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        velocity = (self._place() - self._before) / self.spec.step_dt
        return {
            "forward": self.options.forward_reward_weight * velocity,
            "ctrl": -self.options.ctrl_cost_weight * effort(actions),
        }


class HalfCheetah(Runner):
    """Action [6]: torques of the joints. Observation [17]: positions but the first, velocities."""

    options_type = RunnerOptions
    id = "HalfCheetah-v5"
    scene = "half_cheetah.xml"
    normal_noise = True


class Swimmer(Runner):
    """Action [2]: torques of the joints. Observation [8]: positions but the first two, velocities."""

    options_type = SwimmerOptions
    id = "Swimmer-v5"
    scene = "swimmer.xml"
    hidden = 2


class Legged(Runner):
    """Ends where the state is not healthy, and is paid for being so."""

    options: LeggedOptions
    terms: Sequence[str] = ("forward", "survive", "ctrl")

    @abstractmethod
    def _healthy(self) -> np.ndarray:
        """Return ``[N]`` bool."""

    def _rewards(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        terms = super()._rewards(actions)
        return {"forward": terms["forward"], "survive": self._survive(), "ctrl": terms["ctrl"]}

    def _survive(self) -> np.ndarray:
        return self._is_healthy * self.options.healthy_reward

    def _terminated(self) -> np.ndarray:
        self._is_healthy = self._healthy()  # asked for before the rewards
        return ~self._is_healthy if self.options.terminate_when_unhealthy else super()._terminated()


class Walker2d(Legged):
    """Action [6]: torques of the joints. Observation [17]: positions but the first, velocities clipped to ±10."""

    options_type = Walker2dOptions
    options: Walker2dOptions
    id = "Walker2d-v5"
    scene = "walker2d_v5.xml"
    velocity_limit = 10.0

    def _healthy(self) -> np.ndarray:
        height, angle = self.qpos[:, 1], self.qpos[:, 2]
        return within(height, self.options.healthy_z_range) & within(angle, self.options.healthy_angle_range)


class Hopper(Walker2d):
    """Action [3]: torques of the joints. Observation [11]: positions but the first, velocities clipped to ±10."""

    options_type = HopperOptions
    options: HopperOptions
    id = "Hopper-v5"
    scene = "hopper.xml"

    def _healthy(self) -> np.ndarray:
        bounds = self.options.healthy_state_range
        state = within(self.qpos[:, 2:], bounds).all(axis=1) & within(self.qvel, bounds).all(axis=1)
        return super()._healthy() & state
