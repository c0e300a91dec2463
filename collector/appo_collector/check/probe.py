"""Calls an environment for the checker, and reports what it raises and what it returns."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from appo_collector.check.activity import Activity
from appo_collector.check.report import Report
from appo_collector.envs.contract import Step, VectorEnv
from appo_collector.envs.rules import Fault, ages_faults, reset_faults, step_faults
from appo_common.errors import AppoError, EnvironmentFault
from appo_common.spec import EnvSpec

T = TypeVar("T")
CALLS, LEFT_ALONE = "calls", "actions left alone"
"""The rules that no call raises, and that none writes to the actions."""
_FRAMES = 4
_COLLECTOR = f"{os.sep}appo_collector{os.sep}"
"""In the path of every file of this package, adapters and native tasks included."""


class CannotGoOn(Exception):
    """A call has raised, which is reported: what would come after it cannot be checked."""


class Probe:
    """One environment, of which every call is announced before it is made."""

    def __init__(self, env: VectorEnv, report: Report, activity: Activity) -> None:
        """Nothing is called yet."""
        self.spec: EnvSpec = env.spec
        self._env = env
        self._report = report
        self._activity = activity
        self.steps = 0
        """Steps since the last reset."""
        self.seconds = 0.0
        """What the last step took inside the environment."""

    def reset(self, seed: int) -> Any:
        """Start new episodes; return whatever came back. Raises CannotGoOn."""
        self.steps = 0
        obs = self._call("reset()", lambda: self._env.reset(seed))
        self._tell("reset()", reset_faults(self.spec, obs))
        return obs

    def ages(self) -> np.ndarray:
        """Return ``[N]`` ages; zeros where the environment's own are unusable. Raises CannotGoOn."""
        ages = self._call("ages()", self._env.ages)
        faults = self._tell("ages()", ages_faults(self.spec, ages))
        return np.zeros(self.spec.num_envs, dtype=np.int64) if faults else ages

    def step(self, actions: np.ndarray) -> tuple[Any, Step | None]:
        """Apply ``[N, A]`` actions; return what came back, and the same as far as it is usable. Raises CannotGoOn."""
        self.steps += 1
        given = actions.tobytes()
        result = self._call(f"step() {self.steps}", lambda: self._env.step(actions))
        if actions.tobytes() != given:
            text = f"step {self.steps}: the actions were changed in place"
            self._report.violation(LEFT_ALONE, text, "work on a copy: actions = np.array(actions)")
        faults = self._tell(f"step {self.steps}", step_faults(self.spec, result))
        usable = _usable(self.spec, result)
        if faults and usable is not None:  # what a wrong dtype has hidden so far
            self._tell(f"step {self.steps}", step_faults(self.spec, usable))
        return result, usable

    def close(self) -> None:
        """Close the environment. Raises CannotGoOn."""
        self._call("close()", self._env.close)

    def _call(self, what: str, call: Callable[[], T]) -> T:
        self._activity.calls(what)
        started = time.perf_counter()
        try:
            return call()
        except EnvironmentFault as fault:
            self._report.violation(CALLS, f"{what} raised {fault}", "correct it")
            raise CannotGoOn from fault
        except AppoError:
            raise
        except (Exception, SystemExit) as error:
            words = " ".join(f"{type(error).__name__}: {error}".split())
            detail = "".join(traceback.format_list(_users_frames(error)))
            self._report.violation(CALLS, f"{what} raised {words}", "correct the last line below", detail)
            raise CannotGoOn from error
        finally:
            self.seconds = time.perf_counter() - started

    def _tell(self, place: str, faults: Iterator[Fault]) -> bool:
        """Report ``faults``; say whether there are any."""
        found = False
        for fault in faults:
            found = True
            self._report.violation(fault.rule, f"{place}: {fault.text}", fault.remedy)
        return found


def _users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the innermost frames of the user's own code; where there are none, of whatever raised."""
    frames = traceback.extract_tb(error.__traceback__)[2:]  # without those of this file
    own = [frame for frame in frames if "site-packages" not in frame.filename and _COLLECTOR not in frame.filename]
    return (own or frames)[-_FRAMES:]


def _usable(spec: EnvSpec, step: object) -> Step | None:
    """Return ``step`` with the dtypes of the contract and without final observations of a wrong shape.

    None where something is missing or has the wrong shape.
    """
    if not isinstance(step, Step) or not isinstance(step.obs, dict) or not isinstance(step.info, dict):
        return None
    rows = (spec.num_envs,)
    reward = _cast(step.reward, rows, "float32")
    terminated, truncated = _cast(step.terminated, rows, "bool"), _cast(step.truncated, rows, "bool")
    obs = _groups(spec, step.obs, spec.num_envs)
    if reward is None or terminated is None or truncated is None or len(obs) < len(spec.observations):
        return None
    final_obs = _groups(spec, step.final_obs, int(np.count_nonzero(terminated | truncated)))
    return Step(obs, reward, terminated, truncated, final_obs, step.info, _cast(step.valid, rows, "bool"))


def _groups(spec: EnvSpec, obs: object, rows: int) -> dict[str, np.ndarray]:
    """Return those of the groups of ``obs`` that have the right shape."""
    given = obs if isinstance(obs, dict) else {}
    cast = {
        name: _cast(given.get(name), (rows, *group.shape), group.dtype) for name, group in spec.observations.items()
    }
    return {name: array for name, array in cast.items() if array is not None}


def _cast(array: Any, shape: tuple[int, ...], dtype: str) -> np.ndarray | None:
    if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype.kind not in "biuf":
        return None
    with np.errstate(all="ignore"):  # that the numbers do not fit is reported elsewhere
        return array.astype(dtype, copy=False)
