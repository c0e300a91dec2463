"""Base of the native tasks: a batch of MuJoCo simulations, written as NumPy functions over the whole batch."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import mujoco
import numpy as np

from appo_collector.envs.contract import Observations, Step, VectorEnv
from appo_collector.envs.native.backend import best_physics
from appo_collector.envs.native.offscreen import Offscreen
from appo_collector.envs.native.options import CommonOptions, TaskOptions
from appo_collector.envs.native.physics import Physics
from appo_collector.envs.native.physics_models import array_of, check_models
from appo_common.errors import ConfigError, EnvironmentFault
from appo_common.spec import EnvSpec, ObservationGroup

Rows = slice | np.ndarray
"""Which environments: ``ALL`` or an index array ``[E]``."""
ALL = slice(None)
_ASSETS = Path(__file__).parent / "assets"
_TELL_AGAIN_S = 60.0

logger = logging.getLogger(__name__)


def load_asset(name: str) -> mujoco.MjModel:
    """Compile a MJCF file of this package's ``assets`` folder."""
    return mujoco.MjModel.from_xml_path(str(_ASSETS / name))


class MujocoTask(VectorEnv):
    """N environments of one model, or of several of one layout. A task is a subclass that writes five functions
    over the whole batch: :meth:`_start`, :meth:`_control`, :meth:`_rewards`, :meth:`_terminated`, :meth:`_observe`.

    Nothing depends on the number of threads. ``docs/mujoco-tasks.md`` has an example.
    """

    camera = "track"
    """Name of the model's camera that :meth:`render` looks through; without it the model's free camera is used."""
    physics: type[Physics] | None = None
    """Backend; None takes the one for the installed MuJoCo."""

    def __init__(
        self,
        model: mujoco.MjModel | Sequence[mujoco.MjModel],
        *,
        name: str,
        num_envs: int,
        threads: int,
        frame_skip: int,
        observations: dict[str, int],
        reward_terms: Sequence[str],
        options: CommonOptions,
        episode_limit: int | None = None,
        action_names: Sequence[str] | None = None,
        action_low: Sequence[float] = (),
        action_high: Sequence[float] = (),
    ) -> None:
        """Describe the task and allocate the batch.

        Of several models environment i gets ``model[i % len(model)]``. ``observations`` gives the length of each
        group's vector (float32); ``frame_skip`` the physics steps per environment step; ``threads`` of 0 or 1
        simulates on the calling thread; ``episode_limit`` the environment steps of an episode, where it is not
        ``options.episode_seconds``. An action has one component per name in ``action_names``, by default one per
        actuator; ``action_low`` and ``action_high`` are the bounds that the task accepts, if it has any.
        Raises ConfigError for counts that are not positive whole numbers, and for models that do not fit together.
        """
        _require_count("num_envs", num_envs, least=1)
        _require_count("threads", threads, least=0)
        models = [model] if isinstance(model, mujoco.MjModel) else list(model)
        check_models(models, num_envs)
        for each in models:
            # A blown-up state must stay visible here, not be replaced by the model's default pose.
            each.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET.value
        first = models[0]
        step_dt = first.opt.timestep * frame_skip
        if episode_limit is None:
            if not isinstance(options, TaskOptions):
                raise TypeError("an episode needs either episode_limit or options with episode_seconds")
            episode_limit = max(1, round(options.episode_seconds / step_dt))
        if action_names is None:
            action_names = [first.actuator(index).name for index in range(first.nu)]
        self.spec = EnvSpec(
            name=name,
            observations={group: ObservationGroup(shape=[size]) for group, size in observations.items()},
            num_actions=len(action_names),
            num_envs=num_envs,
            episode_limit=episode_limit,
            step_dt=step_dt,
            reward_terms=list(reward_terms),
            action_names=list(action_names),
            action_low=list(action_low),
            action_high=list(action_high),
        )
        self.model = first
        """The model, or the first of several. What is written to it after construction has no effect."""
        self.models = models
        self.frame_skip = frame_skip
        self.nonfinite_resets = 0
        """Episodes ended so far because the state or the action of the environment was not finite."""
        self._told_at, self._untold = -_TELL_AGAIN_S, 0
        self._limit, self._stagger = episode_limit, options.stagger
        self._rng: np.random.Generator | None = None  # none before the first reset, and after close
        self._offscreen: Offscreen | None = None  # none before the first picture
        self._physics = (self.physics or best_physics())(models, num_envs, threads)
        self.qpos = self._physics.qpos
        """``[N, nq]`` float64 view of the state; live and writable, as the next two."""
        self.qvel = self._physics.qvel
        """``[N, nv]`` float64 view of the state."""
        self.act = self._physics.act
        """``[N, na]`` float64, the activations of actuators that have them."""
        self.sensors = self._physics.sensors
        """``[N, nsensordata]`` float64; MuJoCo computes them before it integrates, so after a step they
        belong to the state one physics step earlier, after a reset to the reset state."""
        self.age = np.zeros(num_envs, dtype=np.int64)
        """``[N]`` environment steps since the episode began."""

    def data_field(self, name: str) -> np.ndarray:
        """Return ``[N, ...]``, a live array of any field of MjData: ``xpos``, ``site_xpos``, ``qfrc_constraint``, ...

        It is as fresh as :attr:`sensors`. Ask in ``__init__``, after ``super().__init__``, and keep it.
        Fields that MuJoCo computes only for some sensor hold rubbish without it: ``cfrc_ext``, ``cfrc_int`` and
        ``cacc`` need an accelerometer anywhere in the model, ``subtree_linvel`` a subtreelinvel sensor.
        Raises ConfigError with MuJoCo before 3.17, EnvironmentFault for an unknown name or a first use after a reset.
        """
        return self._physics.data_field(name)

    def model_field(self, name: str) -> np.ndarray:
        """Return ``[N, ...]``: an array of MjModel, such as ``body_mass``, in every environment; not to be written."""
        return self._physics.model_field(name)

    def set_model_field(self, name: str, rows: np.ndarray, values: np.ndarray | float) -> None:
        """Give the environments ``rows`` (``[E]``, sorted) their own ``values`` of an array of MjModel.

        ``values`` is ``[E, ...]``, or anything that broadcasts to it, in the units of MJCF. What MuJoCo derives from
        the model (weights, inertias in the default pose) follows by itself. For use in :meth:`_randomize`.
        Raises EnvironmentFault for a name that is no such array.
        """
        shape = (len(rows), *array_of(self.model, name).shape)
        self._physics.set_model_field(name, rows, np.broadcast_to(values, shape))

    # What a task writes. ``rows`` is ALL or an index array; arrays have one row for each of them.

    @abstractmethod
    def _start(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        """Write ``qpos`` and ``qvel`` (both hold the model's defaults) for new episodes of ``rows``."""

    @abstractmethod
    def _control(self, actions: np.ndarray) -> np.ndarray:
        """Turn ``[N, A]`` finite actions into ``[N, nu]`` controls in actuator units."""

    @abstractmethod
    def _rewards(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        """Return the weighted terms of ``spec.reward_terms``, each ``[N]``, for the state just reached."""

    @abstractmethod
    def _terminated(self) -> np.ndarray:
        """Return ``[N]`` bool: the state just reached ends the episode."""

    @abstractmethod
    def _observe(self, rows: Rows, rng: np.random.Generator) -> Observations:
        """Return fresh float32 observations of ``rows``; ``rng`` is for their noise."""

    def _randomize(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        """Change the models of ``rows`` with :meth:`set_model_field` before :meth:`_start`; by default nothing."""

    def _advance(self, actions: np.ndarray, rng: np.random.Generator) -> None:
        """Update what the task remembers, after the rewards and before the observations of a step."""

    # The contract.

    def reset(self, seed: int) -> Observations:
        """Start a new episode in every environment; one seed, one set of trajectories, bit for bit."""
        self._rng = np.random.default_rng(np.random.SeedSequence(seed))
        self._begin(np.arange(self.spec.num_envs), self._rng)
        if self._stagger:
            self.age[:] = self._rng.integers(0, self._limit, size=self.spec.num_envs)
        return self._observe(ALL, self._rng)

    def step(self, actions: np.ndarray) -> Step:
        """Apply ``[N, A]`` actions for one environment step; see :class:`Step` for what comes back.

        An action that is not finite, or a state that blew up, ends its episode as terminated with reward 0.
        Raises EnvironmentFault for actions of another shape, and before the first reset or after close.
        """
        if self._rng is None:
            raise EnvironmentFault(f"{self.spec.name}: step() before reset() or after close()")
        actions, failed = self._finite(actions)
        failed |= ~self._physics.step(self._control(actions), self.frame_skip)
        self.age += 1
        terminated = self._terminated() | failed
        truncated = (self.age >= self._limit) & ~failed
        if failed.any():
            self._tell(int(failed.sum()))
        terms = {name: np.where(failed, 0.0, term) for name, term in self._rewards(actions).items()}
        self._advance(actions, self._rng)
        obs = self._observe(ALL, self._rng)
        ended = np.flatnonzero(terminated | truncated)
        final_obs = {group: values[ended] for group, values in obs.items()}
        if ended.size:
            self._begin(ended, self._rng)
            for group, values in self._observe(ended, self._rng).items():
                obs[group][ended] = values
        reward: np.ndarray = np.add.reduce(list(terms.values())).astype(np.float32)
        shown = {name: term.astype(np.float32) for name, term in terms.items()}
        return Step(obs, reward, terminated, truncated, final_obs, {"terms": shown})

    def ages(self) -> np.ndarray:
        """Return ``[N]`` int: the age of every current episode; with ``stagger`` the first ones do not begin at 0."""
        return self.age.copy()

    def render(self, env: int = 0, width: int = 640, height: int = 480) -> np.ndarray:
        """Return a ``[height, width, 3]`` uint8 RGB picture of environment ``env``.

        Raises EnvironmentFault when no OpenGL backend works, naming the packages to install.
        """
        base = self.models[env % len(self.models)]
        if self._offscreen is None or self._offscreen.made_for != (base, width, height):
            self._close_offscreen()
            self._offscreen = Offscreen(base, width, height)
        return self._offscreen.draw(self._physics.model_of(env), self._physics.data_of(env), self.camera)

    def close(self) -> None:
        """Stop the threads and free the picture's context. May be called twice."""
        self._rng = None
        self._physics.close()
        self._close_offscreen()

    # The machinery.

    def _finite(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the actions as float64, rows that are not finite set to zero, and which those are."""
        wanted = (self.spec.num_envs, self.spec.num_actions)
        if np.shape(actions) != wanted:
            raise EnvironmentFault(f"{self.spec.name}: actions have shape {np.shape(actions)}, not {wanted}")
        bad = ~np.isfinite(actions).all(axis=1)
        return np.where(bad[:, None], 0.0, actions).astype(np.float64, copy=False), bad

    def _begin(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        """Start new episodes in ``rows``, with sensors and data fields that belong to the new states."""
        self._randomize(rows, rng)
        self._physics.reset(rows)
        self._start(rows, rng)
        self._physics.forward(rows)
        self.age[rows] = 0

    def _tell(self, failed: int) -> None:
        """Count environments that were lost, and log them: at once, then not more often than every minute."""
        self.nonfinite_resets += failed
        self._untold += failed
        now = time.monotonic()
        if now - self._told_at >= _TELL_AGAIN_S:
            said = f" MuJoCo: {' '.join(self._physics.warnings[0].split())}" if self._physics.warnings else ""
            logger.warning(
                "%s: %d episodes were lost, because an action or the state was not finite (%d so far).%s",
                *(self.spec.name, self._untold, self.nonfinite_resets, said),
            )
            self._told_at, self._untold = now, 0

    def _close_offscreen(self) -> None:
        if self._offscreen is not None:
            self._offscreen.close()
            self._offscreen = None


def columns(*parts: np.ndarray) -> np.ndarray:
    """Join arrays ``[N, k]`` or ``[N]`` (one column) into a fresh ``[N, sum of k]`` float32 array."""
    two_dimensional = [part[:, None] if part.ndim == 1 else part for part in parts]
    return np.concatenate(two_dimensional, axis=1, dtype=np.float32)


def _require_count(name: str, value: int, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"env.{name}: {value!r} is not allowed; it must be a whole number >= {least}")
