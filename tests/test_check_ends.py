"""What the checker says of steps that only reset, and of episodes that end where they start."""

from __future__ import annotations

import importlib.util
import re

import pytest
from test_check import check

BROKEN = [
    ("NextStepUnmarked", "autoreset", r"step \d+: environment \d: the step after its end is marked as valid"),
    ("NextStepOtherFinal", "final observations", r"step \d+: final_obs is not obs in environment \d"),
    ("NextStepNotReset", "autoreset", r"step \d+: environment \d has ended at each of its last 3 valid steps"),
]


@pytest.mark.parametrize(("name", "rule", "words"), BROKEN, ids=[case[0] for case in BROKEN])
def test_skipped_steps_that_are_not_as_promised_are_named(name: str, rule: str, words: str) -> None:
    report, lines = check(f"ending_envs:{name}")
    assert {finding.rule for finding in report.violations} == {rule}, lines
    assert any(re.match(words, finding.text) and finding.remedy for finding in report.violations), lines
    assert not [line for line in lines if line.startswith(f"✓ {rule}")]


@pytest.mark.skipif(importlib.util.find_spec("gymnasium") is None, reason="needs gymnasium")
def test_steps_that_only_reset_are_no_violation() -> None:
    for name, options in (("ending_envs:NextStep", {}), ("adapter_envs:whole", {"steps": 200})):
        report, lines = check(name, **options)
        assert report.close() == 0, lines
        assert report.warnings == []
        assert any(line.startswith("✓ final observations") for line in lines), lines
        assert any(line.startswith("✓ autoreset") for line in lines), lines


@pytest.mark.parametrize(
    ("name", "rule", "words"),
    [
        ("LapTrack", "final observations", "final_obs equals obs of the same step at each of the"),
        ("NextStepLap", "autoreset", "the first observation of an episode equals final_obs of the one before at each"),
    ],
)
def test_an_environment_that_ends_where_it_starts_is_warned_only(name: str, rule: str, words: str) -> None:
    report, lines = check(f"ending_envs:{name}")
    assert report.close() == 0, lines
    warning = next(each for each in report.warnings if each.rule == rule)
    assert warning.text.startswith(words)
    assert "right if an episode ends where the next one starts" in warning.remedy
