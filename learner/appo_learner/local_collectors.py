"""Collectors that the learner starts on its own host, as children it never leaves behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType

from appo_common.errors import AppoError, ConfigError
from appo_common.process import THREAD_VARIABLES
from appo_learner.metrics import CollectorView

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S, END_TIMEOUT_S = 0.5, 1.5
"""For a child to end after the mailroom's farewell (which has waited for it to say goodbye), and after SIGTERM.

One whose environment hangs has said nothing: it must not cost the learner more than it has for its own end.
"""


class LocalCollectors:
    """Child processes, each with a log file. The kernel kills them should the learner be killed."""

    def __init__(self, count: int, address: str, log_dir: Path) -> None:
        """Start ``count`` collectors that connect to ``address``."""
        self._logs = [log_dir / f"collector-{number}.log" for number in range(count)]
        self._children = [_start(number, address, log) for number, log in enumerate(self._logs)]
        self._told: set[int] = set()
        self._connected: set[int] = set()

    def check(self, fleet: Sequence[CollectorView]) -> None:
        """Report children that have died; ``fleet`` is who is connected all the same.

        Raises:
            AppoError: all children are dead and nobody else collects; it carries the first one's own words.
        """
        for number, child in enumerate(self._children):
            if child.poll() is not None and number not in self._told:
                self._told.add(number)
                logger.error(
                    "local collector %d ended with exit code %d: %s",
                    number,
                    child.returncode,
                    self._last_words(number),
                )
        self._tell_who_is_stuck({view.name for view in fleet})
        names = {_name(number) for number in range(len(self._children))}
        alive = [view for view in fleet if view.path or view.name not in names]
        if self._children and len(self._told) == len(self._children) and not alive:
            first = min(self._told)
            code = self._children[first].returncode
            kind = ConfigError if code == ConfigError.exit_code else AppoError
            raise kind(
                f"every local collector has ended; the first said: {self._last_words(first)} ({self._logs[first]})"
            )

    def _tell_who_is_stuck(self, connected: Collection[str]) -> None:
        """Repeat, once, what a child has warned of that was connected, is not any more, and still lives."""
        for number, child in enumerate(self._children):
            if _name(number) in connected:
                self._connected.add(number)
            elif number in self._connected and child.poll() is None:
                warnings = [line for line in self._lines(number) if " WARNING " in line]
                if warnings:
                    self._connected.discard(number)
                    words = warnings[-1].partition(" WARNING ")[2].strip()
                    logger.warning("local collector %d has warned: %s (%s)", number, words, self._logs[number])

    def close(self) -> None:
        """Wait for the children to leave; insist if they do not."""
        for insist in (None, subprocess.Popen.terminate, _kill_group):
            deadline = time.monotonic() + (END_TIMEOUT_S if insist else STOP_TIMEOUT_S)
            for child in self._children:
                if insist is not None and child.poll() is None:
                    insist(child)
            for child in self._children:
                _wait(child, deadline)
            if all(child.poll() is not None for child in self._children):
                return

    def __enter__(self) -> LocalCollectors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _last_words(self, number: int) -> str:
        lines = self._lines(number)
        errors = [line.partition(" ERROR ")[2].strip() for line in lines if " ERROR " in line]
        if errors:
            return errors[-1]
        code = self._children[number].returncode or 0
        if code < 0:
            return f"nothing (killed by signal {-code}, {signal.strsignal(-code)})"
        return (lines or ["nothing"])[-1]

    def _lines(self, number: int) -> list[str]:
        return self._logs[number].read_text(encoding="utf-8", errors="replace").strip().splitlines()


def _start(number: int, address: str, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "appo_collector", "--connect", address, "--name", _name(number)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("APPO_")}
    environment |= dict.fromkeys(THREAD_VARIABLES, "1")  # what is set here are the learner's own
    with log.open("ab") as output:
        return subprocess.Popen(
            [*command, "--parent-pid", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,  # APPO_NAME and the like are meant for one process, not for its children
            start_new_session=True,  # Ctrl-C reaches the learner alone; it tells the children
        )


def _name(number: int) -> str:
    return f"local-{number}"


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill a child that has not been waited for, and the processes its environment has started."""
    os.killpg(child.pid, signal.SIGKILL)


def _wait(child: subprocess.Popen[bytes], deadline: float) -> None:
    try:
        child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return
