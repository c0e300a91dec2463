"""Who is faster waits: rollouts in flight, their age and the memory stay bounded."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from helpers_e2e import Launcher, assert_books_balance, make_config, poll

SLOW_UPDATE_S = 0.2
BEATS = {"heartbeat_interval_s": 0.1}
UPDATES = 45
WARM_UP = 12
"""Updates until every buffer has been made and the allocator has settled."""
MAY_GROW_MB = 12.0
"""In 30 updates. A rollout is 2 MB: one kept per update would be 60 MB, per collector."""


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_collectors_wait_for_a_slow_learner_and_memory_stays_flat(launch: Launcher, tmp_path: Path, path: str) -> None:
    notes_path = tmp_path / "notes.jsonl"
    wide = {"num_envs": 32, "overrides": {"width": 1024}}
    config = make_config(
        env=wide, train={"num_steps_per_env": 16}, learner={"min_collectors": 2, "max_in_flight": 3}, network=BEATS
    )
    slow = (sys.executable, "-m", "e2e_programs", "slow-learner", str(SLOW_UPDATE_S), str(notes_path))
    learner = launch.learner(config, "--max-iterations", str(UPDATES), program=slow)
    for _ in range(2):
        launch.collector(learner.address, "--transport", "tcp" if path == "tcp" else "auto")
    assert learner.exit_code(58.0) == 0, learner.text
    assert learner.text.count(f"joined over {path}") == 2

    notes = [json.loads(line) for line in notes_path.read_text().splitlines()]
    views = [view for note in notes[WARM_UP:] for view in note["fleet"]]
    assert len(views) == 2 * (UPDATES - WARM_UP)
    assert max(view["in_flight"] for note in notes for view in note["fleet"]) <= 3
    assert mean(view["in_flight"] for view in views) > 2, "all credits are spent"
    assert mean(view["state"] == "waiting" for view in views) > 0.8
    assert_flat([note["memory_mb"] for note in notes], "the learner")
    for index in range(2):
        assert_flat([note["fleet"][index]["memory_mb"] for note in notes[5:]], f"collector {index}")
    lines = learner.metrics()
    assert mean(line["credit_wait_ms"] for line in lines[WARM_UP:]) > 1000 * SLOW_UPDATE_S / 2
    assert max(line["lag_max"] for line in lines) <= 3, "no more versions behind than rollouts in flight"
    assert lines[-1]["rollouts_discarded"] == 0, "pacing beats discarding"
    assert_books_balance(learner)


def assert_flat(memory_mb: list[float], who: str) -> None:
    settled = memory_mb[WARM_UP:]
    assert len(settled) >= 25
    first, last = mean(settled[:5]), mean(settled[-5:])
    assert last - first < MAY_GROW_MB, f"{who} grew from {first:.0f} to {last:.0f} MB"


def test_a_learner_that_is_faster_waits_and_trains_on_fresh_rollouts(launch: Launcher) -> None:
    config = make_config(env={"overrides": {"step_s": 0.02}})
    learner = launch.learner(config, "--local-collectors", "1", "--max-iterations", "20")
    assert learner.exit_code() == 0
    lines = learner.metrics()[3:]
    rollout_s = 8 * 0.02
    assert mean(line["wait_s"] for line in lines) > rollout_s / 2
    assert mean(line["credit_wait_ms"] for line in lines) < 1000 * rollout_s / 2
    assert mean(line["env_step_ms"] for line in lines) >= 20
    assert max(line["lag_max"] for line in lines) <= 1
    assert sum(line["lag_mean"] for line in lines) > 0, "the next rollout is under way while the last is trained on"


def test_nothing_older_than_the_permitted_lag_is_trained_on(launch: Launcher, tmp_path: Path) -> None:
    """Batches far below what the fleet delivers let rollouts grow old: they must be dropped and counted."""
    limit = 1
    learner_keys = {"min_collectors": 2, "max_in_flight": 4, "batch_envs": 4, "max_policy_lag": limit}
    config = make_config(env={"overrides": {"log": str(tmp_path)}}, learner=learner_keys)
    learner = launch.learner(config, "--local-collectors", "2")
    learner.reaches(40)
    poll(lambda: learner.metrics()[-1]["rollouts_discarded"] > 10, 20.0, "rollouts to be discarded")
    learner.signal(signal.SIGTERM)
    assert learner.exit_code(5.0) == 0
    lines = learner.metrics()
    assert {line["lag_max"] for line in lines} <= set(range(limit + 1))
    assert any(line["lag_max"] == limit for line in lines)
    for line in lines:
        settled = line["rollouts_trained"] + line["rollouts_discarded"]
        assert settled <= line["env_steps_collected"] / 32 <= settled + 2 * 4, "the metrics agree with each other"
    books = assert_books_balance(learner)
    assert sum(book["trained"] for book in books.values()) == lines[-1]["rollouts_trained"]
    too_old = sum(book.get("discarded: too old", 0) for book in books.values())
    assert too_old >= lines[-1]["rollouts_discarded"] > 10
    assert min(book["trained"] for book in books.values()) > 0, "no collector starves"
    first, second = (episodes(path) for path in tmp_path.glob("*.jsonl") if path.stem.isdigit())
    assert first[:20] != second[:20], "the seeds of two collectors differ"


def episodes(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
