"""Gymnasium's spaces in terms of the contract: observation groups, and actions in rows of float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from appo_collector.envs.adapters.image_layout import channels_first, channels_last
from appo_collector.envs.contract import Observations
from appo_common.errors import ConfigError, EnvironmentFault
from appo_common.spec import ObservationGroup

SINGLE = "policy"
"""The group that the observation becomes where the space is no Dict."""


@dataclass(frozen=True)
class _Reader:
    """One group: the shape that the space promises, and how a batch ``[N, *shape]`` becomes the group's array."""

    shape: tuple[int, ...]
    group: ObservationGroup
    convert: Callable[[np.ndarray], np.ndarray]


class ObservationCodec:
    """Turns a batch of a space's observations into observation groups, always in fresh arrays.

    A Dict gives one group per key, any other space the group ``policy``:

    * Box of three dimensions: an image, channels last; uint8 stays uint8, anything else becomes float32.
      Channels that come first are moved to the end, see :func:`channels_first`.
    * uint8 Box of two dimensions: an image with one channel, ``[H, W, 1]``.
    * any other Box: float32, flattened to one dimension.
    * Discrete: one-hot float32. MultiDiscrete: the one-hots side by side. MultiBinary: float32.
    """

    def __init__(self, space: spaces.Space[Any], name: str) -> None:
        """Read ``space``, the observation space of one environment of ``name``.

        Raises ConfigError for a space that has no place in a group, with a wrapper that helps.
        """
        self._name = name
        self._is_dict = isinstance(space, spaces.Dict)
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {SINGLE: space}
        if not parts:
            raise ConfigError(f"{name}: its observation space is an empty Dict; there is nothing to learn from")
        self._readers = {key: _reader(part, _place(name, key, self._is_dict)) for key, part in parts.items()}
        """By the space's own keys, which need not be words."""
        self.groups = {str(key): reader.group for key, reader in self._readers.items()}
        if len(self.groups) < len(parts):
            raise ConfigError(f"{name}: two of its observations {list(parts)} have the same name as words; rename one")

    def encode(self, batch: Any) -> Observations:
        """Return the groups ``[N, *group]`` of ``batch``: arrays ``[N, *space shape]``, in a mapping for a Dict.

        Raises EnvironmentFault for an observation that does not fit the space.
        """
        arrays = batch if self._is_dict else {SINGLE: batch}
        if not isinstance(arrays, Mapping):
            raise EnvironmentFault(f"{self._name}: its space is a Dict, the observation a {type(batch).__name__}")
        return {str(key): self._read(key, reader, arrays.get(key)) for key, reader in self._readers.items()}

    def stack(self, observations: Sequence[Any]) -> Any:
        """Return the batch of separate ``observations`` of one environment each; there is at least one."""
        if not self._is_dict:
            return np.stack([np.asarray(one) for one in observations])
        return {key: np.stack([np.asarray(one[key]) for one in observations]) for key in self._readers}

    def _read(self, key: object, reader: _Reader, given: Any) -> np.ndarray:
        if given is None:
            raise EnvironmentFault(f"{self._name}: the observation lacks {key!r}, which its space promises")
        array = np.asarray(given)
        if array.shape[1:] != reader.shape or array.ndim == 0:
            raise EnvironmentFault(
                f"{self._name}: observation {key!r} is {array.shape}, its space says (num_envs, *{reader.shape})"
            )
        if reader.group.dtype == "uint8" and array.dtype != np.uint8:  # a float picture would become black
            raise EnvironmentFault(f"{self._name}: observation {key!r} is {array.dtype}, its space says uint8")
        try:
            return reader.convert(array)
        except ValueError as error:
            raise EnvironmentFault(f"{self._name}: observation {key!r}: {error}") from error


def rows_of(batch: Any, rows: np.ndarray) -> Any:
    """Return the given rows of a batch: an array ``[N, ...]``, or a mapping of such."""
    if isinstance(batch, Mapping):
        return {key: np.asarray(value)[rows] for key, value in batch.items()}
    return np.asarray(batch)[rows]


def _reader(space: spaces.Space[Any], place: str) -> _Reader:
    if isinstance(space, spaces.Box):
        return _box(space, place)
    if isinstance(space, spaces.Discrete):
        return _one_hot(np.array([space.n]), np.array([space.start]), ())
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot(space.nvec.ravel(), space.start.ravel(), space.shape)
    if isinstance(space, spaces.MultiBinary):
        return _flat(space.shape)
    if isinstance(space, spaces.Dict):
        remedy = "flatten it with gymnasium.wrappers.FlattenObservation, or leave it out with FilterObservation"
    elif isinstance(space, spaces.Tuple):
        remedy = "flatten it with gymnasium.wrappers.FlattenObservation, or name its parts in a Dict"
    else:
        remedy = "turn it into a Box with gymnasium.wrappers.TransformObservation"
    kind = "a nested Dict" if isinstance(space, spaces.Dict) else f"a {type(space).__name__}"
    raise ConfigError(f"{place} is {kind} ({space}), which is not supported; {remedy} in a package.module:factory")


def _box(space: spaces.Box, place: str) -> _Reader:
    shape = space.shape
    if 0 in shape or len(shape) > 3:
        problem = "is empty" if 0 in shape else "has more than three dimensions"
        raise ConfigError(
            f"{place} {problem} (shape {shape}); leave it out with gymnasium.wrappers.FilterObservation or reshape it "
            "with gymnasium.wrappers.ReshapeObservation, in a package.module:factory"
        )
    dtype = "uint8" if space.dtype == np.uint8 else "float32"
    if len(shape) == 2 and dtype == "uint8":
        return _Reader(shape, _group((*shape, 1), dtype), lambda batch: np.array(batch[..., None]))
    if len(shape) < 3:
        return _flat(shape)
    if channels_first(shape):
        turned = _group((*shape[1:], shape[0]), dtype)
        return _Reader(shape, turned, lambda batch: channels_last(batch).astype(dtype, copy=False))
    return _Reader(shape, _group(shape, dtype), lambda batch: np.array(batch, dtype))


def _flat(shape: tuple[int, ...]) -> _Reader:
    size = int(np.prod(shape))
    return _Reader(shape, _group((size,)), lambda batch: np.array(batch, dtype=np.float32).reshape(len(batch), size))


def _one_hot(nvec: np.ndarray, start: np.ndarray, shape: tuple[int, ...]) -> _Reader:
    width = int(nvec.sum())
    first_columns = np.cumsum(nvec) - nvec

    def convert(batch: np.ndarray) -> np.ndarray:
        choices = batch.reshape(len(batch), nvec.size).astype(np.int64) - start
        if (choices < 0).any() or (choices >= nvec).any():
            raise ValueError(f"{batch.tolist()} lies outside of its space")
        hot = np.zeros((len(batch), width), dtype=np.float32)
        np.put_along_axis(hot, choices + first_columns, 1.0, axis=1)
        return hot

    return _Reader(shape, _group((width,)), convert)


def _group(shape: tuple[int, ...], dtype: str = "float32") -> ObservationGroup:
    return ObservationGroup(shape=list(shape), dtype=dtype)


def _place(name: str, key: object, is_dict: bool) -> str:
    return f"{name}: observation {key!r}" if is_dict else f"{name}: its observation space"


class ActionCodec:
    """Turns the contract's actions, ``[N, A]`` float32, into a batch of a space's own."""

    def __init__(self, space: spaces.Space[Any], name: str) -> None:
        """Read ``space``, the action space of one environment of ``name``.

        Raises ConfigError for a space that is neither a Box of floats nor Discrete, MultiDiscrete or MultiBinary.
        """
        self.nvec: list[int] = []
        """Number of choices of each component; empty where actions are continuous."""
        self.low: list[float] = []
        self.high: list[float] = []
        self._shape = () if space.shape is None else tuple(space.shape)
        self._dtype = space.dtype
        self._start = np.zeros((), dtype=np.int64)
        if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and 0 not in space.shape:
            if np.isfinite([space.low, space.high]).any():
                self.low, self.high = (bound.ravel().astype(float).tolist() for bound in (space.low, space.high))
        elif isinstance(space, spaces.Discrete):
            self.nvec, self._start = [int(space.n)], np.asarray(space.start)
        elif isinstance(space, spaces.MultiDiscrete):
            self.nvec, self._start = space.nvec.ravel().tolist(), space.start
        elif isinstance(space, spaces.MultiBinary):
            self.nvec = [2] * int(np.prod(space.shape))
        else:
            raise ConfigError(
                f"{name}: its action space is {space}; only a Box of floats, Discrete, MultiDiscrete and MultiBinary "
                "are supported; turn it into one with gymnasium.wrappers.TransformAction, in a package.module:factory"
            )
        self.num_actions = len(self.nvec) or int(np.prod(self._shape))

    def spec_fields(self) -> dict[str, Any]:
        """Return what :class:`EnvSpec` says of the actions."""
        bounds = {"action_low": self.low, "action_high": self.high}
        return {"num_actions": self.num_actions, "action_nvec": self.nvec, **bounds}

    def decode(self, actions: np.ndarray) -> np.ndarray:
        """Return ``[N, *space shape]`` in the space's dtype, a fresh array; ``actions`` is ``[N, A]`` float32."""
        shaped = actions.reshape(len(actions), *self._shape)
        if not self.nvec:
            return shaped.astype(self._dtype)
        return (shaped.astype(np.int64) + self._start).astype(self._dtype)
