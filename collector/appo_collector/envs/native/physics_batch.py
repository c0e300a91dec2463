"""Physics by ``mujoco.batch`` (MuJoCo 3.17 and later): bit-identical to a loop of mj_step over one MjData each."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
from mujoco.batch import Batch, SimulationError

from appo_collector.envs.native.mujoco_warnings import warnings_kept
from appo_collector.envs.native.physics import SANE, Physics
from appo_collector.envs.native.physics_models import ModelTable, array_of
from appo_common.errors import ConfigError, EnvironmentFault

_NOTHING = mujoco.mjtStage.mjSTAGE_NONE.value


class BatchPhysics(Physics):
    """Rows of ``mjSTATE_INTEGRATION``, the solver's warm start included, in one ``mujoco.batch.Batch``.

    Different values of model fields live in the batch (``expand``), so meshes and textures are held once. Only
    several given models need a table of models, because a batch takes either the one or the other.
    """

    persistent = False
    """Keep an MjData per simulation, for a subclass that works on it after a step."""

    def __init__(self, models: Sequence[mujoco.MjModel], num_envs: int, threads: int) -> None:
        """Allocate; see :class:`Physics`. Raises ConfigError for models that MuJoCo will not run together."""
        self._batch = Batch(models[0], num_envs, max(threads, 1), self.persistent)
        self._table = ModelTable(models, num_envs) if len(models) > 1 else None
        self._hand_over_models()
        self._stale = np.zeros(num_envs, dtype=bool)  # models whose derived constants do not fit yet
        self._scratch = mujoco.MjData(models[0])
        self._forwarded = False
        self._bound: set[str] = set()
        self.warnings = []
        self.qpos, self.qvel = self._batch.bind("qpos"), self._batch.bind("qvel")
        self.act, self.time = self._batch.bind("act"), self._batch.bind("time")
        self.sensors = self._batch.bind("sensordata")
        self._ctrl = self._batch.bind("ctrl")
        self._warning_counts = self._batch.warning[:, :, 1]
        # A row begins with the time, the positions, the velocities and the activations.
        self._motion = self._batch.state[:, : 1 + models[0].nq + models[0].nv + models[0].na]
        self._batch.reset(stage=_NOTHING)
        self._defaults: np.ndarray | None = self._batch.state.copy()  # none once a model was written

    def reset(self, rows: np.ndarray) -> None:
        """See :class:`Physics`."""
        if self._defaults is None:
            self._batch.reset(rows, stage=_NOTHING)
        else:  # the same, without the 0.1 ms that the batch takes for a few rows
            self._batch.state[rows] = self._defaults[rows]
            self._warning_counts[rows] = 0

    def forward(self, rows: np.ndarray) -> None:
        """See :class:`Physics`. Raises EnvironmentFault where MuJoCo raises an error."""
        self._settle_constants()
        self._forwarded = True
        try:
            with warnings_kept():
                self._batch.forward(rows)
        except SimulationError as error:
            raise EnvironmentFault(f"an episode could not be started: {error}") from error
        self._warning_counts[rows] = 0  # a warning at the start loses no environment; in a step it does

    def step(self, control: np.ndarray, nstep: int) -> np.ndarray:
        """See :class:`Physics`."""
        self._settle_constants()
        self._ctrl[:] = control
        failed: Sequence[int] = []
        with warnings_kept() as self.warnings:
            try:
                self._batch.step(nstep=nstep)
            except SimulationError as error:
                failed = error.ids
                self.warnings.append(str(error))
        healthy: np.ndarray = (np.abs(self._motion) < SANE).all(axis=1)  # a comparison with NaN is false
        healthy &= ~self._warning_counts.any(axis=1)
        healthy[failed] = False
        if not healthy.all():
            lost = np.flatnonzero(~healthy)
            self.reset(lost)
            self.forward(lost)
        return healthy

    def data_field(self, name: str) -> np.ndarray:
        """See :class:`Physics`. State is writable, what MuJoCo computes is not.

        Raises EnvironmentFault for an unknown name, and for one that is first asked for after a reset.
        """
        try:
            array = self._batch.bind(name)
        except ValueError as error:
            raise EnvironmentFault(f"data field: {error}") from error
        if self._forwarded and not array.flags.writeable and name not in self._bound:
            raise EnvironmentFault(
                f"data field {name!r}: ask for it in the task's __init__, before the first reset; MuJoCo fills the "
                "arrays that it was asked for when it computes them"
            )
        self._bound.add(name)
        return array

    def model_field(self, name: str) -> np.ndarray:
        """See :class:`Physics`."""
        if self._table is not None:
            return self._table.read(name)
        shared = array_of(self._batch.model, name)
        try:
            values = self._batch.expand(name).view()
        except ValueError:  # structure and meshes, which cannot differ
            return np.broadcast_to(shared, (self._batch.nsim, *shared.shape))
        values.flags.writeable = False  # set_model_field also updates what follows from them
        return values

    def set_model_field(self, name: str, rows: np.ndarray, values: np.ndarray) -> None:
        """See :class:`Physics`. Raises EnvironmentFault for a field that cannot differ between simulations."""
        self._defaults = None
        if self._table is not None:
            self._table.write(name, rows, values)
            self._hand_over_models()
        else:
            try:
                self._batch.expand(name)[rows] = values
            except ValueError as error:
                raise EnvironmentFault(f"model field: {error}") from error
        self._stale[rows] = True

    def _hand_over_models(self) -> None:
        if self._table is not None:
            try:
                self._batch.set_models(self._table.of)
            except mujoco.FatalError as error:
                raise ConfigError(f"these models cannot run in one batch: {error}") from error

    def _settle_constants(self) -> None:
        if not self._stale.any():
            return
        rows = np.flatnonzero(self._stale)
        if self._table is not None:
            self._table.set_const(rows, self._scratch)
        else:
            self._batch.set_const(rows)
        self._stale[:] = False

    def model_of(self, env: int) -> mujoco.MjModel:
        """See :class:`Physics`."""
        self._settle_constants()
        return self._batch.get_model(env)

    def data_of(self, env: int) -> mujoco.MjData:
        """See :class:`Physics`."""
        self._batch.get_data(env, self._scratch)
        mujoco.mj_forward(self.model_of(env), self._scratch)
        return self._scratch
