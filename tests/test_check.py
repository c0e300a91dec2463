"""What the checker says of environments that break the contract in one way each, and of good ones."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import broken_envs
import numpy as np
import pytest

from appo_collector.check.checker import Checker, CheckOptions
from appo_collector.check.report import Report
from appo_common.errors import ConfigError
from appo_common.spec import EnvSpec, ObservationGroup

ROOT = Path(__file__).resolve().parent.parent


def check(name: str, **options: Any) -> tuple[Report, list[str]]:
    """Check in this process; return the report and its lines."""
    lines: list[str] = []
    report = Report(lambda line: lines.append(re.sub(r"\x1b\[\d*m", "", line)))
    Checker(CheckOptions(name, **({"steps": 60} | options)), report).run()
    return report, lines


BROKEN: list[tuple[str, str, str]] = [
    (
        "DoubleObs",
        "shapes and dtypes",
        r"reset\(\): obs 'policy' is \(4, 3\) float64, expected \(4, 3\) float32 → .*astype",
    ),
    ("WrongAfterReset", "shapes and dtypes", r"reset\(\): obs 'policy' is \(4, 4\) float32, expected \(4, 3\) float32"),
    ("WrongAtStep", "shapes and dtypes", r"step 20: obs 'policy' is \(3, 3\) float32, expected \(4, 3\) float32"),
    ("NanObs", "finite numbers", r"step 20: obs 'policy' is nan in environment 1 \(the first is entry \[2\]\)"),
    ("InfReward", "finite numbers", r"step 20: 'reward' is inf in environment 0 → "),
    ("NanFinalObs", "finite numbers", r"step 2\d: final_obs 'policy' is nan in environment"),
    (
        "DoubleReward",
        "shapes and dtypes",
        r"step 1: 'reward' is \(4,\) float64, expected \(4,\) float32 → .*np.float32",
    ),
    ("NoFinalObs", "shapes and dtypes", r"step \d+: final_obs 'policy' is missing, .*taken before the reset"),
    (
        "LateFinalObs",
        "final observations",
        r"final_obs equals obs of the same step at each of the \d+ ends \(terminated, truncated\)",
    ),
    (
        "NoAutoreset",
        "autoreset",
        r"step \d+: environment \d has ended at this and the 3 steps before: it is not reset → start",
    ),
    ("InPlace", "fresh arrays", r"obs 'policy' changed in place: what reset\(\) returned was written again later"),
    ("FinalInPlace", "fresh arrays", r"final_obs 'policy' changed in place: what step \d+ returned"),
    ("NegativeN", "builds", r"broken_envs:NegativeN could not be made: ValidationError: num_envs: .*greater than 0"),
    ("OtherN", "builds", r"broken_envs:OtherN: asked for 4 environments, its spec says 3"),
    ("IntFlags", "shapes and dtypes", r"step 1: 'terminated' is \(4,\) int64, expected \(4,\) bool → .*np.bool_"),
    ("PlainTuple", "shapes and dtypes", r"step 1: returned a tuple, expected a Step → return .*contract\.Step\("),
    ("MissingGroup", "shapes and dtypes", r"reset\(\): obs 'aim' is missing, expected an array \(4, 1\) float32"),
    ("Reversed", "shapes and dtypes", r"obs 'policy' has negative strides, .*np.ascontiguousarray"),
    ("TermsOff", "reward terms", r"step 1: in environment 0 the terms sum to \d\.\d+, the reward is 1\.\d+"),
    ("TermMissing", "reward terms", r"step 1: info\['terms'\] lacks 'alive', which the spec's reward_terms promise"),
    ("GlobalRandom", "seeding", r"obs 'policy' of reset\(\) differs between two environments .*never from a global"),
    ("GlobalRandomAtEnds", "seeding", r"obs 'policy' of step \d+ differs between two environments"),
    ("SeedsOnce", "seeding", r"obs 'policy' of step 1 differs when the same environment is reset with the same seed"),
    ("Raises", "calls", r"step\(\) 20 raised RuntimeError: the gripper is on fire → "),
    ("Exits", "calls", r"step\(\) 20 raised SystemExit: 0"),
    ("LimitTooHigh", "ends of episodes", r"environment \d was truncated after 10 steps .*episode_limit = 25 promises"),
    ("LimitTooLow", "ends of episodes", r"environment \d goes on after 5 steps .*episode_limit = 5 → truncate it, or"),
    ("ChangesActions", "actions left alone", r"step 1: the actions were changed in place → work on a copy"),
    ("ValidMissing", "shapes and dtypes", r"step 1: 'valid' is missing, which the spec's skips_steps promises"),
]


@pytest.mark.parametrize(("name", "rule", "words"), BROKEN, ids=[case[0] for case in BROKEN])
def test_each_broken_environment_is_named_for_what_it_breaks(name: str, rule: str, words: str) -> None:
    report, lines = check(f"broken_envs:{name}")
    assert report.close() == 1
    matching = [line for line in lines if re.match(rf"✗ {rule} .*{words}", line)]
    assert matching, lines
    assert {finding.rule for finding in report.violations} == {rule}, "one thing is broken, one thing is named"
    assert not [line for line in lines if line.startswith(f"✓ {rule}")]
    assert all(finding.remedy for finding in report.violations)


def test_a_good_environment_has_no_violation() -> None:
    report, lines = check("broken_envs:Good")
    assert (report.violations, report.warnings, report.close()) == ([], [], 0)
    verified = {line[2:25].strip() for line in lines if line.startswith("✓")}
    assert verified == {
        *("builds", "spec", "shapes and dtypes", "finite numbers", "fresh arrays", "actions left alone"),
        *("reward terms", "ends of episodes", "final observations", "autoreset", "actions beyond bounds"),
        *("calls", "seeding"),
    }
    speed = next(line for line in lines if line[2:].startswith("speed"))
    assert re.search(r"[\d,]+ env steps/s, \d+\.\d+ ms a step \(environments: 4, threads: 1\)", speed)
    assert lines[-1] == "no violation"


def test_the_episodes_are_counted_as_they_are() -> None:
    """A step behind every fourth is an end: 25 of 100 steps, in each of 4 environments."""
    _, lines = check("e2e_envs:Drift", steps=100, overrides={"reach": 100.0, "limit": 4})
    assert any("ends of episodes       100 episodes; mean length 4.0, mean return" in line for line in lines), lines


@pytest.mark.parametrize("name", ["mujoco:cartpole-swingup", "mujoco:quadruped-velocity"])
def test_the_bundled_tasks_keep_the_contract(name: str) -> None:
    for stagger in (False, True):
        report, lines = check(name, overrides={"episode_seconds": 0.6, "stagger": stagger}, num_envs=3)
        assert report.close() == 0, lines
        assert report.warnings == []


def test_the_example_of_the_documentation_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/environments.md").read_text()
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "PointMass" in block)
    (tmp_path / "point_mass.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    report, lines = check("point_mass:PointMass", steps=150, num_envs=5)
    assert report.close() == 0, lines
    assert report.warnings == []
    sys.modules.pop("point_mass")


@pytest.mark.skipif(importlib.util.find_spec("gymnasium") is None, reason="needs gymnasium")
def test_what_an_adapter_converts_is_no_violation() -> None:
    report, lines = check("gymnasium:Pendulum-v1", steps=250)
    assert report.close() == 0, lines
    assert report.warnings == []


class UnevenBounds(broken_envs.Good):
    """Its spec was made without validation."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.spec = EnvSpec.model_construct(**(dict(self.spec) | {"action_low": [-1.0, -1.0], "action_high": [1.0]}))


def test_a_spec_that_pydantic_has_not_seen_is_validated() -> None:
    report, _ = check("test_check:UnevenBounds")
    (found,) = report.violations
    assert found.rule == "spec"
    assert re.search("its spec is wrong: .*action_low has 2 entries for num_actions = 1", found.text)


def test_pictures_are_checked_like_any_other_observation() -> None:
    report, lines = check("broken_envs:Pictures")
    assert report.close() == 0, lines
    assert any("eye [4, 6, 3] uint8" in line for line in lines)


def test_what_may_be_meant_is_a_warning_and_no_violation() -> None:
    report, lines = check("broken_envs:SameForEverySeed")
    assert report.close() == 0
    assert [finding.rule for finding in report.warnings] == ["seeding"]
    assert "the same with the seed of another collector" in report.warnings[0].text
    assert not [line for line in lines if line.startswith("✓ seeding")]
    assert lines[-1] == "no violation, 1 warning"


def test_the_observation_before_the_last_step_is_a_warning_since_rsl_rl_offers_no_better_one() -> None:
    report, _ = check("broken_envs:EarlyFinalObs")
    assert report.close() == 0
    (warning,) = report.warnings
    assert re.match(r"final_obs equals obs of the step before at each of the \d+ ends", warning.text)
    assert "taken before the reset" in warning.remedy


def test_without_an_episode_limit_an_episode_may_be_cut_short_at_any_step() -> None:
    report, lines = check("broken_envs:NoLimit")
    assert report.close() == 0, lines


def test_a_check_in_which_no_episode_ends_says_what_it_could_not_see() -> None:
    report, lines = check("e2e_envs:Drift", steps=20, overrides={"reach": 100.0, "limit": 21})
    assert [finding.text for finding in report.warnings] == ["no episode ended"]
    assert "raise --steps" in report.warnings[0].remedy
    assert not [line for line in lines if line.startswith(("✓ autoreset", "✓ final"))]


def test_an_environment_without_clipping_is_told_what_a_policy_sends() -> None:
    report, lines = check("broken_envs:RefusesBeyond", action_scaling="none")
    assert [finding.rule for finding in report.violations] == ["calls", "actions beyond bounds"]
    assert "AssertionError: action out of range" in report.violations[0].text
    assert any("broken_envs.py" in line for line in lines), "the line of the environment that raised"
    for scaling in ("clip", "rescale", None):
        report, lines = check("broken_envs:RefusesBeyond", action_scaling=scaling)
        assert report.close() == 0, lines


def test_random_actions_stay_within_what_the_environment_accepts() -> None:
    from appo_collector.check.trajectory import RandomActions

    base = {"name": "x", "observations": {"policy": ObservationGroup(shape=[1])}, "num_envs": 500}
    bounded = EnvSpec(**base, num_actions=3, action_low=[-2.0, 0.0, -np.inf], action_high=[1.0, np.inf, np.inf])
    actions = RandomActions(bounded, 1).next()
    assert (actions.shape, actions.dtype) == ((500, 3), np.float32)
    assert (actions.min(0) >= [-2.0, 0.0, -3.0]).all()
    assert (actions.max(0) <= [1.0, 3.0, 3.0]).all()
    assert actions[:, 0].min() < -1.9
    assert actions[:, 2].min() < -1.5
    rescaled = RandomActions(bounded.model_copy(update={"action_scaling": "rescale"}), 1).next()
    assert np.abs(rescaled).max() <= 1.0
    choices = RandomActions(EnvSpec(**base, num_actions=2, action_nvec=[2, 5]), 1).next()
    assert [sorted(set(column)) for column in choices.T.tolist()] == [[0, 1], [0, 1, 2, 3, 4]]
    assert (RandomActions(bounded, 1).next() == actions).all()


def test_a_wrong_name_or_override_is_wrong_usage_and_no_violation() -> None:
    with pytest.raises(ConfigError, match=r"mujoco:nope.* is unknown"):
        check("mujoco:nope")
    with pytest.raises(ConfigError, match=r"no module 'no_such_module' is in .*PYTHONPATH"):
        check("no_such_module:make")
    with pytest.raises(ConfigError, match=r"env\.overrides\.speed"):
        check("mujoco:cartpole-swingup", overrides={"speed": 3})


def test_a_module_that_is_no_python_is_named_with_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "typo_env.py").write_text("import numpy\n\ndef make(num_envs:\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"SyntaxError: .*typo_env\.py, line 3"):
        check("typo_env:make")
