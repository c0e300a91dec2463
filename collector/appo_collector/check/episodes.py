"""Follows every episode from its first step to its last, and says where an end is not what the contract makes of it."""

from __future__ import annotations

import numpy as np

from appo_collector.check.report import Report
from appo_collector.envs.contract import Observations, Step
from appo_collector.envs.rules import EPISODES
from appo_common.spec import EnvSpec

FINAL_OBS, AUTORESET = "final observations", "autoreset"
_STREAK = 3
"""Ends in a row, after an episode that was longer, that show an environment which is not reset."""
_JUMP = 3.0
"""An observation that changes by so many times as much at an end as within an episode is one after a reset."""
_BEFORE = "take final_obs before the reset, and obs after it"
_SHOWS_LAST = "with spec.skips_steps, obs at an end is final_obs; the next step brings the first of the next episode"


class Episodes:
    """Lengths, returns and ends of the episodes of N environments.

    An episode ends at one step, and the next one begins within the same step, or, where ``spec.skips_steps``, within
    the step after it: there the two are compared.
    """

    def __init__(self, spec: EnvSpec, obs: Observations | None, ages: np.ndarray, report: Report) -> None:
        """Begin with the observations of ``reset``, or None where they cannot be used, and the ages ``[N]`` int."""
        self._spec, self._report = spec, report
        self._before = obs
        self._whole = ages == 0
        self._ages = ages.astype(np.int64)
        self._returns = np.zeros(spec.num_envs)
        self._streak = np.zeros(spec.num_envs, dtype=np.int64)
        self._length = np.zeros(spec.num_envs, dtype=np.int64)  # of the last episode
        self._due = np.zeros(spec.num_envs, dtype=bool)  # with skips_steps: the next step only resets
        self._terminated, self._as_earlier, self._complete = np.zeros((3, spec.num_envs), dtype=bool)  # of it
        self._ends = {kind: _Ends() for kind in ("terminated", "truncated")}
        self._moved = {"within": [0.0, 0], "at the end": [0.0, 0]}
        self.stuck = False
        """Whether an environment went on ending, because it is not reset."""
        self.lengths: list[int] = []
        """Of the whole episodes that ended."""
        self.returns: list[float] = []

    def step(self, number: int, step: Step) -> None:
        """Take the step with this number, counted from 1. Where ``spec.skips_steps``, it must have ``valid``."""
        valid = np.ones(self._spec.num_envs, dtype=bool) if step.valid is None else step.valid
        self._ages += valid
        self._returns += step.reward
        ended = step.terminated | step.truncated
        self._length[ended] = self._ages[ended]
        self._check_lengths(number, step, ended)
        if self._spec.skips_steps:
            self._check_skipped(number, step, valid, ended)
        began = self._due & ~valid if self._spec.skips_steps else ended
        same = self._unchanged(step, began)
        self._check_reset(number, same, ended, began)
        if self._before is not None:
            self._compare(step, np.flatnonzero(ended), began, same, self._before)
        shown = ended & self._whole
        self.lengths += self._ages[shown].tolist()
        self.returns += self._returns[shown].tolist()
        self._whole |= ended
        self._ages[ended], self._returns[ended] = 0, 0.0
        self._due = ended
        self._before = {name: array.copy() for name, array in step.obs.items()}

    def _check_lengths(self, number: int, step: Step, ended: np.ndarray) -> None:
        if (limit := self._spec.episode_limit) is None:
            return
        follows = self._streak > 0  # an environment that is not reset ends at once: said as such
        early = step.truncated & ~step.terminated & (self._ages < limit) & ~follows
        for env in np.flatnonzero(early)[:1]:
            text = f"step {number}: environment {env} was truncated after {self._ages[env]} steps of its episode"
            remedy = f"episode_limit = {limit} promises none before; correct it, or use None"
            if self._whole[env] and not self.lengths:
                remedy += "; if first episodes start in the middle, write ages()"
            self._report.violation(EPISODES, text, remedy)
        for env in np.flatnonzero(~ended & (self._ages == limit))[:1]:
            text = (
                f"step {number}: environment {env} goes on after {self._ages[env]} steps of its episode, "
                f"its episode_limit = {limit}"
            )
            self._report.violation(EPISODES, text, "truncate it, or correct the limit in the spec, or use None")

    def _check_skipped(self, number: int, step: Step, valid: np.ndarray, ended: np.ndarray) -> None:
        """With ``spec.skips_steps``: the step after an end is the one that only resets, and no other."""
        for env in np.flatnonzero(valid == self._due)[:1]:
            after = (
                "the step after its end is marked as valid" if valid[env] else "not valid, though no end came before"
            )
            remedy = "valid is False in the step after an end, which only resets, and nowhere else"
            self._report.violation(AUTORESET, f"step {number}: environment {env}: {after}", remedy)
        for env in np.flatnonzero(~valid & (step.reward != 0))[:1]:
            text = f"step {number}: a step that only resets environment {env} has a reward"
            self._report.violation(EPISODES, text, "it must be 0")
        shown = {name: step.obs[name][ended] for name in step.final_obs}
        for row in np.flatnonzero(~_rows_equal(step.final_obs, shown) & np.ones(ended.sum(), dtype=bool))[:1]:
            text = f"step {number}: final_obs is not obs in environment {np.flatnonzero(ended)[row]}"
            self._report.violation(FINAL_OBS, text, _SHOWS_LAST)

    def _unchanged(self, step: Step, began: np.ndarray) -> np.ndarray:
        """Return ``[N]`` bool: an episode begins here with the very observation that the last one ended with."""
        same = np.zeros_like(began)
        last = step.final_obs
        if self._spec.skips_steps:
            last = {name: array[began] for name, array in (self._before or {}).items()}
        same[began] = _rows_equal(last, {name: step.obs[name][began] for name in last})
        return same

    def _check_reset(self, number: int, same: np.ndarray, ended: np.ndarray, began: np.ndarray) -> None:
        again = np.where(same & ((self._streak > 0) | (self._length > 1)), self._streak + 1, 0)
        self._streak = np.where(began, again, np.where(ended, self._streak, 0))
        for env in np.flatnonzero(began & (self._streak > _STREAK))[:1]:
            self.stuck = True
            text = f"step {number}: environment {env} has ended at this and the {_STREAK} steps before"
            remedy = "start a new episode within step(), and return its first observation in obs"
            if self._spec.skips_steps:
                text = f"step {number}: environment {env} has ended at each of its last {_STREAK} valid steps"
                remedy = "the step after an end starts a new episode, and returns its first observation in obs"
            self._report.violation(AUTORESET, f"{text}: it is not reset", remedy)

    def _compare(
        self, step: Step, ended: np.ndarray, began: np.ndarray, same: np.ndarray, before: Observations
    ) -> None:
        """Compare final observations, of the ``[E]`` ends, with those before and after them."""
        self._terminated[ended] = step.terminated[ended]
        self._complete[ended] = len(step.final_obs) == len(self._spec.observations)
        self._as_earlier[ended] = _rows_equal(step.final_obs, {name: before[name][ended] for name in step.final_obs})
        for kind, rows in (("terminated", self._terminated), ("truncated", ~self._terminated)):
            shown = began & rows & self._complete
            self._ends[kind].add(same[shown], self._as_earlier[shown])
        change = np.zeros(self._spec.num_envs)
        with np.errstate(all="ignore"):  # what is not finite is reported elsewhere
            for name, array in step.obs.items():
                difference = array.astype(np.float64) - before[name]
                change += np.abs(difference).mean(axis=tuple(range(1, array.ndim)))
        for place, rows in (("within", ~began), ("at the end", began)):
            self._moved[place][0] += float(np.nansum(change[rows]))
            self._moved[place][1] += int(rows.sum())

    def finish(self, observations_vary: bool) -> None:
        """Say what only all ends together can tell."""
        if not self.finals_seen and not self.lengths:
            remedy = "ends, final observations and autoreset are not checked; raise --steps"
            self._report.warning(EPISODES, "no episode ended", remedy)
        if self.stuck or not observations_vary:
            return
        if where := self._where([ends.as_now for ends in self._ends.values()]):
            self._tell_unchanged(where)
        if where := self._where([ends.as_earlier for ends in self._ends.values()]):
            remedy = "better the observation after the last step, taken before the reset"
            self._report.warning(FINAL_OBS, f"final_obs equals obs of the step before {where}", remedy)

    def _tell_unchanged(self, where: str) -> None:
        if self._spec.skips_steps:
            text = f"the first observation of an episode equals final_obs of the one before {where}"
            self._report.warning(AUTORESET, text, f"right if an episode ends where the next one starts; {_SHOWS_LAST}")
            return
        text = f"final_obs equals obs of the same step {where}"
        if self._jumps:
            self._report.violation(FINAL_OBS, text, f"it is that of the next episode; {_BEFORE}")
        else:
            self._report.warning(FINAL_OBS, text, f"right if an episode ends where the next one starts; else {_BEFORE}")

    def _where(self, equal: list[int]) -> str:
        """Say for which kinds of ends all final observations are among the ``equal`` ones; empty if for none."""
        kinds = [kind for (kind, ends), same in zip(self._ends.items(), equal, strict=True) if same == ends.count > 0]
        count = sum(self._ends[kind].count for kind in kinds)
        return f"at each of the {count} ends ({', '.join(kinds)})" if kinds else ""

    @property
    def finals_seen(self) -> int:
        """Ends whose final observations could be compared with others."""
        return sum(ends.count for ends in self._ends.values())

    @property
    def _jumps(self) -> bool:
        """Whether observations change so much at the ends that they must be those after a reset."""
        within, at_end = (total / max(1, count) for total, count in self._moved.values())
        return at_end > _JUMP * within


class _Ends:
    """Ends of one kind, and how many of their final observations equal another observation."""

    def __init__(self) -> None:
        self.count = self.as_now = self.as_earlier = 0

    def add(self, now: np.ndarray, earlier: np.ndarray) -> None:
        self.count += now.size
        self.as_now += int(now.sum())
        self.as_earlier += int(earlier.sum())


def _rows_equal(left: Observations, right: Observations) -> np.ndarray:
    """Return ``[E]`` bool: all groups of the row are the same, nan too. True, for all rows, where there is no group."""
    equal = [
        ((left[name] == array) | ((left[name] != left[name]) & (array != array))).all(axis=tuple(range(1, array.ndim)))
        for name, array in right.items()
    ]
    return np.logical_and.reduce(equal or [np.True_])
