"""How processes join, leave, die and come back."""

from __future__ import annotations

import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers_e2e import START_S, Launcher, Learner, assert_books_balance, make_config, poll, three_free_ports

BEATS = {"heartbeat_interval_s": 0.2, "heartbeat_timeout_s": 4.0}
CALM = {"overrides": {"step_s": 0.008}}
"""Environments that leave the processor to what is about to start or stop."""


@pytest.fixture(scope="module")
def running(shared_launch: Launcher) -> Learner:
    """A learner that trains with one collector for as long as the tests of this file go on."""
    learner = shared_launch.learner(make_config(env={"name": "e2e_envs:drift_of_this_host"} | CALM, network=BEATS))
    shared_launch.collector(learner.address)
    learner.reaches(1)
    return learner


def assert_continues(lines: list[dict[str, Any]]) -> None:
    """Check that counters go on over a resume: no update twice, none left out, nothing started anew."""
    assert [line["iteration"] for line in lines] == list(range(1, len(lines) + 1))
    for before, after in pairwise(lines):
        for counter in ("env_steps", "rollouts_trained"):
            assert after[counter] > before[counter], counter
        assert after["env_steps_collected"] >= before["env_steps_collected"]
        # The KL divergence of these updates is tiny: the adaptive learning rate only ever rises.
        assert after["learning_rate"] >= before["learning_rate"], after["iteration"]
        assert after["lag_max"] <= 3, "the policy version went on with the iteration"


def test_ctrl_c_ends_learner_and_all_collectors_with_a_checkpoint(launch: Launcher) -> None:
    learner = launch.learner(make_config(env=CALM), "--local-collectors", "1", "--set", "learner.min_collectors=2")
    collector = launch.collector(learner.address)
    learner.reaches(3)
    assert len(launch.alive()) == 3
    learner.signal(signal.SIGINT)
    assert learner.exit_code(5.0) == 0, learner.text
    assert collector.exit_code(2.0) == 0, collector.text
    assert "finished: stopped by SIGINT" in collector.text
    assert "finished: stopped by SIGINT" in (learner.run_dir / "logs" / "collector-0.log").read_text()
    assert launch.alive() == []
    assert learner.checkpoint(learner.summary()["iterations"]).is_file()
    assert learner.metrics()[-1]["iteration"] == learner.summary()["iterations"]
    assert len(assert_books_balance(learner)) == 2


def test_a_learner_is_stopped_while_it_waits_for_its_first_collector(launch: Launcher) -> None:
    learner = launch.learner(make_config())
    learner.says("listening on")
    learner.signal(signal.SIGTERM)
    assert learner.exit_code(5.0) == 0
    assert learner.summary()["checkpoint"] is None
    assert "SIGTERM" in learner.summary()["reason"]


def test_what_a_killed_collector_had_sent_and_nobody_received_is_in_the_books_as_lost(
    launch: Launcher, tmp_path: Path
) -> None:
    """A rollout of 32 MB does not fit into the buffers of the kernel: most of it dies with its process."""
    steps = tmp_path / "steps"
    big = {"num_envs": 64, "overrides": {"width": 2048, "progress": str(steps)}}
    learner = launch.learner(make_config(env=big, train={"num_steps_per_env": 64}, network=BEATS))
    victim = launch.collector(learner.address, "--transport", "tcp")
    learner.reaches(2)
    learner.signal(signal.SIGSTOP)
    poll(lambda: _stands_still(steps), 10.0, "the collector to wait for credit")
    victim.signal(signal.SIGKILL)
    victim.exit_code()
    learner.signal(signal.SIGCONT)
    survivor = launch.collector(learner.address)
    lost = int(learner.says(rf"\({victim.name}\) .* (\d+) rollouts lost", 15.0).split()[-3])
    assert lost >= 1
    learner.says(rf"\({survivor.name}, 64 envs\) joined over shm")
    learner.advances()
    learner.signal(signal.SIGTERM)
    assert learner.exit_code(5.0) == 0
    books = {name.split()[-1]: book for name, book in assert_books_balance(learner).items()}
    assert books[victim.name]["lost"] == lost
    assert books[survivor.name]["lost"] == 0
    assert books[survivor.name]["trained"] >= 3


def _stands_still(progress: Path) -> bool:
    """Whether no step was made for a second, so that heartbeats have told of all that was sent."""
    before = progress.read_text()
    try:
        poll(lambda: progress.read_text() != before, 1.0)
    except AssertionError:
        return True
    return False


def test_collectors_wait_for_a_learner_and_follow_it_over_a_restart(launch: Launcher) -> None:
    bind = f"tcp://127.0.0.1:{three_free_ports()}"
    early = launch.collector(bind)
    early.says("waiting for a learner at tcp://127.0.0.1")
    config = make_config(env=CALM, train={"save_interval": 3}, network=BEATS)
    first = launch.learner(config, bind=bind)
    first.reaches(7)
    second = launch.learner(config, bind=bind)
    assert second.exit_code(20.0) == 2
    assert "network.bind" in second.text
    assert "in use" in second.text
    assert "Traceback" not in second.text
    assert not second.run_dir.exists(), "a run that cannot begin leaves nothing behind"
    first.signal(signal.SIGKILL)
    first.exit_code()
    known = len(first.metrics())
    resumed = launch.learner(None, "--resume", str(first.run_dir), bind=bind, run_dir=first.run_dir)
    resumed.says("continuing from .*model_")
    resumed.says("joined over shm")
    resumed.reaches(known + 5)
    assert early.running
    assert early.text.count("joined run") == 2
    resumed.signal(signal.SIGTERM)
    assert resumed.exit_code(5.0) == 0
    assert early.exit_code(2.0) == 0, early.text
    assert_continues(resumed.metrics())


def test_local_collectors_die_with_a_killed_learner_and_the_run_is_resumed(launch: Launcher) -> None:
    # Local collectors live in this learner's session only: nothing but the kernel can tell them of its death.
    config = make_config(env=CALM, train={"save_interval": 3}, network=BEATS)
    killed = launch.learner(config, "--local-collectors", "2")
    killed.reaches(7)
    assert len(launch.alive()) == 3
    killed.signal(signal.SIGKILL)
    poll(lambda: not launch.alive(), 3.0, "the local collectors to end")
    assert launch.segments() == []
    saved = sorted(int(path.stem.split("_")[1]) for path in killed.run_dir.glob("checkpoints/model_*.pt"))
    assert saved[-1] >= 6
    assert saved[-1] % 3 == 0
    end = killed.metrics()[-1]["iteration"] + 5
    options = ("--resume", str(killed.run_dir), "--max-iterations", str(end))
    resumed = launch.learner(None, *options, run_dir=killed.run_dir)
    assert resumed.exit_code() == 0, resumed.text
    assert resumed.text.count("joined over shm") == 2, "--local-collectors is part of the saved configuration"
    lines = resumed.metrics()
    assert lines[-1]["iteration"] == resumed.summary()["iterations"] == end
    assert_continues(lines)
    assert lines[-1]["learning_rate"] > 1e-4, "it has been adapted, so that a reset would have shown"


def test_a_run_whose_local_collectors_all_fail_ends_with_their_reason(launch: Launcher) -> None:
    learner = launch.learner(make_config(env={"name": "e2e_envs:Drfit"}), "--local-collectors", "2")
    assert learner.exit_code(40.0) == 2, learner.text
    assert "e2e_envs:Drfit" in learner.text
    assert "Traceback" not in learner.text
    assert launch.alive() == []


def test_a_run_whose_local_collectors_are_killed_before_they_have_joined_ends(launch: Launcher) -> None:
    learner = launch.learner(make_config(env={"name": "e2e_envs:killed_when_made"}), "--local-collectors", "1")
    assert learner.exit_code(30.0) == 1, learner.text
    assert "every local collector has ended" in learner.text


def test_an_environment_that_raises_ends_its_collector_with_words(launch: Launcher) -> None:
    learner = launch.learner(make_config(env={"overrides": {"fail_at": 200}}), "--local-collectors", "1")
    other = launch.collector(learner.address)
    assert other.exit_code(START_S) == 1
    assert learner.exit_code(15.0) == 1
    assert "the gripper is on fire" in learner.text
    errors = [line for line in other.text.splitlines() if " ERROR " in line]
    assert errors, f"nothing but a traceback: {other.text}"
    assert "e2e_envs:Drift" in errors[-1]
    assert "RuntimeError: the gripper is on fire" in errors[-1]
    said = (learner.run_dir / "logs" / "collector-0.log").read_text()
    assert "ERROR" in said
    assert "the gripper is on fire" in said


def test_the_learner_says_why_a_collector_has_left(launch: Launcher) -> None:
    learner = launch.learner(make_config(env={"overrides": {"fail_at": 100}}))
    collector = launch.collector(learner.address)
    assert collector.exit_code() == 1
    assert "the gripper is on fire" in learner.says(rf"\({collector.name}\) left", 15.0)
    assert learner.running, "another collector may still come"


def test_a_collector_that_is_asked_to_stop_says_goodbye_and_training_goes_on(
    running: Learner, shared_launch: Launcher
) -> None:
    leaving = shared_launch.collector(running.address)
    running.says(rf"\({leaving.name}, 4 envs\) joined over shm")
    running.advances()
    assert running.metrics()[-1]["collectors"] == 2
    leaving.signal(signal.SIGTERM)
    assert leaving.exit_code(2.0) == 0, leaving.text
    assert "finished: stopped by SIGTERM" in leaving.text
    running.says(rf"\({leaving.name}\) left", 2.0)
    running.advances()
    poll(lambda: running.metrics()[-1]["collectors"] == 1, 5.0, "the metrics to count one collector")


def test_a_collector_with_another_environment_is_refused_in_words(running: Learner, shared_launch: Launcher) -> None:
    stranger = shared_launch.collector(running.address, variables={"E2E_WIDTH": "5"})
    assert stranger.exit_code() == 3, stranger.text
    words = "observation group 'policy': this run has (3,) float32, the collector offers (5,) float32"
    assert words in stranger.text
    assert "Traceback" not in stranger.text
    assert words in running.text
    running.advances()


def test_a_collector_that_is_killed_is_missed_and_training_goes_on(running: Learner, shared_launch: Launcher) -> None:
    victim = shared_launch.collector(running.address)
    running.says(rf"\({victim.name}, 4 envs\) joined over shm")
    running.advances()
    victim.signal(signal.SIGKILL)
    running.says(rf"\({victim.name}\) (was silent for 4 s|is out of reach)", 8.0)
    running.advances()
    poll(lambda: running.metrics()[-1]["collectors"] == 1, 5.0, "the metrics to count one collector")
