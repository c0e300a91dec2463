"""Gymnasium's environments in the contract, whatever their autoreset mode."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from appo_collector.envs.contract import Observations, Step, VectorEnv
from appo_collector.envs.extras import require
from appo_common.errors import ConfigError, EnvironmentFault
from appo_common.spec import EnvSpec

# Gymnasium is an optional package: what needs it imports it when called, after from_id has asked for it by name.
if TYPE_CHECKING:
    import gymnasium

logger = logging.getLogger(__name__)

MODES = ("NEXT_STEP", "SAME_STEP", "DISABLED")
"""Gymnasium's autoreset modes: when an environment that ended is reset."""
SUSPICIOUS_ENDS = 5
"""Ends in a row whose last observation equals the next episode's first one before the log tells of it."""


def from_id(id: str, num_envs: int, threads: int, overrides: dict[str, Any]) -> GymnasiumEnv:
    """Make ``num_envs`` environments of a registered ``id``, stepped one after the other in this process.

    ``overrides`` are keyword arguments of ``gymnasium.make``. ``threads`` is not used: Gymnasium's environments hold
    Python's lock, and more collectors use more cores.
    Raises ConfigError for an unknown id, a missing package, and overrides that the environment refuses.
    """
    name = f"gymnasium:{id}"
    make = partial(_make, require("gymnasium", "gymnasium", name), id, overrides)
    first = make()
    return vectorise([lambda: first, *[make] * (num_envs - 1)], name, episode_limit=_episode_limit(first.spec))


def vectorise(
    makers: Sequence[Callable[[], gymnasium.Env[Any, Any]]], name: str, *, episode_limit: int | None = None
) -> GymnasiumEnv:
    """Step one environment of each of the ``makers`` after the other.

    Autoreset is left to the adapter: Gymnasium's own SAME_STEP would reset inside of the step that ended an episode.
    ``episode_limit``: steps after which Gymnasium's TimeLimit truncates an episode; None if there is none.
    Raises EnvironmentFault for makers that return one environment twice, and for what :class:`Single` refuses.
    """
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    from appo_collector.envs.adapters.gymnasium_single import Single

    singles = [Single(maker(), index, name) for index, maker in enumerate(makers)]
    if len({id(single.unwrapped) for single in singles}) < len(singles):
        raise EnvironmentFault(
            f"{name}: the factory returned the same environment twice; it must return a new one at each call"
        )
    made = [lambda single=single: single for single in singles]
    return GymnasiumEnv(SyncVectorEnv(made, autoreset_mode=AutoresetMode.DISABLED), name, episode_limit)


class GymnasiumEnv(VectorEnv):
    """N environments of a ``gymnasium.vector.VectorEnv``.

    * SAME_STEP: the final observations are those of ``infos["final_obs"]``.
    * DISABLED: the environments that ended are reset at once with ``reset(options={"reset_mask": ...})``.
    * NEXT_STEP of SyncVectorEnv and AsyncVectorEnv: the same, which also cancels the reset they have planned.
    * NEXT_STEP of any other, wrapped ones included, as nothing promises that they can be reset in part: the step
      that only resets an environment is kept, and marked as not valid (``spec.skips_steps``).
    """

    def __init__(self, vec: gymnasium.vector.VectorEnv, name: str, episode_limit: int | None = None) -> None:
        """Adopt ``vec``, which this object closes from now on.

        Raises ConfigError for a space that is not supported, or a pool of EnvPool's, and EnvironmentFault for an
        autoreset mode that is unknown.
        """
        from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

        from appo_collector.envs.adapters.gymnasium_spaces import ActionCodec, ObservationCodec

        if any(cls.__module__.startswith("envpool.") for cls in type(vec).__mro__):
            raise ConfigError(
                f"{name}: EnvPool takes a seed only when a pool is made, so that this one would show every collector "
                "the same; name it in the configuration as env.name: envpool:<id>"
            )
        self._vec = vec
        self._observations = ObservationCodec(vec.single_observation_space, name)
        self._actions = ActionCodec(vec.single_action_space, name)
        self._mode = autoreset_mode(vec, name)
        self._own_seeds = isinstance(vec.unwrapped, (SyncVectorEnv, AsyncVectorEnv))
        """Whether every environment can be given a seed of its own."""
        if self._mode == "NEXT_STEP" and isinstance(vec, (SyncVectorEnv, AsyncVectorEnv)):
            self._mode = "DISABLED"
        self._resetting = np.zeros(vec.num_envs, dtype=bool)
        """``[N]``: the next step of NEXT_STEP only resets these."""
        self._same_ends = 0
        """SAME_STEP: the latest ends in a row whose final observation was the first one of the next episode."""
        self._closed = False
        self.spec = EnvSpec(
            name=name,
            observations=self._observations.groups,
            **self._actions.spec_fields(),
            num_envs=vec.num_envs,
            episode_limit=episode_limit,
            step_dt=_step_dt(vec),
            skips_steps=self._mode == "NEXT_STEP",
        )

    def reset(self, seed: int) -> Observations:
        """Start new episodes; every environment gets a seed of its own, made from ``seed``."""
        seeds = np.random.SeedSequence(seed).generate_state(self.spec.num_envs).tolist()
        self._resetting[:] = False
        batch, _ = self._vec.reset(seed=seeds if self._own_seeds else seeds[0])
        return self._observations.encode(batch)

    def step(self, actions: np.ndarray) -> Step:
        """Apply ``[N, A]`` float32 actions; see :class:`VectorEnv`."""
        batch, rewards, terminations, truncations, infos = self._vec.step(self._actions.decode(actions))
        obs = self._observations.encode(batch)  # copied before a reset can write into the same memory
        reward = np.array(rewards, dtype=np.float32)
        terminated, truncated = np.array(terminations, dtype=bool), np.array(truncations, dtype=bool)
        ended = np.flatnonzero(terminated | truncated)
        final = {key: array[ended] for key, array in obs.items()}
        valid = None
        if self._mode == "NEXT_STEP":
            valid = self._skip_resets(reward, terminated | truncated)
        elif ended.size and self._mode == "SAME_STEP":
            final = self._final_of_same_step(infos, ended)
            self._suspect_one_array({key: array[ended] for key, array in obs.items()}, final)
        elif ended.size:
            self._restart(obs, ended)
        return Step(obs, reward, terminated, truncated, final, {}, valid)

    def _skip_resets(self, reward: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Return ``[N]`` bool: where this step was no reset; remember which the next step resets."""
        resetting, self._resetting = self._resetting, ended
        rewarded = reward != 0 if self._vec.unwrapped is self._vec else np.zeros_like(ended)  # a wrapper may add to it
        if (ended | rewarded)[resetting].any():
            raise self._fault(
                "says autoreset mode NEXT_STEP, but the step after the end of an episode had a reward or ended the "
                "next one, so it was no reset; correct metadata['autoreset_mode']"
            )
        reward[resetting] = 0.0
        return ~resetting

    def _final_of_same_step(self, infos: dict[str, Any], ended: np.ndarray) -> Observations:
        from appo_collector.envs.adapters.gymnasium_spaces import rows_of

        final: Any = infos.get("final_obs")
        separate = isinstance(final, (list, tuple)) or (isinstance(final, np.ndarray) and final.dtype == object)
        given = np.broadcast_to(infos.get("_final_obs", final is not None), self.spec.num_envs)
        if not given[ended].all() or (separate and any(final[env] is None for env in ended)):
            raise self._fault(
                f"says autoreset mode SAME_STEP, but an episode ended in one of the environments {ended.tolist()} "
                "without its last observation in infos['final_obs']; correct metadata['autoreset_mode'], or give it"
            )
        batch = self._observations.stack([final[env] for env in ended]) if separate else rows_of(final, ended)
        return self._observations.encode(batch)

    def _suspect_one_array(self, first: Observations, final: Observations) -> None:
        """Warn, once, where resets seem to write over final observations: both are ``[E, *group]`` each."""
        if self._same_ends >= SUSPICIOUS_ENDS:
            return
        same = all(np.array_equal(final[key], array, equal_nan=True) for key, array in first.items())
        self._same_ends = self._same_ends + len(next(iter(first.values()))) if same else 0
        if self._same_ends >= SUSPICIOUS_ENDS:
            logger.warning(
                "%s: the last observations of episodes equal the first ones of the next; if its environments write "
                "into one array, return copies, or use DISABLED or NEXT_STEP",
                self.spec.name,
            )

    def _restart(self, obs: Observations, ended: np.ndarray) -> None:
        """Reset the environments that ended and put their first observations into ``obs``."""
        mask = np.zeros(self.spec.num_envs, dtype=bool)
        mask[ended] = True
        batch, _ = self._vec.reset(options={"reset_mask": mask.copy()})
        for key, array in self._observations.encode(batch).items():
            if not self._own_seeds and not np.array_equal(array[~mask], obs[key][~mask], equal_nan=True):
                raise self._fault(
                    f"reset(options={{'reset_mask': ...}}) of the environments {ended.tolist()} changed {key!r} of "
                    "others, whose episodes go on; it must reset only those, and repeat what the others showed last"
                )
            obs[key][mask] = array[mask]

    def render(self, env: int = 0, width: int = 640, height: int = 480) -> np.ndarray:
        """Return a uint8 RGB picture ``[height, width, 3]`` in the environment's own size.

        Raises EnvironmentFault unless it was made with ``render_mode="rgb_array"``.
        """
        if self._vec.render_mode != "rgb_array":
            raise self._fault("cannot render as it was made; set env.overrides.render_mode: rgb_array")
        # One environment of a SyncVectorEnv can be drawn alone; others draw all of them.
        alone = getattr(self._vec.unwrapped, "envs", None)
        picture: Any = alone[env].render() if alone else tuple(self._vec.render() or ())[env]
        return np.array(picture, dtype=np.uint8)

    def close(self) -> None:
        """Close the environments; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._vec.close()

    def _fault(self, text: str) -> EnvironmentFault:
        return EnvironmentFault(f"{self.spec.name}: {text}")


def autoreset_mode(vec: gymnasium.vector.VectorEnv, name: str) -> str:
    """Return which of :data:`MODES` the metadata of ``vec`` says.

    Raises EnvironmentFault where it says none, or one that is unknown: guessing would spoil every end of an episode.
    """
    said = vec.metadata.get("autoreset_mode")
    word = str(getattr(said, "value", said)).replace("_", "").upper()  # NextStep and NEXT_STEP alike
    for mode in MODES:
        if word == mode.replace("_", ""):
            return mode
    raise EnvironmentFault(
        f"{name}: metadata['autoreset_mode'] is {said!r}; set it to one of gymnasium.vector.AutoresetMode: "
        f"{', '.join(MODES)}"
    )


def _make(gymnasium: Any, id: str, overrides: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """Make one environment; say what the user can change where that fails."""
    try:
        with _quiet_scene(gymnasium, id):
            return gymnasium.make(id, **overrides)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise ConfigError(f"env.name: 'gymnasium:{id}' needs a package that is not installed: {error}") from error
    except gymnasium.error.Error as error:
        near = difflib.get_close_matches(id, gymnasium.registry, n=3, cutoff=0.6)
        hint = f" Nearest known ids: {', '.join(near)}." if near else ""
        raise ConfigError(
            f"env.name: 'gymnasium:{id}' cannot be made.{hint} Gymnasium says: {error} "
            "(gymnasium:<module>:<id> imports the module that registers the id first)"
        ) from error
    except (TypeError, ValueError) as error:
        if not overrides:
            raise
        raise ConfigError(
            f"env.overrides: 'gymnasium:{id}' refused {overrides}: {error}{_nearest(gymnasium, id, overrides)}"
        ) from error


def _nearest(gymnasium: Any, id: str, overrides: dict[str, Any]) -> str:
    """Name the accepted keyword nearest to each override that is none; empty where there is no such pair.

    Accepted are those of ``gymnasium.make``, the environment's class, and its base classes, which it may hand its own
    ``**kwargs``.
    """
    spec = gymnasium.spec(id)
    creator = spec.entry_point
    if isinstance(creator, str):
        creator = gymnasium.envs.registration.load_env_creator(creator)
    classes = creator.__mro__ if inspect.isclass(creator) else ()
    inits = [init for cls in classes if inspect.isfunction(init := vars(cls).get("__init__"))]
    sources = [gymnasium.make, *(inits or [creator])]
    accepted = {key for source in sources for key in inspect.signature(source).parameters} | set(spec.kwargs)
    accepted -= {"self", "id", "args", "kwargs"}
    near = {key: difflib.get_close_matches(key, accepted, n=1) for key in overrides if key not in accepted}
    return "".join(f"; did you mean {found[0]} for {key}?" for key, found in near.items() if found)


def _quiet_scene(gymnasium: Any, id: str) -> AbstractContextManager[Any]:
    """Keep what MuJoCo says of Gymnasium's own scenes from the terminal and from a file in the working directory."""
    spec = gymnasium.registry.get(id)
    if spec is None or "mujoco" not in str(spec.entry_point):
        return nullcontext()
    from appo_collector.envs.native.mujoco_warnings import warnings_kept

    return warnings_kept()


def _episode_limit(spec: Any) -> int | None:
    """Return the steps of Gymnasium's TimeLimit where nothing else truncates, as is known of its own environments."""
    own = spec is not None and str(spec.entry_point).startswith("gymnasium.envs.")
    return spec.max_episode_steps if own else None


def _step_dt(vec: gymnasium.vector.VectorEnv) -> float:
    """Return the seconds per step that the environment itself names as ``dt``, or 1."""
    envs = getattr(vec.unwrapped, "envs", None)
    dt: Any = getattr(envs[0].unwrapped if envs else vec.unwrapped, "dt", None)
    is_number = isinstance(dt, (int, float, np.integer, np.floating)) and not isinstance(dt, bool)
    return float(dt) if is_number and 0 < dt < np.inf else 1.0
