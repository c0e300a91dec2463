"""One environment of Gymnasium's single interface, checked: its mistakes are told in its own name.

Imports Gymnasium, which is an optional package: import this module only where Gymnasium is known to be there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces

from appo_common.errors import EnvironmentFault

# What nearly every environment returns needs no closer look. The rest costs a microsecond more.
_NUMBERS = frozenset({float, int, np.float64, np.float32})
_FLAGS = frozenset({bool, np.bool_})
_RETURNS = {"reset": ("obs", "info"), "step": ("obs", "reward", "terminated", "truncated", "info")}
_NO_KEYWORD = re.compile(r"reset\(\) got an unexpected keyword argument '(seed|options)'")


class _Part(NamedTuple):
    """What a space promises of an observation, or of one key of it."""

    what: str
    space: spaces.Space[Any]
    shape: tuple[int, ...] | None
    dtype: np.dtype[Any] | None


class Single(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Checks what ``reset`` and ``step`` return, and copies the observation.

    The copy keeps environments right that write all their observations into one array, or that share one array
    among them. ``reset`` passes on no options where there are none: of our mask, SyncVectorEnv leaves an empty dict.
    Both raise EnvironmentFault for a result that is not what Gymnasium's interface and the spaces say.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: int, name: str) -> None:
        """Wrap ``env``, the environment number ``index`` of those that the configuration calls ``name``.

        Raises EnvironmentFault for what is no environment of Gymnasium's, or one without its spaces.
        """
        self._place = f"{name}: environment {index}"
        if not isinstance(env, gymnasium.Env):
            raise EnvironmentFault(
                f"{self._place} is a {type(env).__name__}; every call of the factory must return a gymnasium.Env"
            )
        super().__init__(env)
        for attribute in ("observation_space", "action_space"):
            space = getattr(env, attribute, None)
            if not isinstance(space, spaces.Space):
                raise EnvironmentFault(
                    f"{self._place}: its {attribute} is {space!r}; set self.{attribute} to a space of "
                    "gymnasium.spaces in __init__()"
                )
        space = env.observation_space
        self._whole = _part("observation", space)
        self._keys = {}
        if isinstance(space, spaces.Dict):
            self._keys = {key: _part(f"observation {key!r}", part) for key, part in space.spaces.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new episode; return the observation, in a fresh array, and the info."""
        try:
            result = self.env.reset(seed=seed, options=options or None)
        except Exception as error:
            if _NO_KEYWORD.search(str(error)):
                raise self._fault(
                    f"{error}: reset() must take seed and options as keywords: "
                    "def reset(self, *, seed=None, options=None)"
                ) from error
            self._explain("reset", error)
        if not isinstance(result, (tuple, list)) or len(result) != 2 or not isinstance(result[1], dict):
            self._refuse("reset", result)
        return self._copy("reset", result[0]), result[1]

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Apply ``action``; return observation, in a fresh array, reward, terminated, truncated and info."""
        try:
            result = self.env.step(action)
        except Exception as error:
            self._explain("step", error)
        if not isinstance(result, (tuple, list)) or len(result) != 5 or not isinstance(result[4], dict):
            self._refuse("step", result)
        obs, reward, terminated, truncated, info = result
        if type(reward) not in _NUMBERS:
            reward = float(self._scalar("reward", reward, "biuf", "one number, such as float(reward)"))
        if type(terminated) not in _FLAGS:
            terminated = bool(self._scalar("terminated", terminated, "biu", "one bool, such as bool(terminated)"))
        if type(truncated) not in _FLAGS:
            truncated = bool(self._scalar("truncated", truncated, "biu", "one bool, such as bool(truncated)"))
        return self._copy("step", obs), reward, terminated, truncated, info

    def _copy(self, call: str, obs: Any) -> Any:
        """Return a copy of ``obs``: an array, or a dict of arrays with the keys of the space."""
        if not self._keys:
            return self._array(call, self._whole, obs)
        if not isinstance(obs, Mapping):
            raise self._fault(f"{call}() returned a {_kind(obs)} as observation; its space is a Dict: return a dict")
        for key in self._keys:
            if key not in obs:
                raise self._fault(
                    f"the observation of {call}() lacks {key!r}: it has the keys {list(obs)}, its space says "
                    f"{list(self._keys)}; return all of these, or correct observation_space"
                )
        return {key: self._array(call, part, obs[key]) for key, part in self._keys.items()}

    def _array(self, call: str, part: _Part, given: Any) -> np.ndarray:
        try:
            array = np.array(given)
        except (TypeError, ValueError) as error:
            raise self._fault(f"{part.what} of {call}() is no array: {error}; {_remedy(part)}") from error
        if array.shape != part.shape or (array.dtype != part.dtype and not _castable(array, part)):
            raise self._fault(
                f"{part.what} of {call}() is a {_kind(given)} of shape {array.shape} and dtype {array.dtype}, its "
                f"space says shape {part.shape} and dtype {part.dtype} ({part.space}); {_remedy(part)}"
            )
        return array

    def _scalar(self, what: str, given: Any, kinds: str, remedy: str) -> Any:
        """Return ``given``, the array or tensor of one number that it may be; refuse anything else."""
        array = np.asarray(given) if np.shape(given) == () else None
        if array is None or array.dtype.kind not in kinds:
            raise self._fault(f"{what} of step() is {given!r}, a {_kind(given)}; return {remedy}")
        return array

    def _explain(self, call: str, error: Exception) -> NoReturn:
        """Raise ``error``: as the environment's mistake where one of Gymnasium's wrappers stumbled over a result."""
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        module = last.tb_frame.f_globals.get("__name__", "") if last is not None else ""
        if module.startswith(("gymnasium.wrappers.", "gymnasium.utils.passive_env_checker")):
            words = " ".join(str(error).split())
            raise self._fault(
                f"one of Gymnasium's wrappers cannot use what {call}() returned: {words}; "
                f"Gymnasium's are {', '.join(_RETURNS[call])}"
            ) from error
        raise error

    def _refuse(self, call: str, result: Any) -> NoReturn:
        """Raise the fault of a result that has the wrong number of values, or no dict at its end."""
        expected = _RETURNS[call]
        given = f"a {_kind(result)}"
        if isinstance(result, (tuple, list)):
            given = f"{len(result)} values"
            if len(result) == len(expected):
                given = f"a {_kind(result[-1])} as info, which is a dict"
        raise self._fault(f"{call}() returned {given}; Gymnasium's are {', '.join(expected)}")

    def _fault(self, text: str) -> EnvironmentFault:
        return EnvironmentFault(f"{self._place}: {text}")


def _part(what: str, space: spaces.Space[Any]) -> _Part:
    return _Part(what, space, space.shape, space.dtype)


def _castable(array: np.ndarray, part: _Part) -> bool:
    """Say whether the dtype fits, as it does from int to float; strings, objects and floats for uint8 do not."""
    return part.dtype is not None and np.can_cast(array.dtype, part.dtype, casting="same_kind")


def _remedy(part: _Part) -> str:
    return f"return np.asarray(…, dtype=np.{part.dtype}) of shape {part.shape}, or correct observation_space"


def _kind(value: Any) -> str:
    """Name the type of ``value``, and the shape of an array."""
    shape = getattr(value, "shape", None)
    return type(value).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")
