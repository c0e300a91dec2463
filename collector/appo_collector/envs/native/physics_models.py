"""Models of a batch: what they must have in common, and private copies where one is written."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Sequence
from operator import attrgetter

import mujoco
import numpy as np

from appo_common.errors import ConfigError, EnvironmentFault

_LAYOUT = (
    *("nq", "nv", "nu", "na", "nbody", "njnt", "ngeom", "nsite", "ncam", "nlight", "ntendon", "nwrap", "neq", "nmocap"),
    *("nsensor", "nsensordata", "nuserdata", "npluginstate", "nflexvert", "nflexedge", "nflexelem", "nM", "nJmom"),
    "nbvh",  # grows with the faces of meshes
)
"""Sizes of MjModel by which MjData is laid out."""


def check_models(models: Sequence[mujoco.MjModel], num_envs: int) -> None:
    """Raise ConfigError unless there are 1 to ``num_envs`` models, alike in sizes and time step."""
    if not 1 <= len(models) <= num_envs:
        raise ConfigError(f"{len(models)} models for env.num_envs = {num_envs}; give 1 to {num_envs} of them")
    first = models[0]
    for index, model in enumerate(models[1:], start=1):
        for key in _LAYOUT:
            here, there = getattr(first, key), getattr(model, key)
            if here != there:
                raise ConfigError(
                    f"models of one batch must have the same sizes: {key} is {here} in model 0 and {there} in model "
                    f"{index}; give each kind of robot a task of its own"
                )
        if first.opt.timestep != model.opt.timestep:
            raise ConfigError(
                f"models of one batch must have the same time step: {first.opt.timestep} s in model 0 and "
                f"{model.opt.timestep} s in model {index}"
            )


def array_of(model: mujoco.MjModel, name: str) -> np.ndarray:
    """Return the model's own array ``name``, e.g. ``geom_friction`` or ``opt.gravity``.

    Raises EnvironmentFault for a name that is no array of MjModel, with the nearest one that is.
    """
    try:
        value = attrgetter(name)(model)
    except AttributeError:
        value = None
    if not isinstance(value, np.ndarray):
        near = difflib.get_close_matches(name, dir(model), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise EnvironmentFault(f"model field {name!r} is no array of mujoco.MjModel{hint}")
    return value


class ModelTable:
    """The model of every simulation. One that is written becomes a copy of its own, with all meshes and textures."""

    def __init__(self, models: Sequence[mujoco.MjModel], num_envs: int) -> None:
        """Deal ``models`` round-robin to ``num_envs`` simulations."""
        self.of = [models[env % len(models)] for env in range(num_envs)]
        """The model of each simulation; ``[N]``."""
        self._private = np.zeros(num_envs, dtype=bool)

    def read(self, name: str) -> np.ndarray:
        """Return a fresh ``[N, ...]`` array of the field's values."""
        return np.stack([array_of(model, name) for model in self.of])

    def write(self, name: str, rows: np.ndarray, values: np.ndarray) -> None:
        """Write ``values`` ``[E, ...]`` into the models of ``rows``."""
        for row, value in zip(rows, values, strict=True):
            if not self._private[row]:
                self.of[row] = copy.copy(self.of[row])
                self._private[row] = True
            array_of(self.of[row], name)[...] = value

    def set_const(self, rows: np.ndarray, scratch: mujoco.MjData) -> None:
        """Run mj_setConst on the models of ``rows``; ``scratch`` is overwritten."""
        for row in rows:
            mujoco.mj_setConst(self.of[row], scratch)
