"""Runs a check in a process of its own: an environment that crashes, leaves or hangs is told, too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

import click

from appo_collector.check.activity import FINISHED, Activity
from appo_collector.check.child import STACK_SIGNAL
from appo_collector.check.report import RULE_WIDTH

_LOOK_EVERY_S = 0.1
_STACK_WAIT_S = 1.0
_LEAVE_S = 3.0
"""For the process to end once its check has."""
_FRAMES = 5
_OWN = os.path.dirname(os.path.abspath(__file__))


def run_watched(options: Mapping[str, Any], timeout_s: float) -> int:
    """Check in a child process and return the exit code; it is 1 if a call takes longer than ``timeout_s``."""
    with tempfile.TemporaryFile() as lines, tempfile.TemporaryFile() as stacks:
        command = [sys.executable, "-m", "appo_collector.check.child", json.dumps(dict(options))]
        child = subprocess.Popen(
            [*command, str(lines.fileno()), str(stacks.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(lines.fileno(), stacks.fileno()),
            start_new_session=True,  # Ctrl-C reaches this process alone, which ends the other however stuck it is
        )
        try:
            return _watch(child, Activity(lines.fileno()), stacks, timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # its own children, too
            child.wait()


def _watch(child: subprocess.Popen[bytes], activity: Activity, stacks: IO[bytes], timeout_s: float) -> int:
    doing, since = activity.read(), time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            child.wait(_LOOK_EVERY_S)
        now = time.monotonic()
        if (latest := activity.read()) != doing:
            doing, since = latest, now
        if doing.startswith(FINISHED):
            if child.returncode is None and now - since < _LEAVE_S:
                continue
            if child.returncode is None:
                click.echo("! its threads keep the process alive: end them in close(), or make them daemons")
            return int(doing.removeprefix(FINISHED))
        if child.returncode is not None:
            return _died(child.returncode, doing, stacks)
        if now - since > timeout_s:
            return _hangs(child, doing, now - since, stacks)


def _died(code: int, doing: str, stacks: IO[bytes]) -> int:
    how = f"left with exit code {code} → raise an exception instead of ending the process"
    if code == -signal.SIGKILL:
        how = "was killed by SIGKILL → is the memory used up?"
    elif code < 0:
        how = f"died of {signal.Signals(-code).name} → look at the native code that is called here"
    _tell(f"{doing or 'starting'}: the process {how}", stacks)
    return 1


def _hangs(child: subprocess.Popen[bytes], doing: str, seconds: float, stacks: IO[bytes]) -> int:
    child.send_signal(STACK_SIGNAL)
    deadline = time.monotonic() + _STACK_WAIT_S
    while os.fstat(stacks.fileno()).st_size == 0 and child.returncode is None and time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            child.wait(_LOOK_EVERY_S)
    remedy = "look at the lines below; if it only takes long, raise --timeout"
    _tell(f"{doing or 'starting'} has not returned for {seconds:.0f} s → {remedy}", stacks)
    return 1


def _tell(text: str, stacks: IO[bytes]) -> None:
    click.echo(f"{click.style('✗', fg='red')} {'calls':<{RULE_WIDTH}}{text}")
    for line in _frames(os.pread(stacks.fileno(), 1 << 20, 0).decode(errors="replace")):
        click.echo(f"      {line}")
    click.echo("1 violation that ended the check; the rest was not checked")


def _frames(dump: str) -> list[str]:
    """Return the innermost frames of what faulthandler wrote, the innermost last, without the checker's."""
    lines = [line.strip() for line in dump.splitlines() if line.lstrip().startswith("File ")]
    inner = []
    for line in lines:
        if _OWN in line:
            break
        inner.append(line)
    return inner[:_FRAMES][::-1]
