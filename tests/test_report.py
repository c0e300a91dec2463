"""The report: what the console shows, what the files hold, and what happens when they cannot be written."""

from __future__ import annotations

import fcntl
import io
import json
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
from typing import Any

import pytest
from rich.console import Console
from rsl_rl.utils.log_writer import LogWriter
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from appo_common.errors import AppoError, ConfigError
from appo_learner.metrics import CollectorView, RunPlan, RunSummary, UpdateMetrics
from appo_learner.report import Report, plain, progress, summary, words
from appo_learner.report.jsonl import JsonLines
from appo_learner.report.panels import compose
from appo_learner.report.progress import Curve, Progress, Snapshot

VIEW = CollectorView(
    index=0,
    name="local-0",
    host="buildbox",
    path="shm",
    state="collecting",
    num_envs=64,
    policy_version=119,
    env_steps=480_000,
    steps_per_s=14_100.0,
    rollouts_sent=242,
    rollouts_trained=240,
    rollouts_discarded=1,
    rollouts_in_flight=1,
    cpu_percent=97.4,
    memory_mb=412.0,
)
FLEET = (VIEW, replace(VIEW, index=1, name="local-1", state="waiting"))

# Hand-chosen so that the example line of the documentation comes out: the four timers add up to 0.15 s.
METRICS = UpdateMetrics(
    iteration=120,
    time_s=18.0,
    env_steps=983_040,
    env_steps_collected=999_424,
    fps=28_100.0,
    fps_collected=28_400.0,
    return_mean=312.44,
    length_mean=500.0,
    timeout_rate=1.0,
    reward_terms={"track": 12.1, "torque": -0.8},
    lag_mean=1.04,
    lag_max=2,
    rollouts_trained=240,
    rollouts_discarded=0,
    collectors=2,
    learning_rate=1e-3,
    losses={"value": 0.0123, "surrogate": -0.0041},
    action_std=0.82,
    wait_s=0.018,
    stage_s=0.006,
    update_s=0.120,
    publish_s=0.006,
    infer_ms=0.2,
    env_step_ms=1.2,
    send_ms=0.3,
    credit_wait_ms=12.0,
    fleet=FLEET,
)
SUMMARY = RunSummary(
    reason="max_iterations reached",
    iterations=400,
    env_steps=3_276_800,
    wall_s=100.0,
    best_return=401.25,
    final_return=398.0,
    checkpoint="runs/x/checkpoints/model_400.pt",
    resume_command="appo-learner --resume runs/x/checkpoints/model_400.pt",
    books={
        "0 local-0": {"sent": 402, "trained": 400, "discarded": 1, "in_flight": 1, "lost": 0},
        "1 local-1": {"sent": 410, "trained": 400, "discarded": 1, "in_flight": 0, "lost": 7},
    },
)


class Clock:
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class RecordingWriter(LogWriter):
    """A third-party writer as rsl_rl defines them."""

    def __init__(self, log_dir: str, project: str) -> None:
        self.calls: list[tuple[Any, ...]] = [("init", log_dir, project)]

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.calls.append((tag, scalar_value, global_step))

    def store_config(self, env_cfg: Any, train_cfg: dict) -> None:
        self.calls.append(("config", env_cfg.to_dict(), train_cfg))

    def save_model(self, model_path: str, it: int) -> None:
        self.calls.append(("model", model_path, it))

    def stop(self) -> None:
        self.calls.append(("stop",))


def plan_in(directory: Path, **changes: Any) -> RunPlan:
    return replace(RunPlan("cartpole", str(directory), max_iterations=400, max_env_steps=None), **changes)


def make(plan: RunPlan, *, console: Console | None = None, **options: Any) -> Report:
    settings: dict[str, Any] = {"plain": True, "log_interval_s": 10.0, "train_cfg": {}, "env_cfg": {}}
    return Report(plan, console=console or Console(file=io.StringIO()), **{**settings, **options})


def terminal(width: int = 80, height: int = 24) -> Console:
    environ = {"TERM": "xterm-256color"}
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, highlight=False, _environ=environ
    )


def shown(report_console: Console) -> str:
    assert isinstance(report_console.file, io.StringIO)
    return report_console.file.getvalue()


def without_escapes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def records(path: Path) -> list[dict[str, Any]]:
    def no_constant(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=no_constant) for line in path.read_text().splitlines()]


# Words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (950, "950"),
        (999.6, "1.00k"),
        (28_100, "28.1k"),
        (983_040, "983k"),
        (999_600, "1.00M"),
        (float("nan"), "-"),
    ],
)
def test_counts_keep_three_digits(value: float, text: str) -> None:
    assert words.count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(41.2, "0:41"), (725, "12:05"), (11_240, "3:07:20"), (184_020, "2d 03:07"), (None, "-")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


def test_chart_spans_from_one_eighth_to_full_height() -> None:
    assert words.chart([0, 1, 2, 3, 4, 5, 6, 7], 8) == ["▁▂▃▄▅▆▇█"]
    assert words.chart([0.0, 1.0], 8, rows=2) == [" █", "▁█"]
    assert words.chart([2, 4, 6, 8], 2) == words.chart([3, 7], 2), "more values than room: bins are averaged"
    assert words.chart([], 8) == [""]
    assert words.chart([5.0, float("nan"), 5.0], 8) == ["▄▄"]


def test_a_full_curve_halves_its_resolution() -> None:
    curve = Curve(limit=4)
    for value in (1, 3, 5, 7, 9, 11):
        curve.add(value)
    assert curve.points == [2, 6, 10]


# Progress: hand-calculated


def test_eta_is_the_earlier_of_iterations_and_steps() -> None:
    way = Progress(RunPlan("x", ".", max_iterations=100, max_env_steps=3000, start_iteration=10, start_env_steps=500))
    assert way.eta_s() is None
    way.add(replace(METRICS, iteration=20, time_s=5.0, env_steps=1500))
    # 10 iterations in 5 s: 80 more take 40 s. 1000 steps in 5 s: 1500 more take 7.5 s.
    assert way.eta_s() == pytest.approx(7.5)
    assert way.eta_s(since_update_s=2.5) == pytest.approx(5.0)
    assert way.done() == pytest.approx(0.5)


def test_eta_forgets_the_slow_start() -> None:
    way = Progress(RunPlan("x", ".", max_iterations=100, max_env_steps=None))
    way.add(replace(METRICS, iteration=1, time_s=60.0))
    assert way.eta_s() == pytest.approx(99 * 60.0)
    way.add(replace(METRICS, iteration=2, time_s=62.0))
    way.add(replace(METRICS, iteration=3, time_s=64.0))
    assert way.eta_s() == pytest.approx(97 * 2.0)


def test_a_run_without_an_end_has_no_eta() -> None:
    way = Progress(RunPlan("x", ".", max_iterations=None, max_env_steps=None))
    way.add(METRICS)
    assert way.eta_s() is None
    assert way.done() is None


@pytest.mark.parametrize(
    ("wait", "stage", "update", "publish", "text"),
    [
        (6.0, 1.0, 2.0, 0.5, "collectors set the pace: the learner waits 60% of the time; add collectors"),
        (2.0, 1.0, 6.0, 0.5, "balanced: the learner waits for rollouts 20% of the time"),
        (1.0, 0.5, 8.0, 0.1, "the learner sets the pace: update takes 80% of the time"),
        (1.0, 7.0, 1.5, 0.1, "the learner sets the pace: stage takes 70% of the time"),
    ],
)
def test_shares_of_wall_time_and_the_bottleneck(
    wait: float, stage: float, update: float, publish: float, text: str
) -> None:
    way = Progress(RunPlan("x", ".", max_iterations=None, max_env_steps=None))
    timers = {"wait_s": wait, "stage_s": stage, "update_s": update, "publish_s": publish}
    way.add(replace(METRICS, time_s=10.0, **timers))
    assert way.shares()["wait"] == pytest.approx(wait / 10.0)
    assert progress.pace(way.shares()) == text


# Plain lines


def snapshot(
    metrics: UpdateMetrics | None = METRICS, fleet: tuple[CollectorView, ...] = FLEET, **changes: Any
) -> Snapshot:
    base = Snapshot(
        plan=RunPlan("cartpole", "runs/x", 400, None),
        metrics=metrics,
        fleet=fleet,
        elapsed_s=18.0,
        eta_s=41.0,
        done=0.3,
        shares={"wait": 0.12, "stage": 0.04, "update": 0.8, "publish": 0.04},
        pace="the learner sets the pace: update takes 80% of the time",
        returns=[0.0, 100.0, 312.4],
    )
    return replace(base, **changes)


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
from test_report import METRICS, plan_in
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


# Files


def test_metrics_lines_hold_every_scalar_and_null_for_nan(tmp_path: Path) -> None:
    strange = replace(METRICS, return_mean=None, fps=float("inf"), losses={"value": float("nan"), "kl": 0.01})
    with make(plan_in(tmp_path)) as report:
        report.update(METRICS)
        # Read while the run is on: nothing waits in a buffer.
        first = records(tmp_path / "metrics.jsonl")
        report.update(strange)
    second = records(tmp_path / "metrics.jsonl")[1]
    expected = {**vars(METRICS)}
    del expected["fleet"]
    assert first == [expected]
    assert second["losses"] == {"value": None, "kl": 0.01}
    assert second["fps"] is None
    assert second["return_mean"] is None


def test_a_resume_drops_what_it_repeats_and_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"iteration":{i}}}\n' for i in range(1, 6)) + '{"iteration":3,"fp')
    with make(plan_in(tmp_path, start_iteration=3)) as report:
        report.update(replace(METRICS, iteration=4))
    assert [record["iteration"] for record in records(path)] == [1, 2, 3, 4]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_fresh_run_keeps_the_metrics_of_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"iteration":1}\n')
    with make(plan_in(tmp_path)):
        pass
    assert (tmp_path / "metrics.jsonl.old").read_text() == '{"iteration":1}\n'
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_a_full_disk_is_told_once_counted_and_survived(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with make(plan_in(tmp_path)) as report:
        for i in range(1, 4):
            report.update(replace(METRICS, iteration=i))
        assert report.stats()["errors"] == {"metrics.jsonl": 3}
    errors = [record.getMessage() for record in caplog.records]
    assert len(errors) == 1
    assert str(tmp_path / "metrics.jsonl") in errors[0]
    assert "errno 28 (No space left on device)" in errors[0]
    assert len(scalars(tmp_path)["Perf/total_fps"]) == 3, "TensorBoard goes on"


def test_a_disk_that_fills_up_within_a_line_leaves_whole_lines(tmp_path: Path) -> None:
    code = """
    import resource, sys
    from pathlib import Path
    from test_report import METRICS
    from appo_learner.report.jsonl import JsonLines
    lines = JsonLines(Path(sys.argv[1]), 0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
    failed = 0
    for i in range(5):
        try:
            lines.write(METRICS)
        except OSError:
            failed += 1
    print(failed)
    """
    path = tmp_path / "metrics.jsonl"
    where = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    command = [sys.executable, "-c", where + textwrap.dedent(code), str(path)]
    failed = int(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert failed > 0
    assert len(records(path)) == 5 - failed > 0


def test_an_unwritable_run_directory_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(AppoError, match=r"cannot write metrics to .*gone/metrics.jsonl: errno 2 "):
        make(plan_in(tmp_path / "gone"))


def test_closed_lines_can_be_closed_again(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "metrics.jsonl", 0)
    lines.close()
    lines.close()


# TensorBoard and other writers


def scalars(directory: Path) -> dict[str, list[Any]]:
    events = EventAccumulator(str(directory))
    events.Reload()
    return {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}


def test_tensorboard_has_the_tags_of_rsl_rl(tmp_path: Path) -> None:
    with make(plan_in(tmp_path)) as report:
        report.update(replace(METRICS, reward_terms={"track": 12.5, "Curriculum/level": 3.0}))
    read = scalars(tmp_path)
    by_rsl_rl = {
        *("Loss/value", "Loss/surrogate", "Loss/learning_rate", "Policy/mean_std", "Perf/total_fps"),
        *("Perf/collection_time", "Perf/learning_time", "Train/mean_reward", "Train/mean_episode_length"),
        *("Train/mean_reward/time", "Train/mean_episode_length/time", "Episode/track", "Curriculum/level"),
    }
    ours = {
        *("Perf/collected_fps", "Train/timeout_rate", "Lag/mean", "Lag/max", "Fleet/collectors"),
        *("Rollouts/trained", "Rollouts/discarded"),
        *(f"Timers/{name}_s" for name in ("wait", "stage", "update", "publish")),
        *(f"Timers/{name}_ms" for name in ("infer", "env_step", "send", "credit_wait")),
    }
    assert set(read) == by_rsl_rl | ours
    assert [(point.step, point.value) for point in read["Episode/track"]] == [(120, 12.5)]
    assert read["Perf/collection_time"][0].value == pytest.approx(0.018 + 0.006)
    assert read["Perf/learning_time"][0].value == pytest.approx(0.120 + 0.006)
    assert read["Train/mean_reward/time"][0].step == 18


def test_a_resumed_run_replaces_the_points_it_repeats(tmp_path: Path) -> None:
    with make(plan_in(tmp_path)) as report:
        for i in (1, 2, 3):
            report.update(replace(METRICS, iteration=i, fps=float(i)))
    with make(plan_in(tmp_path, start_iteration=1)) as report:
        report.update(replace(METRICS, iteration=2, fps=20.0))
    assert [(p.step, p.value) for p in scalars(tmp_path)["Perf/total_fps"]] == [(1, 1.0), (2, 20.0)]


def test_a_named_writer_is_built_as_rsl_rl_builds_it(tmp_path: Path) -> None:
    train_cfg = {"logger": {"class_name": f"{__name__}:RecordingWriter", "project": "walk"}, "seed": 1}
    with make(plan_in(tmp_path), train_cfg=train_cfg, env_cfg={"name": "mujoco:x"}) as report:
        writer = report._tensorboard.extra
        report.update(METRICS)
        report.checkpoint_saved("model_120.pt", 120)
    assert writer.calls[:2] == [("init", str(tmp_path), "walk"), ("config", {"name": "mujoco:x"}, train_cfg)]
    assert ("Train/mean_reward", 312.44, 120) in writer.calls
    assert writer.calls[-2:] == [("model", "model_120.pt", 120), ("stop",)]
    assert "Train/mean_reward" in scalars(tmp_path), "TensorBoard is written too"
    assert train_cfg["logger"]["class_name"], "rsl_rl has not emptied the caller's dictionary"


@pytest.mark.parametrize(
    ("logger", "message"),
    [
        (
            {"class_name": "WandbLogWriter", "project_name": "x"},
            "train.logger: WandbLogWriter .*`pip install wandb`",
        ),
        ("wandb", "train.logger: WandbLogWriter .*`pip install wandb`"),
        ({"class_name": "no_such_package:Writer"}, "no_such_package"),
        ({"class_name": f"{__name__}:RecordingWriter", "projekt": "x"}, "train.logger: .*projekt"),
        ({"project": "x"}, "train.logger: .* has no class_name"),
    ],
)
def test_a_writer_that_cannot_be_built_is_a_configuration_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logger: Any, message: str
) -> None:
    monkeypatch.setattr("rsl_rl.utils.wandb_log_writer.wandb", None)
    with pytest.raises(ConfigError, match=message):
        make(plan_in(tmp_path), train_cfg={"logger": logger})


# The summary


def test_the_summary_adds_up(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=300)
    plan = plan_in(tmp_path, start_iteration=200, start_env_steps=1_276_800)
    with make(plan, console=console) as report:
        report.update(METRICS)
        report.finish(replace(SUMMARY, final_return=float("nan")))
    text = shown(console)
    assert text.count("iter 120/400") == 1
    # (3 276 800 - 1 276 800) steps in 100 s
    assert "env steps/s  20.0k" in text
    assert "wall time    1:40" in text
    assert "best 401.2, final -" in text
    assert "0 local-0: 402 sent = 400 trained + 1 discarded + 1 in flight + 0 lost\n" in text
    assert "1 local-1: 410 sent = 400 trained + 1 discarded + 0 in flight + 7 lost   DOES NOT BALANCE: 2 " in text
    assert "resume with  appo-learner --resume runs/x/checkpoints/model_400.pt" in text
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["env_steps_per_s"] == 20_000.0
    assert written["final_return"] is None
    assert written["books"] == SUMMARY.books


def test_a_run_that_took_no_time_has_no_rate() -> None:
    assert summary.steps_per_s(RunPlan("x", ".", 1, None), replace(SUMMARY, wall_s=0.0)) is None


def test_the_live_view_gives_way_to_the_summary(tmp_path: Path) -> None:
    console = terminal()
    report = make(plan_in(tmp_path), console=console, plain=False)
    report.update(METRICS)
    report.finish(SUMMARY)
    text = shown(console)
    assert text.index("max_iterations reached") > text.rindex("\x1b[?25h")
