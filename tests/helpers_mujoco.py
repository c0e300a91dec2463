"""A native task small enough to be calculated by hand, and the physics backends that are installed."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from appo_collector.envs.contract import Observations, Step
from appo_collector.envs.native.backend import best_physics
from appo_collector.envs.native.mujoco_task import MujocoTask, Rows, columns
from appo_collector.envs.native.options import TaskOptions, read_options
from appo_collector.envs.native.physics_rollout import RolloutPhysics

BACKENDS = list(dict.fromkeys([best_physics(), RolloutPhysics]))

# One mass on a slide, moved by a motor of 1 N: v += a * dt, then x += v * dt (semi-implicit Euler).
BEAD = """
<mujoco>
  <option timestep="0.1" gravity="0 0 0" integrator="Euler"/>
  <worldbody>
    <camera name="track" pos="0 -3 0" xyaxes="1 0 0 0 0 1"/>
    <light pos="0 -2 2" dir="0 1 -1"/>
    <body><joint name="slide" type="slide" axis="1 0 0"/><geom size=".2" mass="{mass}" rgba=".9 .4 .1 1"/></body>
  </worldbody>
  <actuator><motor name="push" joint="slide"/></actuator>
  <sensor><jointpos joint="slide"/></sensor>
</mujoco>
"""


def bead_model(mass: float = 1.0) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(BEAD.format(mass=mass))


class Bead(MujocoTask):
    """Starts at ``10 * env + starts so far``; falls when it has moved by more than ``reach``."""

    def __init__(
        self, num_envs: int = 3, *, threads: int = 1, reach: float = 1e9, model: Any = None, **options: Any
    ) -> None:
        super().__init__(
            bead_model() if model is None else model,
            name="test:bead",
            num_envs=num_envs,
            threads=threads,
            frame_skip=2,
            observations={"policy": 2, "privileged": 1},
            reward_terms=("speed", "bonus"),
            options=read_options(TaskOptions, options),
        )
        self.reach = reach
        self.starts = np.zeros(num_envs)
        self.origin = np.zeros(num_envs)

    def _start(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        self.origin[rows] = 10.0 * rows + self.starts[rows]
        self.qpos[rows, 0] = self.origin[rows]
        self.starts[rows] += 1

    def _control(self, actions: np.ndarray) -> np.ndarray:
        return actions

    def _rewards(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        return {"speed": self.qvel[:, 0].copy(), "bonus": np.full(self.spec.num_envs, 0.5)}

    def _terminated(self) -> np.ndarray:
        return np.abs(self.qpos[:, 0] - self.origin) > self.reach

    def _observe(self, rows: Rows, rng: np.random.Generator) -> Observations:
        return {
            "policy": columns(self.qpos[rows], self.qvel[rows]),
            "privileged": columns(self.sensors[rows]),
        }


def push(env: MujocoTask, *force: float) -> Step:
    return env.step(np.array(force, dtype=np.float32)[:, None])
