"""A trajectory as digests: enough to say where two of them part, and small for any number of steps."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from appo_collector.check.arrays import groups, named_arrays
from appo_collector.envs.contract import Observations
from appo_common.spec import EnvSpec


class Trajectory:
    """Digests of every array that a reset and the steps after it returned."""

    def __init__(self, obs: Observations) -> None:
        """Begin with what ``reset`` returned."""
        self._entries = [_digests(dict(groups("obs", obs)))]

    def add(self, step: object) -> None:
        """Append what a step returned."""
        self._entries.append(_digests(named_arrays(step)))

    def difference(self, other: Trajectory) -> str | None:
        """Say where ``other``, which may be shorter, first differs; None if nowhere."""
        for number, (mine, theirs) in enumerate(zip(self._entries, other._entries, strict=False)):
            for name in mine:
                if mine[name] != theirs.get(name):
                    return f"{name} of step {number}" if number else f"{name} of reset()"
        return None

    @property
    def observations_vary(self) -> bool:
        """Whether any group was ever different from before."""
        names = [name for name in self._entries[0] if name.startswith("obs")]
        return any(len({entry.get(name) for entry in self._entries}) > 1 for name in names)


def _digests(arrays: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: hashlib.blake2b(array.tobytes(), digest_size=8).digest() for name, array in arrays.items()}


class RandomActions:
    """The same sequence of ``[N, A]`` float32 actions every time, each as the environment accepts it."""

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        """Uniform within the bounds, or a clipped normal distribution where there are none."""
        self._spec = spec
        self._rng = np.random.default_rng(seed)
        low, high = (spec.action_low, spec.action_high) if spec.action_low else ([-np.inf], [np.inf])
        if spec.action_scaling == "rescale":
            low, high = [-1.0], [1.0]
        self._low = np.broadcast_to(np.array(low, dtype=np.float32), spec.num_actions)
        self._high = np.broadcast_to(np.array(high, dtype=np.float32), spec.num_actions)
        self._bounded = np.isfinite(self._low) & np.isfinite(self._high)

    def next(self) -> np.ndarray:
        """Return the next actions."""
        shape = (self._spec.num_envs, self._spec.num_actions)
        if self._spec.action_nvec:
            return self._rng.integers(0, self._spec.action_nvec, shape).astype(np.float32)
        low, high = np.where(self._bounded, self._low, 0.0), np.where(self._bounded, self._high, 1.0)
        uniform = self._rng.uniform(low, high, shape)
        normal = np.clip(self._rng.standard_normal(shape), -3.0, 3.0)
        chosen: Any = np.where(self._bounded, uniform, np.clip(normal, self._low, self._high))
        return chosen.astype(np.float32)

    def beyond(self) -> np.ndarray:
        """Return actions as a policy without bounds samples them, many of them beyond any bounds near 1."""
        shape = (self._spec.num_envs, self._spec.num_actions)
        return (3.0 * self._rng.standard_normal(shape)).astype(np.float32)
