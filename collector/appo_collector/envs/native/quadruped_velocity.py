"""``mujoco:quadruped-velocity``: a robot dog of 12 kg follows commands for its velocity on flat ground."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from appo_collector.envs.contract import Observations
from appo_collector.envs.native.mujoco_task import ALL, MujocoTask, Rows, columns, load_asset
from appo_collector.envs.native.options import TaskOptions, option, read_options

STANDING = np.tile([0.0, 0.8, -1.6], 4)
"""Joint angles (rad) of the standing pose: abduction, hip and knee of the legs FL, FR, RL, RR."""
STANDING_HEIGHT = 0.295
"""Height of the trunk's centre (m) in that pose."""
_JOINTS = slice(7, 19)  # the joints' part of qpos
_FALLEN_HEIGHT, _FALLEN_TILT = 0.15, -0.5  # m; upward component of the trunk's down axis (60 degrees)
_CONTACT_FORCE = 2.0  # N
_PERFECT_STEP = 0.1  # so that a perfect episode of 20 s is 100


@dataclass(frozen=True)
class QuadrupedOptions(TaskOptions):
    """Options of ``mujoco:quadruped-velocity``."""

    episode_seconds: float = option(20.0, low=1e-3)
    """Simulated seconds of an episode; an environment step is 0.02 s."""
    command_x: tuple[float, float] = option((-0.4, 1.0), low=-3.0, high=3.0)
    """Range of the commanded forward velocity (m/s)."""
    command_y: tuple[float, float] = option((-0.3, 0.3), low=-3.0, high=3.0)
    """Range of the commanded velocity to the left (m/s)."""
    command_yaw: tuple[float, float] = option((-0.8, 0.8), low=-6.0, high=6.0)
    """Range of the commanded turning rate, counter-clockwise (rad/s)."""
    command_seconds: float = option(5.0, low=0.02)
    """Seconds between two commands; every episode also starts with a new one."""
    standing_share: float = option(0.1, high=1.0)
    """Share of the commands that ask the robot to stand still."""
    action_scale: float = option(0.3, low=0.01, high=2.0)
    """Joint angle (rad) that an action of 1 adds to the standing pose."""
    observation_noise: float = option(1.0)
    """Multiplies the noise of the ``policy`` group; 0 switches it off."""
    friction: tuple[float, float] = option((1.0, 1.0), low=0.01, high=10.0)
    """Range of a factor for the friction of feet and floor, drawn at each start of an episode."""
    mass: tuple[float, float] = option((1.0, 1.0), low=0.1, high=10.0)
    """Range of a factor for all masses and inertias, likewise."""
    gain: tuple[float, float] = option((1.0, 1.0), low=0.1, high=10.0)
    """Range of a factor for stiffness and damping of the joint controllers, likewise."""


class QuadrupedVelocity(MujocoTask):
    """Action [12]: targets of the joint position controllers, as offsets from the standing pose.

    Observation groups (float32; velocities in the trunk's frame):

    * ``policy`` [45], what a real robot measures, with noise: angular velocity (3, x 0.25 s/rad), direction
      of gravity (3), command (3), joint offsets from the standing pose (12, rad), joint velocities (12,
      x 0.05 s/rad), previous action (12).
    * ``privileged`` [57]: the same without noise, linear velocity (3, m/s), height (1, m / 0.3), contact of
      the feet FL, FR, RL, RR (4, 0 or 1) and their forces (4, N / 100).
    """

    def __init__(self, num_envs: int, *, threads: int = 1, **overrides: Any) -> None:
        """Make the task; ``overrides`` are the fields of :class:`QuadrupedOptions`. Raises ConfigError."""
        self.options = read_options(QuadrupedOptions, overrides)
        super().__init__(
            load_asset("quadruped.xml"),
            name="mujoco:quadruped-velocity",
            num_envs=num_envs,
            threads=threads,
            frame_skip=4,
            observations={"policy": 45, "privileged": 57},
            reward_terms=tuple(WEIGHTS),
            options=self.options,
        )
        self.command = np.zeros((num_envs, 3))
        """``[N, 3]`` wanted forward and leftward velocity (m/s) and turning rate (rad/s)."""
        self._command_steps = max(1, round(self.options.command_seconds / self.spec.step_dt))
        self._previous = np.zeros((num_envs, 12))
        self._airborne = np.zeros((num_envs, 4))  # seconds that each foot has been off the ground
        self._gain = np.ones((num_envs, 1))  # factor of the controllers' stiffness and damping
        noise = np.repeat([0.05, 0.03, 0.0, 0.01, 0.05, 0.0], [3, 3, 3, 12, 12, 12])
        self._noise = noise * self.options.observation_noise

    def _randomize(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        chosen = self.options
        self._vary(rows, rng, chosen.friction, "geom_friction")
        self._vary(rows, rng, chosen.mass, "body_mass", "body_inertia")
        gain = self._vary(rows, rng, chosen.gain, "actuator_gainprm", "actuator_biasprm")
        self._gain[rows, 0] = gain

    def _vary(
        self, rows: np.ndarray, rng: np.random.Generator, span: tuple[float, float], *fields: str
    ) -> np.ndarray | float:
        """Multiply model fields of ``rows`` by a factor from ``span``, one per environment; return the factors."""
        if span == (1.0, 1.0):
            return 1.0  # costs neither time nor random numbers
        factors = rng.uniform(*span, rows.size)
        for field in fields:
            nominal = getattr(self.model, field)
            self.set_model_field(field, rows, np.multiply.outer(factors, nominal))
        return factors

    def _start(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        heading = rng.uniform(-np.pi, np.pi, rows.size)
        self.qpos[rows, 2] = STANDING_HEIGHT + 0.005
        self.qpos[rows, 3], self.qpos[rows, 6] = np.cos(heading / 2), np.sin(heading / 2)
        self.qpos[rows, _JOINTS] = STANDING + rng.uniform(-0.08, 0.08, (rows.size, 12))
        self.qvel[rows, :6] = rng.uniform(-0.1, 0.1, (rows.size, 6))
        self._previous[rows] = 0.0
        self._airborne[rows] = 0.0
        self._choose_commands(rows, rng)

    def _choose_commands(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        chosen = self.options
        low, high = np.transpose([chosen.command_x, chosen.command_y, chosen.command_yaw])
        moving = rng.uniform(size=(rows.size, 1)) >= chosen.standing_share
        self.command[rows] = rng.uniform(low, high, (rows.size, 3)) * moving

    def _control(self, actions: np.ndarray) -> np.ndarray:
        return STANDING + self.options.action_scale * np.clip(actions, -5.0, 5.0)

    def _advance(self, actions: np.ndarray, rng: np.random.Generator) -> None:
        self._previous[:] = np.clip(actions, -5.0, 5.0)
        self._airborne = np.where(self._contacts(ALL), 0.0, self._airborne + self.spec.step_dt)
        due = np.flatnonzero(self.age % self._command_steps == 0)
        if due.size:
            self._choose_commands(due, rng)

    def _rewards(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        """Weigh each part of the behaviour; formulas in :data:`WEIGHTS`."""
        velocity, gravity = self._motion(ALL)
        spin = self.qvel[:, 3:6]
        raw = {
            "track_velocity": np.exp(-_square(self.command[:, :2] - velocity[:, :2]) / 0.2),
            "track_yaw": np.exp(-((self.command[:, 2] - spin[:, 2]) ** 2) / 0.2),
            "swing": self._swings(),
            "vertical_velocity": velocity[:, 2] ** 2,
            "roll_pitch_rate": _square(spin[:, :2]),
            "tilt": _square(gravity[:, :2]),
            "height": (self.qpos[:, 2] - STANDING_HEIGHT) ** 2,
            "pose": _square(self.qpos[:, _JOINTS] - STANDING),
            "torque": self._torque_square(actions),
            "action_rate": _square(np.clip(actions, -5.0, 5.0) - self._previous),
            "fall": self._terminated().astype(np.float64),
        }
        return {name: weight * _PERFECT_STEP * raw[name] for name, weight in WEIGHTS.items()}

    def _swings(self) -> np.ndarray:
        """Return ``[N]``: for feet that touch down in this step, how long they were up; 0 if told to stand.

        The best gait takes steps of about 0.3 s; shuffling feet earn a negative value.
        """
        landed = self._contacts(ALL) & (self._airborne > 0.0)
        moving = np.abs(self.command).max(axis=1) > 0.1
        return (landed * (np.minimum(self._airborne, 0.3) - 0.12)).sum(axis=1) * moving

    def _torque_square(self, actions: np.ndarray) -> np.ndarray:
        """Return ``[N]`` sum of the squared controller torques (N m)² of the state just reached."""
        low, high = self.model.actuator_forcerange.T
        gain, damping = self.model.actuator_gainprm[:, 0], -self.model.actuator_biasprm[:, 2]
        error = self._control(actions) - self.qpos[:, _JOINTS]
        return _square(np.clip(self._gain * (gain * error - damping * self.qvel[:, 6:]), low, high))

    def _terminated(self) -> np.ndarray:
        x, y = self.qpos[:, 4], self.qpos[:, 5]
        down = 2.0 * (x * x + y * y) - 1.0  # -1 upright, 1 on its back
        return (self.qpos[:, 2] < _FALLEN_HEIGHT) | (down > _FALLEN_TILT)

    def _observe(self, rows: Rows, rng: np.random.Generator) -> Observations:
        velocity, gravity = self._motion(rows)
        joints = self.qpos[rows, _JOINTS] - STANDING
        spin, rates = self.qvel[rows, 3:6] * 0.25, self.qvel[rows, 6:] * 0.05
        measured = columns(spin, gravity, self.command[rows], joints, rates, self._previous[rows])
        force = self.sensors[rows]
        touching, pressure = force > _CONTACT_FORCE, np.minimum(force / 100.0, 5.0)
        hidden = columns(measured, velocity, self.qpos[rows, 2] / 0.3, touching, pressure)
        noise = self._noise * rng.uniform(-1.0, 1.0, measured.shape)
        return {"policy": (measured + noise).astype(np.float32), "privileged": hidden}

    def _contacts(self, rows: Rows) -> np.ndarray:
        return self.sensors[rows] > _CONTACT_FORCE

    def _motion(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return ``[E, 3]`` velocity (m/s) and ``[E, 3]`` direction of gravity in the trunk's frame."""
        w, x, y, z = self.qpos[rows, 3:7].T
        to_world = np.array(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
                [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
                [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
            ]
        )
        velocity = np.einsum("ijn,ni->nj", to_world, self.qvel[rows, :3])
        return velocity, -to_world[2].T


WEIGHTS = {
    "track_velocity": 0.65,  # exp(-|command - velocity|² / 0.2), horizontal, m/s
    "track_yaw": 0.35,  # exp(-(command - turning rate)² / 0.2), rad/s
    "swing": 3.0,  # seconds a landing foot was up beyond 0.12, at most 0.18
    "vertical_velocity": -0.8,  # (m/s)²
    "roll_pitch_rate": -0.02,  # (rad/s)²
    "tilt": -1.0,  # squared horizontal part of the direction of gravity
    "height": -8.0,  # m², from the standing height
    "pose": -0.1,  # rad², from the standing pose
    "torque": -0.0001,  # (N m)²
    "action_rate": -0.006,  # squared change of the action
    "fall": -10.0,  # once, at the end
}
"""Weight of every reward term. The two tracking terms sum to 1 where the command is followed exactly; all are
multiplied by 0.1, so that a perfect episode of 20 s gives 100."""


def _square(values: np.ndarray) -> np.ndarray:
    return np.einsum("ni,ni->n", values, values)
