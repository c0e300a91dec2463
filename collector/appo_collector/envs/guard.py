"""Between the loop and an environment of whatever origin: its mistakes are told as its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from appo_collector.envs.contract import Observations, Step, VectorEnv
from appo_common.errors import AppoError, EnvironmentFault

T = TypeVar("T")


class Guard:
    """Calls an environment and checks shapes and dtypes of what it returns (microseconds a step).

    Every fault is an :class:`EnvironmentFault` that names the environment, the array, and what was expected.
    """

    def __init__(self, env: VectorEnv) -> None:
        """Guard ``env``."""
        self.env = env
        self.spec = env.spec

    def reset(self, seed: int) -> tuple[Observations, np.ndarray]:
        """Start new episodes; return the observations and the ages ``[N]`` the episodes begin with."""
        obs = self._call("reset()", lambda: self.env.reset(seed))
        self._check_observations("reset()", obs, self.spec.num_envs)
        return obs, self._call("ages()", self.env.ages)

    def step(self, actions: np.ndarray) -> Step:
        """Apply ``actions`` (``[N, A]`` float32) for one step."""
        result = self._call("step()", lambda: self.env.step(actions))
        if not isinstance(result, Step):
            raise self._fault("step()", f"returned a {type(result).__name__}, not a Step")
        if not isinstance(result.info, dict):
            raise self._fault("step()", f"'info' is a {type(result.info).__name__}, expected a dict")
        self._check_observations("step(): obs", result.obs, self.spec.num_envs)
        for name in ("reward", "terminated", "truncated"):
            dtype = "float32" if name == "reward" else "bool"
            self._check("step()", name, getattr(result, name), (self.spec.num_envs,), dtype)
        ended = int(np.count_nonzero(result.terminated | result.truncated))
        if ended:
            self._check_observations("step(): final_obs", result.final_obs, ended)
        return result

    def _call(self, what: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except AppoError:
            raise
        except Exception as error:
            raise self._fault(what, f"raised {type(error).__name__}: {error}") from error

    def _check_observations(self, what: str, obs: Observations, rows: int) -> None:
        for name, group in self.spec.observations.items():
            self._check(what, name, obs.get(name), (rows, *group.shape), group.dtype)

    def _check(self, what: str, name: str, array: Any, shape: tuple[int, ...], dtype: str) -> None:
        if not isinstance(array, np.ndarray):
            raise self._fault(what, f"{name!r} is {_kind(array)}, expected an array {shape} {dtype}")
        if array.shape != shape or array.dtype != dtype:
            raise self._fault(what, f"{name!r} is {array.shape} {array.dtype}, expected {shape} {dtype}")

    def _fault(self, what: str, text: str) -> EnvironmentFault:
        return EnvironmentFault(f"{self.spec.name}: {what} {text}")


def _kind(value: object) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"
