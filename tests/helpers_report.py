"""A run's figures chosen by hand, and a report of them to a console and a folder that a test looks at."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from appo_learner.metrics import CollectorView, RunPlan, RunSummary, UpdateMetrics
from appo_learner.report import Report
from appo_learner.report.progress import Snapshot

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
