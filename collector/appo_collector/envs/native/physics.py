"""What a native task needs of MuJoCo: N simulations stepped together. Two backends do it.

``BatchPhysics`` (MuJoCo 3.17 and later) is bit-identical to one ``MjData`` per simulation; ``RolloutPhysics``
serves older ones, where the solver starts cold at every environment step and only states and sensors come back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import mujoco
import numpy as np

SANE = 1e6
"""A state value beyond this (metres, radians, seconds or their rates) counts as blown up, as NaN does."""


class Physics(ABC):
    """N simulations. ``rows`` is always a sorted index array ``[E]`` of distinct simulations."""

    qpos: np.ndarray
    """``[N, nq]`` float64, live and writable, as all of the state."""
    qvel: np.ndarray
    """``[N, nv]`` float64."""
    act: np.ndarray
    """``[N, na]`` float64, the actuators' own states."""
    time: np.ndarray
    """``[N]`` float64, seconds since the reset."""
    sensors: np.ndarray
    """``[N, nsensordata]`` float64, live. MuJoCo computes them before it integrates: after a step they belong
    to the state one physics step earlier, after :meth:`forward` to the state itself."""
    warnings: list[str]
    """What MuJoCo said about the simulations that the last step lost."""

    @abstractmethod
    def __init__(self, models: Sequence[mujoco.MjModel], num_envs: int, threads: int) -> None:
        """Allocate; simulation i runs on ``models[i % len(models)]``, all of one layout (see check_models).

        ``threads`` counts the calling thread. The models must not be written afterwards.
        """

    @abstractmethod
    def reset(self, rows: np.ndarray) -> None:
        """Put ``rows`` into their models' default pose, as mj_resetData does; computes nothing."""

    @abstractmethod
    def forward(self, rows: np.ndarray) -> None:
        """Compute sensors and all other data fields for the state of ``rows``, as mj_forward does."""

    @abstractmethod
    def step(self, control: np.ndarray, nstep: int) -> np.ndarray:
        """Advance by ``nstep`` physics steps with ``[N, nu]`` controls held; return ``[N]`` bool: came through.

        The others met an error, a warning of MuJoCo, or a number beyond :data:`SANE`. They are left in the default
        pose, sensors included, where every number is finite.
        """

    @abstractmethod
    def data_field(self, name: str) -> np.ndarray:
        """Return ``[N, ...]``, a live array of an MjData field; ask before the first reset.

        Raises ConfigError where the installed MuJoCo cannot give it.
        """

    @abstractmethod
    def model_field(self, name: str) -> np.ndarray:
        """Return ``[N, ...]``, the values of an array of MjModel in every simulation; not to be written."""

    @abstractmethod
    def set_model_field(self, name: str, rows: np.ndarray, values: np.ndarray) -> None:
        """Write ``values`` ``[E, ...]`` into an array of the models of ``rows`` alone.

        What MuJoCo derives from the model (mj_setConst) follows at the next forward or step of these rows.
        """

    @abstractmethod
    def model_of(self, env: int) -> mujoco.MjModel:
        """Return the model that simulation ``env`` runs on, to read or to draw."""

    @abstractmethod
    def data_of(self, env: int) -> mujoco.MjData:
        """Return data with the state of ``env``, after mj_forward; overwritten by the next call."""

    def close(self) -> None:  # noqa: B027 - a batch ends its threads with itself
        """End the threads."""
