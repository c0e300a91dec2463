"""Physics by ``mujoco.rollout``, for MuJoCo before 3.17: the same interface without data fields."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import mujoco
import numpy as np
from mujoco.rollout import Rollout

from appo_collector.envs.native.mujoco_warnings import warnings_kept
from appo_collector.envs.native.physics import SANE, Physics
from appo_collector.envs.native.physics_models import ModelTable
from appo_common.errors import ConfigError

_FULL = mujoco.mjtState.mjSTATE_FULLPHYSICS.value


class RolloutPhysics(Physics):
    """Rows of ``mjSTATE_FULLPHYSICS``; the solver starts cold at every call, so a row alone says what comes next."""

    def __init__(self, models: Sequence[mujoco.MjModel], num_envs: int, threads: int) -> None:
        """Allocate; see :class:`Physics`."""
        model = models[0]
        workers = threads if threads > 1 else 0  # 0: on the calling thread
        self._rollout = Rollout(nthread=workers)
        self._datas = [mujoco.MjData(model) for _ in range(max(workers, 1))]
        self._scratch = mujoco.MjData(model)
        self._table = ModelTable(models, num_envs)
        self._stale = np.zeros(num_envs, dtype=bool)  # models whose derived constants do not fit yet
        self._state = np.zeros((num_envs, mujoco.mj_stateSize(model, _FULL)))
        self.warnings = []
        self.time = self._state[:, 0]
        ends = np.cumsum([1, model.nq, model.nv, model.na])
        self.qpos, self.qvel, self.act = (self._state[:, a:b] for a, b in pairwise(ends))
        self.sensors = np.zeros((num_envs, model.nsensordata))
        self._trace = np.zeros((0,))
        self._sensor_trace = self._control_trace = self._trace

    def reset(self, rows: np.ndarray) -> None:
        """See :class:`Physics`."""
        for row in rows:
            mujoco.mj_resetData(self._table.of[row], self._scratch)
            mujoco.mj_getState(self._table.of[row], self._scratch, self._state[row], _FULL)

    def forward(self, rows: np.ndarray) -> None:
        """See :class:`Physics`."""
        with warnings_kept():
            for row in rows:
                self.sensors[row] = self.data_of(row).sensordata

    def step(self, control: np.ndarray, nstep: int) -> np.ndarray:
        """See :class:`Physics`."""
        self._settle_constants()
        self._make_traces(control, nstep)
        with warnings_kept() as self.warnings:
            self._rollout.rollout(
                self._table.of,
                self._datas,
                self._state,
                self._control_trace,
                skip_checks=True,
                nstep=nstep,
                state=self._trace,
                sensordata=self._sensor_trace,
            )
        after = self._trace[:, -1]
        # On a warning MuJoCo stops a simulation and repeats its last state, so its clock stops early.
        on_time = after[:, 0] > self.time + (nstep - 0.5) * self._table.of[0].opt.timestep
        healthy = on_time & (np.abs(after) < SANE).all(axis=1)  # a comparison with NaN is false
        self._state[:] = after
        self.sensors[:] = self._sensor_trace[:, -1]
        if not healthy.all():
            lost = np.flatnonzero(~healthy)
            self.reset(lost)
            self.forward(lost)
        return healthy

    def _make_traces(self, control: np.ndarray, nstep: int) -> None:
        """Lay out what one call reads and writes, ``[N, nstep, ...]``; again only when ``nstep`` changes."""
        count = len(self._state)
        if self._trace.shape[:2] != (count, nstep):
            self._trace = np.zeros((count, nstep, self._state.shape[1]))
            self._sensor_trace = np.zeros((count, nstep, self.sensors.shape[1]))
            self._control_trace = np.zeros((count, nstep, control.shape[1]))
        self._control_trace[:] = control[:, None, :]

    def data_field(self, name: str) -> np.ndarray:
        """Raises ConfigError: an older MuJoCo has no batch that keeps data fields."""
        raise ConfigError(
            f"the task needs MuJoCo's data field {name!r}, which takes mujoco>=3.17; installed is mujoco "
            f"{mujoco.__version__}. Update it with: pip install 'mujoco>=3.17'"
        )

    def model_field(self, name: str) -> np.ndarray:
        """See :class:`Physics`."""
        return self._table.read(name)

    def set_model_field(self, name: str, rows: np.ndarray, values: np.ndarray) -> None:
        """See :class:`Physics`."""
        self._table.write(name, rows, values)
        self._stale[rows] = True

    def _settle_constants(self) -> None:
        if self._stale.any():
            self._table.set_const(np.flatnonzero(self._stale), self._scratch)
            self._stale[:] = False

    def model_of(self, env: int) -> mujoco.MjModel:
        """See :class:`Physics`."""
        self._settle_constants()
        return self._table.of[env]

    def data_of(self, env: int) -> mujoco.MjData:
        """See :class:`Physics`."""
        model = self.model_of(env)
        mujoco.mj_resetData(model, self._scratch)
        mujoco.mj_setState(model, self._scratch, self._state[env], _FULL)
        mujoco.mj_forward(model, self._scratch)
        return self._scratch

    def close(self) -> None:
        """See :class:`Physics`."""
        self._rollout.close()
