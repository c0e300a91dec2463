"""The episode statistics that the learner logs are the environment's own sums of rewards, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers_e2e import Launcher, Learner, make_config

UPDATES = 12
STEPS = 8
WINDOW = 100
Run = tuple[Learner, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def run(shared_launch: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with one collector, hence one rollout per update, and the episodes that its environment has noted."""
    log = tmp_path_factory.mktemp("episodes")
    config = make_config(env={"num_envs": 16, "overrides": {"log": str(log)}}, train={"num_steps_per_env": STEPS})
    learner = shared_launch.learner(config, "--local-collectors", "1", "--max-iterations", str(UPDATES))
    assert learner.exit_code(50.0) == 0, learner.text
    (path,) = list(Path(log).iterdir())
    return learner, [json.loads(line) for line in path.read_text().splitlines()]


def until(episodes: list[dict[str, Any]], iteration: int) -> list[dict[str, Any]]:
    """The last 100 of the episodes that ended in the rollouts of the first ``iteration`` updates."""
    return [episode for episode in episodes if episode["step"] <= iteration * STEPS][-WINDOW:]


def test_both_kinds_of_endings_and_more_than_one_window_take_part(run: Run) -> None:
    learner, episodes = run
    assert learner.metrics()[-1]["rollouts_trained"] == UPDATES
    assert len(until(episodes, UPDATES)) == WINDOW
    assert len({episode["length"] for episode in episodes}) > 3
    assert {episode["timeout"] for episode in episodes} == {True, False}


@pytest.mark.parametrize(
    ("figure", "of"), [("return_mean", "return"), ("length_mean", "length"), ("timeout_rate", "timeout")]
)
def test_the_figure_is_the_mean_over_the_environments_own_record(run: Run, figure: str, of: str) -> None:
    """Time-outs are bootstrapped with γV for training; a return that held any of it would differ."""
    learner, episodes = run
    for line in learner.metrics():
        window = [float(episode[of]) for episode in until(episodes, line["iteration"])]
        expected = pytest.approx(sum(window) / len(window), rel=1e-9) if window else None
        assert line[figure] == expected, line["iteration"]


def test_returns_of_episodes_that_timed_out_hold_no_bootstrap(run: Run) -> None:
    """A reward is at most 10.5, so a value estimate added to a return would have to show."""
    learner, episodes = run
    for line in learner.metrics():
        window = until(episodes, line["iteration"])
        if window:
            assert line["return_mean"] <= 10.5 * max(episode["length"] for episode in window)


def test_the_reward_terms_sum_to_the_return(run: Run) -> None:
    for line in run[0].metrics():
        if line["return_mean"] is not None:
            assert sum(line["reward_terms"].values()) == pytest.approx(line["return_mean"], rel=1e-6)
            assert line["reward_terms"]["alive"] == pytest.approx(0.5 * line["length_mean"])


def test_the_summary_has_the_last_and_the_highest_return_of_the_run(run: Run) -> None:
    learner, _ = run
    returns = [line["return_mean"] for line in learner.metrics() if line["return_mean"] is not None]
    summary = learner.summary()
    assert summary["final_return"] == returns[-1]
    assert summary["best_return"] == max(returns)
