"""What the twins have in common: Gymnasium's scene, its limit, its bounds and its noise at the start."""

from __future__ import annotations

import importlib.util
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from appo_collector.envs.contract import Observations
from appo_collector.envs.extras import missing
from appo_collector.envs.native.backend import best_physics
from appo_collector.envs.native.mujoco_task import MujocoTask, Rows, columns
from appo_collector.envs.native.mujoco_warnings import warnings_kept
from appo_collector.envs.native.options import CommonOptions, option, read_options
from appo_collector.envs.native.physics_rollout import RolloutPhysics
from appo_common.errors import ConfigError

_WEIGHTED = (1.0 * np.float32(1.0)).dtype
"""What Python's float times NumPy's float32 is: float32 since NumPy 2, float64 before. Gymnasium weighs costs so."""


def weight(default: float) -> Any:
    """Declare an option that may be any finite number."""
    return option(default, low=-math.inf)


def limits(low: float, high: float) -> Any:
    """Declare an option that is a range, open-ended where an end is infinite."""
    return option((low, high), low=-math.inf)


@dataclass(frozen=True)
class TwinOptions(CommonOptions):
    """Options of every twin; they and all others are arguments that ``gymnasium.make`` takes for it."""

    max_episode_steps: int = option(1000, low=1)
    """Environment steps after which an episode is truncated."""
    frame_skip: int = option(5, low=1)
    """Physics steps per environment step."""


class Twin(MujocoTask):
    """One of Gymnasium's environments, N times. Observation group ``policy``; the reward terms are those of
    Gymnasium's ``info`` without their prefix ``reward_``, in the order in which Gymnasium adds them up.

    Bit-identical as long as the state is finite and below 1e6 (Gymnasium goes on beyond).
    """

    options_type: type[TwinOptions]
    options: TwinOptions
    id: str
    """Gymnasium's name."""
    scene: str
    """File of the gymnasium package's ``envs/mujoco/assets``."""
    terms: Sequence[str]
    """Names of the reward terms."""
    normal_noise = False
    """The noise in the first velocities is normal, not uniform."""

    def __init__(self, num_envs: int, *, threads: int = 1, **overrides: Any) -> None:
        """Make the task; ``overrides`` are the fields of its options class.

        Raises ConfigError for a wrong option, without the package gymnasium, and with a MuJoCo before 3.17.
        """
        name = f"mujoco:{self.id}"
        if (self.physics or best_physics()) is RolloutPhysics:
            # States alone would be close; but a twin that differs in the last bits is no twin.
            raise ConfigError(
                f"env.name: {name!r} needs mujoco>=3.17, and {mujoco.__version__} is installed here; "
                f"update it, or take 'gymnasium:{self.id}'"
            )
        self.options = read_options(self.options_type, overrides)
        model = _load(self.scene, name)
        low, high = model.actuator_ctrlrange.T
        super().__init__(
            model,
            name=name,
            num_envs=num_envs,
            threads=threads,
            frame_skip=self.options.frame_skip,
            observations={"policy": self._size(model)},
            reward_terms=self.terms,
            options=self.options,
            episode_limit=self.options.max_episode_steps,
            action_names=[model.joint(joint).name for joint in model.actuator_trnid[:, 0]],
            action_low=low.tolist(),
            action_high=high.tolist(),
        )

    @abstractmethod
    def _size(self, model: mujoco.MjModel) -> int:
        """Return the length of the observation."""

    @abstractmethod
    def _parts(self, rows: Rows) -> Sequence[np.ndarray]:
        """Return the parts of the observation of ``rows``, ``[E, k]`` float64 each."""

    def _observe(self, rows: Rows, rng: np.random.Generator) -> Observations:
        return {"policy": columns(*self._parts(rows))}

    def _disturb(self, rows: np.ndarray, rng: np.random.Generator, scale: float) -> None:
        """Add noise to the default pose of ``rows``: positions uniform in ±scale, velocities too or normal."""
        places = self.model.nq
        noise = rng.uniform(-scale, scale, (rows.size, places + self.model.nv))
        if self.normal_noise:
            noise[:, places:] = scale * rng.standard_normal((rows.size, self.model.nv))
        self.qpos[rows] += noise[:, :places]
        self.qvel[rows] += noise[:, places:]

    def _control(self, actions: np.ndarray) -> np.ndarray:
        return actions  # MuJoCo clips to the actuators' range; Gymnasium's costs are of what was asked for

    def _terminated(self) -> np.ndarray:
        return np.zeros(self.spec.num_envs, dtype=bool)


def effort(actions: np.ndarray) -> np.ndarray:
    """Return ``[N]``, the sum of squares of ``actions``, rounded as Gymnasium rounds it: it squares float32."""
    return np.square(actions.astype(np.float32)).sum(axis=1).astype(_WEIGHTED, copy=False)


def within(values: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """Say which ``values`` lie strictly within ``bounds``."""
    return (bounds[0] < values) & (values < bounds[1])


def _load(scene: str, name: str) -> mujoco.MjModel:
    """Compile a scene of the gymnasium package, which is not imported: that takes a while and needs more packages."""
    package = importlib.util.find_spec("gymnasium")
    if package is None or package.origin is None:
        raise missing("gymnasium", "gymnasium", name)
    path = Path(package.origin).parent / "envs" / "mujoco" / "assets" / scene
    if not path.is_file():
        raise ConfigError(f"env.name: {name!r} needs {scene}, which gymnasium>=1.1 has in {path.parent}; update it")
    with warnings_kept():  # the cheetah's scene has a deprecated attribute
        return mujoco.MjModel.from_xml_path(str(path))
