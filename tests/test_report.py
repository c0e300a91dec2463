"""The report's figures: how they are written, what is worked out from them, and how the summary adds them up."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers_report import METRICS, SUMMARY, make, plan_in, shown, terminal
from rich.console import Console

from appo_learner.metrics import RunPlan
from appo_learner.report import progress, summary, words
from appo_learner.report.progress import Curve, Progress

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
