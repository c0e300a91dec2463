"""EnvPool's environments in the contract."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from appo_collector.envs.contract import Observations, Step, VectorEnv
from appo_collector.envs.extras import require
from appo_common.errors import ConfigError, EnvironmentFault
from appo_common.spec import EnvSpec

NO_LIMIT = 2**31 - 1
"""EnvPool's ``max_episode_steps`` where there is none."""
_RENDERING = ("from_pixels", "render_mode", "render_width", "render_height", "render_camera_id")
_OURS = {
    **dict.fromkeys(("seed", "env_seed"), "train.seed"),
    **dict.fromkeys(("num_threads", "thread_affinity_offset"), "--threads"),
    **dict.fromkeys(("batch_size", "max_num_players", "gym_reset_return_info", "base_path"), "the adapter"),
}
"""Options that are set elsewhere, and where."""


def from_id(id: str, num_envs: int, threads: int, overrides: dict[str, Any]) -> EnvPoolEnv:
    """Make ``num_envs`` environments of EnvPool's ``id``, stepped by ``threads`` threads.

    ``overrides`` are options of the environment, such as ``max_episode_steps``.
    Raises ConfigError where EnvPool is not installed, for an unknown id, and for options that it refuses.
    """
    name = f"envpool:{id}"
    return EnvPoolEnv(require("envpool", "envpool", name), name, num_envs, threads, overrides)


class EnvPoolEnv(VectorEnv):
    """N environments of one pool, all stepped together.

    EnvPool resets in the step after an episode's end. Here the environments that ended are reset at once by their
    numbers, which replaces that reset, so that every step is a real one.
    """

    def __init__(self, envpool: Any, name: str, num_envs: int, threads: int, overrides: dict[str, Any]) -> None:
        """Read the spec of ``name`` from the module ``envpool``.

        The pool itself is made by :meth:`reset`, since EnvPool takes seeds only then.
        """
        from appo_collector.envs.adapters.gymnasium_spaces import ActionCodec, ObservationCodec

        self._id = name.partition(":")[2]
        self._envpool = envpool
        self._options = {**overrides, "num_envs": num_envs, "num_threads": threads}
        described = _described(envpool, name, overrides)
        with _no_bounds_warnings():
            self._observations = ObservationCodec(described.gymnasium_observation_space, name)
            self._actions = ActionCodec(described.gymnasium_action_space, name)
        config = described.config._asdict()
        limit = config.get("max_episode_steps", NO_LIMIT)
        self._pool: Any = None
        self.spec = EnvSpec(
            name=name,
            observations=self._observations.groups,
            **self._actions.spec_fields(),
            num_envs=num_envs,
            episode_limit=limit if 0 < limit < NO_LIMIT else None,
            step_dt=config.get("ctrl_dt", 1.0),
        )

    def reset(self, seed: int) -> Observations:
        """Start new episodes in a new pool; every environment gets a seed of its own, made from ``seed``."""
        self.close()
        seeds = np.random.SeedSequence(seed).generate_state(self.spec.num_envs) >> 1  # EnvPool's are int32
        with _no_bounds_warnings():
            self._pool = self._envpool.make(self._id, env_type="gymnasium", seed=seeds.tolist(), **self._options)
            return self._observations.encode(self._pool.reset()[0])

    def step(self, actions: np.ndarray) -> Step:
        """Apply ``[N, A]`` float32 actions; see :class:`VectorEnv`."""
        if actions.shape != (self.spec.num_envs, self.spec.num_actions):  # EnvPool would end the process
            raise EnvironmentFault(f"{self.spec.name}: actions are {actions.shape}, expected [num_envs, num_actions]")
        batch, rewards, terminated, truncated, infos = self._pool.step(self._actions.decode(actions))
        obs = self._observations.encode(batch)
        reward, truncated = np.array(rewards, dtype=np.float32), np.array(truncated)
        # A fall in the very step of the time limit: EnvPool calls it truncated, and some tasks tell the rest in infos.
        fell = truncated & np.asarray(infos.get("terminated", False), dtype=bool)
        terminated = terminated | fell
        ended = np.flatnonzero(terminated | truncated)
        final = {key: array[ended] for key, array in obs.items()}
        if ended.size:
            first, its_infos = self._pool.reset(ended.astype(np.int32))
            for key, array in self._observations.encode(first).items():
                obs[key][its_infos["env_id"]] = array
        return Step(obs, reward, terminated, truncated, final, {})

    def render(self, env: int = 0, width: int = 640, height: int = 480) -> np.ndarray:
        """Return a uint8 RGB picture ``[height, width, 3]`` in the size that the options say.

        Raises EnvironmentFault unless the option ``render_mode`` is ``rgb_array``.
        """
        if self._options.get("render_mode") != "rgb_array":
            raise EnvironmentFault(
                f"{self.spec.name}: cannot render as it was made; set env.overrides.render_mode: rgb_array"
            )
        return np.array(self._pool.render(np.array([env], dtype=np.int32))[0], dtype=np.uint8)

    def close(self) -> None:
        """Drop the pool, which ends its threads; a second call does nothing."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


@contextmanager
def _no_bounds_warnings() -> Iterator[None]:
    """Let EnvPool build its spaces without Gymnasium's warning that their bounds lose digits in float32."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered by casting", category=UserWarning)
        yield


def _described(envpool: Any, name: str, overrides: dict[str, Any]) -> Any:
    """Return EnvPool's spec of the environment.

    Raises ConfigError for an unknown id or option, and for an option that belongs elsewhere.
    """
    id = name.partition(":")[2]
    known_ids = envpool.list_all_envs()
    if id not in known_ids:
        raise ConfigError(f"env.name: {name!r} is unknown to EnvPool; {_nearest(id, known_ids)}")
    known = {*envpool.make_spec(id).config._fields, *_RENDERING} - {*_OURS, "num_envs"}
    for key in overrides:
        if key in _OURS:
            raise ConfigError(f"env.overrides.{key}: it belongs to {_OURS[key]}, not to overrides")
        if key not in known:
            raise ConfigError(
                f"env.overrides.{key}: unknown option of {name}; {_nearest(str(key), sorted(known))} "
                f"Allowed: {', '.join(sorted(known))}"
            )
    try:
        return envpool.make_spec(id, **overrides)
    except (TypeError, ValueError, AssertionError) as error:
        words = (str(error) or type(error).__name__).partition(" The following")[0]  # a page of types in C++
        raise ConfigError(f"env.overrides: {name} refused {overrides}: {words}") from error


def _nearest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    return f"nearest: {', '.join(near)}." if near else "nothing is near to it."
