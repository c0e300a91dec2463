"""A collector whose environments are processes of their own leaves none of them behind, however it ends."""

from __future__ import annotations

import os
import signal
from typing import Any

import psutil
import pytest
from helpers_e2e import Launcher, Learner, Program, make_config, poll

pytest.importorskip("gymnasium")

WORKERS = 3
Fleet = tuple[Learner, dict[str, Program]]


def config(**overrides: Any) -> dict[str, Any]:
    return make_config(env={"name": "worker_envs:workers", "num_envs": WORKERS, "overrides": overrides})


@pytest.fixture(scope="module")
def fleet(shared_launch: Launcher) -> Fleet:
    """A learner, and a collector for each way to end, every one in a group of its own as under a shell."""
    learner = shared_launch.learner(config())
    ends = ("SIGINT", "SIGHUP", "SIGTERM", "SIGKILL")
    return learner, {name: shared_launch.collector(learner.address, prefix=["setsid"]) for name in ends}


def workers_of(program: Program) -> list[psutil.Process]:
    """Wait until the collector takes part, and return the processes of its environments."""
    program.says("built 3 × worker_envs:workers")
    found = psutil.Process(program.pid).children()
    assert len(found) == WORKERS
    return found


def gone(workers: list[psutil.Process]) -> bool:
    return not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers)


@pytest.mark.parametrize(
    ("name", "whole_group", "code"),
    [("SIGINT", True, 0), ("SIGHUP", True, 0), ("SIGTERM", False, 0), ("SIGKILL", False, -9)],
)
def test_no_worker_outlives_its_collector(fleet: Fleet, name: str, whole_group: bool, code: int) -> None:
    """Ctrl-C and the end of a terminal reach the workers, too."""
    learner, collectors = fleet
    collector, number = collectors[name], getattr(signal, name)
    workers = workers_of(collector)
    learner.advances()
    if whole_group:
        os.killpg(collector.pid, number)
    else:
        collector.signal(number)
    assert collector.exit_code(10.0) == code, collector.text
    poll(lambda: gone(workers), 5.0, "the end of the workers")
    assert "Traceback" not in collector.text or name == "SIGKILL", collector.text


def test_ctrl_c_ends_a_run_whose_only_workers_hang(launch: Launcher) -> None:
    learner = launch.learner(config(hang_at=20), "--local-collectors", "1")
    learner.reaches(1)
    (collector,) = psutil.Process(learner.pid).children()
    workers = collector.children()
    assert len(workers) == WORKERS
    learner.signal(signal.SIGINT)
    assert learner.exit_code(10.0) == 0, learner.text
    poll(lambda: gone(workers), 5.0, "the end of the workers")
