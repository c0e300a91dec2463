"""What the running collector says of an environment's faults."""

from __future__ import annotations

import re
import timeit
from typing import Any

import broken_envs
import numpy as np
import pytest
from test_check import BROKEN

from appo_collector.envs.contract import Step
from appo_collector.envs.guard import Guard
from appo_common.errors import EnvironmentFault

UNSEEN = {
    *("LateFinalObs", "NoAutoreset", "InPlace", "FinalInPlace", "TermsOff"),
    *("GlobalRandom", "GlobalRandomAtEnds", "SeedsOnce", "LimitTooHigh", "LimitTooLow", "ChangesActions"),
}
"""Only the checker looks for these: a rollout holds them as they are."""
NEVER_MADE = {"NegativeN", "OtherN"}


def run(env: Any, steps: int = 60) -> None:
    guard = Guard(env)
    guard.reset(seed=3)
    for _ in range(steps):
        guard.step(np.zeros((env.count, 1), dtype=np.float32))


@pytest.mark.parametrize("name", [case[0] for case in BROKEN if case[0] not in UNSEEN | NEVER_MADE])
def test_a_fault_is_told_with_name_call_step_and_remedy(name: str) -> None:
    words = next(case[2] for case in BROKEN if case[0] == name)
    if name not in ("Raises", "Exits"):  # for the others: "step() 20 obs ..." here, "step 20: obs ..." there
        words = re.sub(r"^step (\S+):", r"step\(\) \1", words).replace(r"reset\(\):", r"reset\(\)").replace(" →", ":")
    with pytest.raises(EnvironmentFault) as caught:
        run(getattr(broken_envs, name)(4))
    text = str(caught.value)
    assert re.match(r"broken_envs:Good: (reset\(\)|step\(\) \d+) ", text), text
    assert re.search(words.replace(" → ", ""), text), text
    assert "\n" not in text, "one line: the learner repeats it"


@pytest.mark.parametrize("name", sorted(UNSEEN - {"LimitTooHigh", "LimitTooLow"}))
def test_what_does_no_harm_to_a_rollout_is_not_looked_for(name: str) -> None:
    run(getattr(broken_envs, name)(4))


def test_the_environments_with_a_fault_are_listed() -> None:
    class Many(broken_envs.Good):
        def told(self, step: Step) -> Step:
            step.reward[[1, 3, 4, 5, 6, 8, 9]] = np.nan
            return step

    with pytest.raises(
        EnvironmentFault, match=r"step\(\) 1 'reward' is nan in environments 1, 3, 4, 5, 6 and 2 more: "
    ):
        run(Many(10))


def test_a_final_observation_is_named_by_its_environment_not_by_its_row() -> None:
    class Last(broken_envs.Good):
        def told(self, step: Step) -> Step:
            if step.truncated[7] and not step.terminated[7]:
                step.final_obs["policy"][-1, 1] = np.inf
            return step

    env = Last(8)
    env.noise = lambda size, scale: np.zeros(size)  # type: ignore[method-assign]
    with pytest.raises(EnvironmentFault, match=r"step\(\) 10 final_obs 'policy' is inf in environment 7 \(the first"):
        run(env)


@pytest.mark.parametrize(
    ("ages", "words"),
    [
        ([1.0] * 4, r"ages\(\) returned a list, expected \(4,\) of whole numbers"),
        (np.zeros(4), r"ages\(\) returned \(4,\) float64"),
        (np.zeros(3, dtype=np.int64), r"ages\(\) returned \(3,\) int64"),
        (np.array([0, -2, 0, 0]), r"ages\(\) is -2 in environment 1"),
    ],
)
def test_ages_are_looked_at(ages: Any, words: str) -> None:
    env = broken_envs.Good(4)
    env.ages = lambda: ages  # type: ignore[method-assign]
    with pytest.raises(EnvironmentFault, match=words):
        run(env)


def test_a_step_that_only_resets_has_no_end() -> None:
    class Skips(broken_envs.Good):
        spec_changes = {"skips_steps": True}  # noqa: RUF012

        def told(self, step: Step) -> Step:
            return step._replace(valid=~step.truncated)

    with pytest.raises(EnvironmentFault, match=r"a step that is not valid ended environment"):
        run(Skips(4))


def test_guarding_costs_microseconds() -> None:
    env = broken_envs.Good(64)
    env.reset(0)
    step = env.step(np.zeros((64, 1), dtype=np.float32))
    guard = Guard(env)
    env.step = lambda actions: step  # type: ignore[method-assign]
    seconds = min(timeit.repeat(lambda: guard.step(np.zeros((64, 1))), number=200, repeat=5)) / 200
    assert seconds < 200e-6  # measured: 20 µs; a busy machine takes longer
