"""What the watchdog says of calls that do not return, when it leaves them, and what it spares forked processes."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress

import broken_envs
import numpy as np
import pytest
from helpers_e2e import TESTS, poll

from appo_collector.envs.adopt import make_from
from appo_collector.envs.contract import Step
from appo_collector.envs.guard import Guard
from appo_collector.envs.watchdog import Watchdog


class Stuck(broken_envs.Good):
    """Its step returns when it is told to."""

    def __init__(self) -> None:
        super().__init__(1)
        self.entered, self.release = threading.Event(), threading.Event()

    def step(self, actions: np.ndarray) -> Step:
        self.entered.set()
        self.release.wait(20.0)
        return super().step(actions)


def test_a_call_that_does_not_return_is_logged_again_and_again_with_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = Stuck()
    with caplog.at_level(logging.WARNING), Watchdog(patience_s=0.2) as watchdog:
        guard = Guard(env, watchdog)
        guard.reset(0)

        def release() -> None:
            poll(lambda: len(caplog.records) >= 2, 10.0, "two warnings")
            env.release.set()

        helper = threading.Thread(target=release)
        helper.start()
        guard.step(np.zeros((1, 1), dtype=np.float32))
        helper.join()
        told = len(caplog.records)
        for _ in range(20):
            guard.step(np.zeros((1, 1), dtype=np.float32))
    first, second = (record.getMessage() for record in caplog.records[:2])
    assert caplog.records[1].created - caplog.records[0].created > 0.1, "after 0.2 s, and then after 0.4 s"
    for said in (first, second):
        assert re.match(r"broken_envs:Good: step\(\) has not returned for \d s; it is at\n", said)
        assert re.search(r'File ".*test_watchdog\.py", line \d+, in step\n +self\.release\.wait', said), said
        assert "guard.py" not in said
    assert len(caplog.records) == told, "calls that return are not told"


def test_a_watchdog_ends_with_its_context_and_leaves_the_signals_as_they_were() -> None:
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    with Watchdog():
        assert any(thread.name == "watchdog" for thread in threading.enumerate())
    assert not any(thread.name == "watchdog" for thread in threading.enumerate())
    assert signal.set_wakeup_fd(before) == before


PROGRAM = """
import logging, multiprocessing, os, signal, threading
from appo_collector.envs.watchdog import Watchdog
from appo_common.process import StopRequest
logging.basicConfig(level="INFO")
stop = StopRequest().install()
wait = threading.Event().wait
def say(*words):
    print(*words, flush=True)
def start(function):
    mine, its = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(target=lambda: (its.send("up"), function(its)), daemon=True)
    worker.start()
    mine.recv()
    return worker, mine
"""
"""Begins every program below. ``start`` forks a process and returns once that is up."""


def start(code: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM + textwrap.dedent(code)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=TESTS, start_new_session=True
    )


def outcome(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return exit code, output and errors; the outputs end once no process holds them open, forked ones included."""
    try:
        out, errors = process.communicate(timeout=10.0)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, errors


STUCK = """
    with Watchdog() as watchdog, watchdog.watching("mine", "step()"):
        say("ready")
        while True:
            wait(5.0)
"""
CLOSES = """
    with Watchdog() as watchdog:
        with watchdog.watching("mine", "step()"):
            say("ready")
            while stop.reason is None:
                wait(0.01)
        with watchdog.watching("mine", "close()"):
            wait(20.0)
"""
UNASKED = """
    with Watchdog() as watchdog, watchdog.watching("mine", "close()", within_s=0.3):
        say("ready")
        while True:
            wait(5.0)
"""


@pytest.mark.parametrize(
    ("code", "number", "words"),
    [
        (STUCK, signal.SIGTERM, r"step\(\) has not returned for \d s, and this process is asked to stop: it leaves"),
        (CLOSES, signal.SIGTERM, r"close\(\) has not returned for \d s, and this process is asked to stop: it leaves"),
        (UNASKED, 0, r"close\(\) has not returned for \d s, and this process has nothing else to do: it leaves"),
    ],
    ids=["asked before", "asked earlier", "not asked"],
)
def test_a_process_that_should_end_leaves_a_call_that_does_not_return(code: str, number: int, words: str) -> None:
    process = start(code)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    status, _, said = outcome(process)
    assert status == 1
    assert re.search(f"mine: {words}", said)


def test_leaving_kills_the_workers_that_hang() -> None:
    code, _, said = outcome(  # which fails where a worker holds the output open
        start("""
        with Watchdog() as watchdog:
            worker, _ = start(lambda pipe: wait())
            with watchdog.watching("mine", "close()", within_s=0.3):
                worker.join()
        """)
    )
    assert code == 1
    assert "leaves without waiting" in said


def test_a_watchdog_ends_though_a_forked_process_lives_on() -> None:
    said = outcome(
        start("""
        with Watchdog():
            worker, _ = start(lambda pipe: wait())
        say("lives" if worker.is_alive() else "has ended")
        """)
    )
    assert said == (0, "lives\n", ""), "and at the end multiprocessing terminates the worker, which does not resist"


def test_a_signal_to_a_worker_ends_that_worker_alone() -> None:
    said = outcome(
        start("""
        with Watchdog() as watchdog:
            worker, _ = start(lambda pipe: wait())
            with watchdog.watching("mine", "step()"):
                worker.terminate()
                worker.join()
                wait(1.6)
        say(worker.exitcode, stop.reason)
        """)
    )
    assert said == (0, "-15 None\n", "")


def test_ctrl_c_is_left_to_the_parent_of_a_worker() -> None:
    said = outcome(
        start("""
        with Watchdog():
            worker, pipe = start(lambda pipe: (pipe.recv(), pipe.send("done")))
            os.kill(worker.pid, signal.SIGINT)
            pipe.send("go on")
            say(pipe.recv())
            worker.join()
        say(worker.exitcode, stop.reason)
        """)
    )
    assert said == (0, "done\n0 None\n", "")


def test_without_a_watchdog_a_fork_changes_nothing() -> None:
    said = outcome(
        start("""
        with Watchdog():
            pass
        worker, pipe = start(lambda pipe: pipe.send(signal.getsignal(signal.SIGTERM) == stop._handle))
        say(pipe.recv())
        """)
    )
    assert said == (0, "True\n", "")


def test_only_the_frames_of_the_environment_are_shown(caplog: pytest.LogCaptureFixture) -> None:
    def make(num_envs: int) -> broken_envs.Good:
        poll(lambda: caplog.records, 10.0, "a warning")
        return broken_envs.Good(num_envs)

    with (
        caplog.at_level(logging.WARNING),
        Watchdog(patience_s=0.2) as watchdog,
        watchdog.watching("mine", "building it"),
    ):
        make_from(make, "mine", 1, 1, {})
    said = caplog.records[0].getMessage()
    assert re.search(r"it is at\n +File \".*test_watchdog\.py\", line \d+, in make\n", said), said
