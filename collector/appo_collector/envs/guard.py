"""Between the loop and an environment of whatever origin: its mistakes are told as its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from appo_collector.envs.contract import Observations, Step, VectorEnv
from appo_collector.envs.rules import Fault, ages_faults, reset_faults, step_faults
from appo_collector.envs.watchdog import Watchdog
from appo_common.errors import AppoError, EnvironmentFault

T = TypeVar("T")


class Guard:
    """Calls an environment and checks what it returns, shapes, dtypes and finite numbers (microseconds a step).

    Every fault is an :class:`EnvironmentFault` that names the environment, the step, the array, what was expected
    and what to do. A call that does not return is told by ``watchdog``.
    """

    def __init__(self, env: VectorEnv, watchdog: Watchdog | None = None) -> None:
        """Guard ``env``."""
        self.env = env
        self.spec = env.spec
        self._watchdog = watchdog or Watchdog()
        self._steps = 0

    def reset(self, seed: int) -> tuple[Observations, np.ndarray]:
        """Start new episodes; return the observations and the ages ``[N]`` the episodes begin with."""
        self._steps = 0
        obs = self._call("reset()", lambda: self.env.reset(seed))
        self._check("reset()", reset_faults(self.spec, obs))
        ages = self._call("ages()", self.env.ages)
        self._check("ages()", ages_faults(self.spec, ages))
        return obs, ages

    def step(self, actions: np.ndarray) -> Step:
        """Apply ``actions`` (``[N, A]`` float32) for one step."""
        self._steps += 1
        result = self._call("step()", lambda: self.env.step(actions))
        self._check("step()", step_faults(self.spec, result))
        return result

    def _call(self, what: str, call: Callable[[], T]) -> T:
        self._watchdog.begin(self.spec.name, what)
        try:
            return call()
        except AppoError:
            raise
        except (Exception, SystemExit) as error:  # an environment that leaves would take the collector with it
            words = " ".join(str(error).split())  # one line: the learner repeats it
            raise EnvironmentFault(f"{self._place(what)} raised {type(error).__name__}: {words}") from error
        finally:
            self._watchdog.end()

    def _check(self, what: str, faults: Iterator[Fault]) -> None:
        """Raise the first of the faults, if there is one."""
        for fault in faults:
            raise EnvironmentFault(f"{self._place(what)} {fault.text}: {fault.remedy}")

    def _place(self, what: str) -> str:
        return f"{self.spec.name}: {what}" + (f" {self._steps}" if what == "step()" else "")
