"""Broken environments in running collectors: a clear message, or no harm; and the learner goes on."""

from __future__ import annotations

import re
import signal
import time
from typing import Any

import pytest
import torch
from helpers_e2e import Launcher, Learner, Program, make_config

from appo_learner.checkpoint import load

GROUPS = {"obs_groups": {"actor": ["policy"], "critic": ["policy", "aim"]}}
NETWORK = {"heartbeat_interval_s": 0.5, "heartbeat_timeout_s": 3.0}


def config(name: str, **sections: Any) -> dict[str, Any]:
    train = GROUPS | sections.pop("train", {})
    return make_config(env={"name": f"broken_envs:{name}"}, train=train, **sections)


FAULTS = {
    "Raises": r"broken_envs:Good: step\(\) 20 raised RuntimeError: the gripper is on fire",
    "NanObs": r"broken_envs:Good: step\(\) 20 obs 'policy' is nan in environment 1",
}
"""Told by the collector, and by the learner that it says goodbye to in the same words."""
MANY_START_S = 100.0
"""For as many processes to start at once, on two busy cores."""
HANGS = {"HangsInStep": r"step\(\)", "HangsInReset": r"reset\(\)"}
Fleet = tuple[Learner, dict[str, Program]]


@pytest.fixture(scope="module")
def fleet(shared_launch: Launcher) -> Fleet:
    """A learner with a good collector of its own, and one broken collector of each kind."""
    learner = shared_launch.learner(config("as_told", network=NETWORK), "--local-collectors", "1")
    learner.reaches(1)
    names = (*HANGS, "HangsInC", *FAULTS, "Segfaults", "Vanishes")
    return learner, {name: shared_launch.collector(learner.address, variables={"E2E_BROKEN": name}) for name in names}


@pytest.mark.parametrize("name", FAULTS)
def test_a_collector_whose_environment_breaks_says_why_and_so_does_the_learner(fleet: Fleet, name: str) -> None:
    learner, broken = fleet
    assert broken[name].exit_code(MANY_START_S) == 1, broken[name].text
    broken[name].says(f"ERROR +{FAULTS[name]}", 1.0)
    learner.says(rf"{broken[name].name}\) left: {FAULTS[name]}", 10.0)
    learner.advances()


def test_a_crash_leaves_the_place_in_the_log_and_the_learner_goes_on(fleet: Fleet) -> None:
    learner, broken = fleet
    assert broken["Segfaults"].exit_code(MANY_START_S) == -signal.SIGSEGV
    broken["Segfaults"].says("Fatal Python error: Segmentation fault", 1.0)
    broken["Segfaults"].says(r'File ".*broken_envs\.py", line \d+ in told', 1.0)
    assert broken["Vanishes"].exit_code() == 0
    for name in ("Segfaults", "Vanishes"):
        learner.says(rf"{broken[name].name}\) (was silent for|is out of reach)", 20.0)
    learner.advances()


def test_an_environment_that_hangs_is_told_with_its_place_and_nobody_waits_for_it(fleet: Fleet) -> None:
    learner, hanging = fleet
    for name, call in HANGS.items():
        hanging[name].says(rf"WARNING +broken_envs:Good: {call} has not returned for 1\d s; it is at", MANY_START_S)
        hanging[name].says(r'File ".*broken_envs\.py", line \d+, in (told|reset)', 1.0)
    hanging["HangsInC"].says(r'File ".*broken_envs\.py", line \d+ in told')
    learner.advances()
    for name in HANGS:
        hanging[name].signal(signal.SIGTERM)
    for name in HANGS:
        assert hanging[name].exit_code(4.0) == 1
        assert "is asked to stop: it leaves without waiting for it" in hanging[name].text
    _ends_on_ctrl_c(learner)


def test_ctrl_c_ends_a_run_whose_only_environments_hang(launch: Launcher) -> None:
    learners = [launch.learner(config(name), "--local-collectors", "1") for name in ("HangsInStep", "HangsInC")]
    for learner in learners:
        learner.reaches(1)
        _ends_on_ctrl_c(learner)
    assert launch.alive() == []


def test_an_environment_that_cannot_close_does_not_change_how_its_run_ends(launch: Launcher) -> None:
    settings = config("Good") | {"env": {"name": "ending_envs:CloseRaises", "num_envs": 4}}
    learner = launch.learner(settings, "--max-iterations", "2")
    collector = launch.collector(learner.address)
    assert collector.exit_code(MANY_START_S) == 0, collector.text
    assert "WARNING broken_envs:Good: close() raised RuntimeError: the window is gone\nTraceback" in collector.text
    collector.says("finished: ", 1.0)
    assert learner.exit_code() == 0, learner.text


def test_nobody_waits_for_an_environment_that_does_not_close(launch: Launcher) -> None:
    settings = config("Good") | {"env": {"name": "ending_envs:CloseHangs", "num_envs": 4}}
    learner = launch.learner(settings)
    asked, told = launch.collector(learner.address), launch.collector(learner.address)
    for collector in (asked, told):
        collector.says("built 4 × ", MANY_START_S)
    learner.advances()
    asked.signal(signal.SIGTERM)
    assert asked.exit_code(4.0) == 1, asked.text
    learner.signal(signal.SIGINT)
    assert learner.exit_code(10.0) == 0, learner.text
    assert told.exit_code(20.0) == 1, told.text
    for collector, why in ((asked, "is asked to stop"), (told, "has nothing else to do")):
        words = rf"close\(\) has not returned for \d+ s, and this process {why}: .* at\n +File \".*ending_envs\.py\""
        assert re.search(words, collector.text), collector.text


def test_a_learner_whose_only_collector_crashes_names_how(launch: Launcher) -> None:
    segfault, vanished = (launch.learner(config(name), "--local-collectors", "1") for name in ("Segfaults", "Vanishes"))
    assert segfault.exit_code() == 1
    assert "local collector 0 ended with exit code -11" in segfault.text
    assert "killed by signal 11, Segmentation fault" in segfault.text
    assert vanished.exit_code() == 1
    assert "local collector 0 ended with exit code 0" in vanished.text
    assert "every local collector has ended" in vanished.text


def test_arrays_that_are_written_again_do_not_change_what_is_learnt(launch: Launcher) -> None:
    """In place or not: synchronous runs of the same seed end with the same parameters, bit for bit."""
    sections = {"learner": {"mode": "sync"}, "train": {"max_iterations": 4}}
    names = ("Good", "EverythingInPlace")
    learners = [launch.learner(config(name, **sections), "--local-collectors", "1") for name in names]
    for learner in learners:
        assert learner.exit_code(MANY_START_S) == 0, learner.text
    good, in_place = (load(learner.checkpoint(4)).state["actor_state_dict"] for learner in learners)
    for key, value in good.items():
        assert torch.equal(value, in_place[key]), key


def _ends_on_ctrl_c(learner: Learner) -> None:
    started = time.monotonic()
    learner.signal(signal.SIGINT)
    assert learner.exit_code(10.0) == 0, learner.text
    assert time.monotonic() - started < 5.0
    assert "Traceback" not in learner.text
