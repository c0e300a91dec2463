"""The report on a console: plain lines, and the live view of a terminal."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from helpers_report import (
    FLEET,
    METRICS,
    VIEW,
    Clock,
    make,
    plan_in,
    records,
    shown,
    snapshot,
    terminal,
    without_escapes,
)
from rich.console import Console

from appo_learner.report import plain
from appo_learner.report.panels import compose

# Plain lines


def test_a_plain_line_says_everything() -> None:
    assert plain.line(snapshot()) == (
        "iter 120/400  steps 983k  return 312.4  len 500  timeouts 100%  fps 28.1k (collected 28.4k)  "
        "lag 1.0/2  2 collectors (2 shm)  wait 12%  ETA 0:41"
    )


def test_plain_lines_come_once_per_interval_and_for_the_last_update(tmp_path: Path) -> None:
    clock, console = Clock(), Console(file=io.StringIO(), width=300)
    report = make(plan_in(tmp_path), console=console, clock=clock)
    for i in range(1, 26):  # one update a second, one line every ten
        report.update(replace(METRICS, iteration=i, time_s=float(i)))
        clock.now += 1.0
    report.close()
    report.close()
    assert re.findall(r"iter (\d+)/", shown(console)) == ["1", "11", "21", "25"]


def test_a_stall_is_told_once_with_the_reason(tmp_path: Path) -> None:
    clock, console = Clock(), Console(file=io.StringIO(), width=300)
    with make(plan_in(tmp_path), console=console, clock=clock) as report:
        for _ in range(100):
            clock.now += 0.5
            report.tick((), waiting_for="a second collector has to join")
        report.update(METRICS)
        for _ in range(100):
            clock.now += 0.5
            report.tick([replace(VIEW, state="silent")])
    stalls = [line for line in shown(console).splitlines() if line.startswith("no update")]
    assert stalls == [
        "no update for 20 s, because a second collector has to join",
        "no update for 20 s, because the only collector is silent",
    ]


# The live view


@pytest.mark.parametrize("size", [(20, 4), (40, 10), (60, 20), (80, 24), (132, 43), (250, 80)])
@pytest.mark.parametrize("collectors", [0, 2, 64])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_view_fits_every_terminal(size: tuple[int, int], collectors: int, ascii_only: bool) -> None:
    names = (
        ("local", "a-very-long-name-of-a-collector", "weit entfernt") if ascii_only else ("収集器", "\x1b[31mred", "é")
    )
    fleet = tuple(replace(VIEW, index=i, name=names[i % 3]) for i in range(collectors))
    for state in (snapshot(fleet=fleet), snapshot(None, fleet, shares={}, returns=[], status="no collector")):
        lines = compose(state, *size, ascii_only=ascii_only)
        assert len(lines) <= size[1]
        assert max(line.cell_len for line in lines) <= size[0]
        assert not ascii_only or all(line.plain.isascii() for line in lines)
        assert all("\x1b" not in line.plain for line in lines)
        assert "cartpole" in lines[0].plain


def test_the_view_on_80_by_24_shows_all_there_is() -> None:
    text = "\n".join(line.plain for line in compose(snapshot(), 80, 23))
    for part in (
        *("cartpole", "runs/x", "30%", "ETA 0:41", "elapsed 0:18", "120/400", "983k", "999k", "312.4"),
        *("500 steps long", "100% end at the time limit", "track 12.1", "torque -0.80", "28.1k", "28.4k"),
        *("mean 1.0", "max 2", "value 0.0123", "rate 1.0e-03", "action std 0.82", "wait 12%", "update 80%"),
        *(
            "the learner sets the pace",
            "local-0",
            "local-1",
            "buildbox",
            "shm",
            "collecting",
            "waiting",
            "97%",
        ),
    ):
        assert part in text


def test_a_fleet_too_large_for_the_screen_is_counted_and_the_silent_come_first() -> None:
    fleet = tuple(replace(VIEW, index=i, name=f"c{i}") for i in range(64))
    fleet = (*fleet[:40], replace(fleet[40], state="silent"), *fleet[41:])
    lines = [line.plain for line in compose(snapshot(fleet=fleet), 80, 23)]
    assert "silent" in lines[-4 if len(lines) < 23 else lines.index(next(x for x in lines if "collector " in x)) + 1]
    assert re.search(r"and \d+ more: \d+ collecting", lines[-1])


def test_the_live_view_is_drawn_at_most_twice_a_second(tmp_path: Path) -> None:
    clock, console = Clock(), terminal()
    with make(plan_in(tmp_path), console=console, clock=clock, plain=False) as report:
        for _ in range(40):  # 10 ms apart: 0.4 s
            report.tick(FLEET)
            clock.now += 0.01
        assert report.stats()["renders"] == 1
        clock.now += 5.0
        report.update(METRICS)
        assert report.stats()["renders"] == 2
    text = without_escapes(shown(console))
    assert "120/400" in text
    assert "the only" not in text


def test_log_records_prints_and_hostile_text_appear_above_the_view(tmp_path: Path) -> None:
    console = terminal()
    log = logging.getLogger("test_report.above")
    with make(plan_in(tmp_path), console=console, plain=False) as report:
        log.addHandler(report.log_handler)
        report.update(METRICS)
        log.warning("collector 1 \x1b[2J[bold]left[/bold]")
        print("a library prints")
        log.removeHandler(report.log_handler)
    text = without_escapes(shown(console))
    assert "WARNING collector 1 ?[2J[bold]left[/bold]" in text
    # Both are followed by the view, painted again below them.
    assert text.rindex("120/400") > text.index("a library prints") > text.index("WARNING")
    assert shown(console).count("\x1b[?25l") == shown(console).count("\x1b[?25h") == 1


def test_a_stalled_run_shows_what_it_waits_for(tmp_path: Path) -> None:
    clock, console = Clock(), terminal()
    with make(plan_in(tmp_path), console=console, clock=clock, plain=False) as report:
        clock.now += 9.0
        report.tick((), waiting_for="no collector is connected")
    assert "waiting: no collector is connected (0:09)" in without_escapes(shown(console))


def test_a_view_that_breaks_gives_way_to_plain_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("appo_learner.report.live_view.compose", lambda *_, **__: [1 / 0])
    with make(plan_in(tmp_path), console=terminal(), plain=False) as report:
        report.update(METRICS)
        report.update(METRICS)
        assert report.stats()["errors"] == {"console": 1}
    assert "iter 120/400" in capsys.readouterr().err
    assert len(records(tmp_path / "metrics.jsonl")) == 2


PROGRAM = """
import sys
from helpers_report import METRICS, plan_in
from pathlib import Path
from appo_learner.report import Report
with Report(plan_in(Path(sys.argv[1])), plain=False, log_interval_s=0.0, train_cfg={}, env_cfg={}) as report:
    report.update(METRICS)
    for _ in range(int(sys.argv[2])):
        report.update(METRICS)
    if sys.argv[2] == "0":
        raise RuntimeError("the trainer broke")
"""


def program(*arguments: str) -> list[str]:
    path = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    return [sys.executable, "-c", path + textwrap.dedent(PROGRAM), *arguments]


def test_under_a_real_terminal_an_exception_leaves_a_cursor(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color"}
    child = subprocess.Popen(program(str(tmp_path), "0"), stdin=slave, stdout=slave, stderr=slave, env=environ)
    os.close(slave)
    seen = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # EIO: the child has closed its end
            break
        if not chunk:
            break
        seen += chunk
    os.close(master)
    assert child.wait(timeout=60) == 1
    text = seen.decode()
    assert "120/400" in without_escapes(text)
    assert "local-1" in without_escapes(text)
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is shown again"
    assert text.index("RuntimeError: the trainer broke") > text.rindex("\x1b[?25h")
    assert max(len(line) for line in without_escapes(text).splitlines()) <= 80


def test_a_reader_that_leaves_does_not_end_the_run(tmp_path: Path) -> None:
    child = subprocess.Popen(program(str(tmp_path), "2000"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline().startswith(b"iter 120/400")
    child.stdout.close()
    assert child.stderr is not None
    errors = child.stderr.read()
    child.stderr.close()
    assert child.wait(timeout=60) == 0, errors.decode()
    assert len(records(tmp_path / "metrics.jsonl")) == 2001
