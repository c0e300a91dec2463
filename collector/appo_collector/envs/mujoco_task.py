"""Base of the native tasks: a batch of MuJoCo simulations, stepped together by ``mujoco.rollout``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import mujoco
import numpy as np
from mujoco.rollout import Rollout

from appo_collector.envs.contract import Observations, Step, VectorEnv
from appo_collector.envs.offscreen import Offscreen
from appo_collector.envs.options import TaskOptions
from appo_common.errors import ConfigError, EnvironmentFault
from appo_common.spec import EnvSpec, ObservationGroup

Rows = slice | np.ndarray
"""Which environments: ``ALL`` or an index array ``[E]``."""
ALL = slice(None)
_ASSETS = Path(__file__).parent / "assets"
_FULL = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
_SANE = 1e6
"""A state value beyond this (metres, radians, seconds or their rates) counts as blown up, as NaN does."""


def load_asset(name: str) -> mujoco.MjModel:
    """Compile a MJCF file of this package's ``assets`` folder."""
    return mujoco.MjModel.from_xml_path(str(_ASSETS / name))


class MujocoTask(VectorEnv):
    """N environments of one model. A task is a subclass that writes five functions over the whole batch:
    :meth:`_start`, :meth:`_control`, :meth:`_rewards`, :meth:`_terminated` and :meth:`_observe`.

    The physics state alone decides what happens next (the solver starts cold at every environment step, or
    the model switches warm starting off), so results do not depend on the number of threads.
    """

    camera = "track"
    """Name of the model's camera that :meth:`render` looks through."""

    def __init__(
        self,
        model: mujoco.MjModel,
        *,
        name: str,
        num_envs: int,
        threads: int,
        frame_skip: int,
        observations: dict[str, int],
        reward_terms: Sequence[str],
        options: TaskOptions,
    ) -> None:
        """Describe the task and allocate the batch.

        ``observations`` gives the length of each group's vector (float32); ``frame_skip`` the physics steps
        per environment step; ``threads`` of 0 or 1 simulates on the calling thread.
        Raises ConfigError for counts that are not positive whole numbers.
        """
        _require_count("num_envs", num_envs, least=1)
        _require_count("threads", threads, least=0)
        # A blown-up state must stay visible here, not be replaced by the model's default pose.
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET.value
        step_dt = model.opt.timestep * frame_skip
        self.spec = EnvSpec(
            name=name,
            observations={group: ObservationGroup(shape=[size]) for group, size in observations.items()},
            num_actions=model.nu,
            num_envs=num_envs,
            episode_limit=max(1, round(options.episode_seconds / step_dt)),
            step_dt=step_dt,
            reward_terms=list(reward_terms),
            action_names=[model.actuator(index).name for index in range(model.nu)],
        )
        self.model = model
        self.frame_skip = frame_skip
        self.nonfinite_resets = 0
        """Episodes ended so far because the state or the action of the environment was not finite."""
        self._stagger = options.stagger
        self._allocate(num_envs, threads)

    def _allocate(self, num_envs: int, threads: int) -> None:
        model, skip = self.model, self.frame_skip
        self._rng: np.random.Generator | None = None  # none before the first reset
        self._offscreen: Offscreen | None = None  # none before the first picture
        workers = threads if threads > 1 else 0
        self._rollout: Rollout | None = Rollout(nthread=workers)
        self._models = [model] * num_envs
        self._datas = [mujoco.MjData(model) for _ in range(max(workers, 1))]
        self._scratch = mujoco.MjData(model)
        state_size = mujoco.mj_stateSize(model, _FULL)
        self._state = np.zeros((num_envs, state_size))
        self._trace = np.zeros((num_envs, skip, state_size))
        self._sensor_trace = np.zeros((num_envs, skip, model.nsensordata))
        self._control_trace = np.zeros((num_envs, skip, model.nu))
        # The full-physics state begins with the time, the positions and the velocities.
        self.qpos = self._state[:, 1 : 1 + model.nq]
        """``[N, nq]`` float64 view of the state."""
        self.qvel = self._state[:, 1 + model.nq : 1 + model.nq + model.nv]
        """``[N, nv]`` float64 view of the state."""
        self.sensors = np.zeros((num_envs, model.nsensordata))
        """``[N, nsensordata]`` float64; MuJoCo computes them before it integrates, so after a step they
        belong to the state one physics step earlier, after a reset to the reset state."""
        self.age = np.zeros(num_envs, dtype=np.int64)
        """``[N]`` environment steps since the episode began."""

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
        if self._rng is None or self._rollout is None:
            raise EnvironmentFault(f"{self.spec.name}: step() before reset() or after close()")
        actions, failed = self._finite(actions)
        failed |= ~self._simulate(self._rollout, self._control(actions))
        self.age += 1
        terminated = self._terminated() | failed
        truncated = (self.age >= self._limit) & ~failed
        self.nonfinite_resets += int(failed.sum())
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
        if self._offscreen is None or self._offscreen.size != (width, height):
            self._close_offscreen()
            self._offscreen = Offscreen(self.model, width, height)
        self._forward(env)
        return self._offscreen.draw(self._scratch, self.camera)

    def close(self) -> None:
        """Stop the threads and free the picture's context. May be called twice."""
        if self._rollout is not None:
            self._rollout.close()
            self._rollout = None
        self._close_offscreen()

    # The machinery.

    @property
    def _limit(self) -> int:
        assert self.spec.episode_limit is not None
        return self.spec.episode_limit

    def _finite(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the actions as float64, rows that are not finite set to zero, and which those are."""
        wanted = (self.spec.num_envs, self.spec.num_actions)
        if np.shape(actions) != wanted:
            raise EnvironmentFault(f"{self.spec.name}: actions have shape {np.shape(actions)}, not {wanted}")
        bad = ~np.isfinite(actions).all(axis=1)
        return np.where(bad[:, None], 0.0, actions).astype(np.float64, copy=False), bad

    def _simulate(self, rollout: Rollout, control: np.ndarray) -> np.ndarray:
        """Advance the physics with ``[N, nu]`` controls held; return ``[N]`` bool, which came through.

        The others are left in the model's default pose, where every number is finite.
        """
        self._control_trace[:] = control[:, None, :]
        rollout.rollout(
            self._models,
            self._datas,
            self._state,
            self._control_trace,
            skip_checks=True,
            nstep=self.frame_skip,
            state=self._trace,
            sensordata=self._sensor_trace,
        )
        after = self._trace[:, -1]
        # On a warning MuJoCo stops a simulation and repeats its last state, so its clock stops early.
        on_time = after[:, 0] > self._state[:, 0] + (self.frame_skip - 0.5) * self.model.opt.timestep
        healthy = on_time & (np.abs(after) < _SANE).all(axis=1)  # a comparison with NaN is false
        kept = ALL if healthy.all() else healthy
        self._state[kept] = after[kept]
        self.sensors[kept] = self._sensor_trace[kept, -1]
        if kept is not ALL:
            self._default_pose(np.flatnonzero(~healthy))
        return healthy

    def _default_pose(self, rows: np.ndarray) -> None:
        self._state[rows] = 0.0
        self.qpos[rows] = self.model.qpos0

    def _begin(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        """Start new episodes in ``rows``, with sensors that belong to the new states."""
        self._default_pose(rows)
        self._start(rows, rng)
        self.age[rows] = 0
        if self.model.nsensordata:
            for row in rows:
                self._forward(row)
                self.sensors[row] = self._scratch.sensordata

    def _forward(self, row: int) -> None:
        mujoco.mj_setState(self.model, self._scratch, self._state[row], _FULL)
        mujoco.mj_forward(self.model, self._scratch)

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
