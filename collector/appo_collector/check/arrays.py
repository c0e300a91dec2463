"""What is looked at in single arrays: whether they stay as they were returned, and whether the terms add up."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from appo_collector.check.report import Report
from appo_collector.envs.contract import Observations, Step
from appo_collector.envs.rules import TERMS
from appo_common.spec import EnvSpec

FRESH = "fresh arrays"
_KEPT_STEPS = 8
"""Steps after which an array is compared with what it held; enough for environments that alternate buffers."""


class Ownership:
    """Keeps what was returned, beside a copy, and compares the two some steps later."""

    def __init__(self, report: Report) -> None:
        """Nothing is kept yet."""
        self._report = report
        self._kept: deque[tuple[str, dict[str, np.ndarray], dict[str, bytes]]] = deque()

    def keep(self, place: str, arrays: dict[str, np.ndarray]) -> None:
        """Take ``arrays`` by name, returned at ``place``."""
        self._kept.append((place, arrays, {name: array.tobytes() for name, array in arrays.items()}))
        if len(self._kept) > _KEPT_STEPS:
            self._compare()

    def finish(self) -> None:
        """Compare what is still kept."""
        while self._kept:
            self._compare()

    def _compare(self) -> None:
        place, arrays, held = self._kept.popleft()
        for name, array in arrays.items():
            if array.tobytes() != held[name]:
                text = f"{name} changed in place: what {place} returned was written again later"
                self._report.violation(FRESH, text, "return a copy (array.copy()), or a new array every time")


def named_arrays(step: object) -> dict[str, np.ndarray]:
    """Return every array of a step by name, e.g. ``final_obs 'policy'``, whatever its shape; none of no Step."""
    if not isinstance(step, Step):
        return {}
    found = dict(groups("obs", step.obs)) | dict(groups("final_obs", step.final_obs))
    for name in ("reward", "terminated", "truncated", "valid"):
        if isinstance(array := getattr(step, name), np.ndarray):
            found[name] = array
    return found


def groups(what: str, obs: Observations) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of ``obs`` by name, e.g. ``obs 'policy'``."""
    for name, array in (obs if isinstance(obs, dict) else {}).items():
        if isinstance(array, np.ndarray):
            yield f"{what} {name!r}", array


def check_terms(spec: EnvSpec, number: int, step: Step, report: Report) -> None:
    """Report reward terms that do not sum to the reward, up to the rounding of float32."""
    terms = step.info.get("terms", {})
    wanted = (spec.num_envs,)
    if not isinstance(terms, dict):
        return
    if not spec.reward_terms:
        if terms:
            names = ", ".join(map(str, terms))
            report.warning(TERMS, f"info['terms'] has {names}, the spec's reward_terms none", "name them to see them")
        return
    if any(name not in terms or np.shape(terms[name]) != wanted for name in spec.reward_terms):
        return  # reported as such
    parts = np.array([terms[name] for name in spec.reward_terms], dtype=np.float64)
    with np.errstate(invalid="ignore"):  # what is not finite is reported as such
        off = np.abs(parts.sum(axis=0) - step.reward)
    allowed = 1e-5 * np.abs(parts).sum(axis=0) + 1e-6
    if (wrong := np.flatnonzero(off > allowed)).size:
        env = int(wrong[0])
        text = (
            f"step {number}: in environment {env} the terms sum to {parts[:, env].sum():.6g}, "
            f"the reward is {step.reward[env]:.6g}"
        )
        report.violation(TERMS, text, "return the terms already weighted, all of them, for the same state")
