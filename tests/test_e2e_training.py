"""A MuJoCo task trained by real processes, over shared memory and over TCP."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from helpers_e2e import Launcher, Learner, assert_books_balance, launching
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from appo_collector.envs.native.cartpole_swingup import SOLVED_RETURN

UPDATES = 12
PROMISED = {
    *("iteration", "time_s", "env_steps", "env_steps_collected", "return_mean", "length_mean", "timeout_rate", "fps"),
    *("lag_mean", "lag_max", "rollouts_trained", "rollouts_discarded", "collectors"),
    *("learning_rate", "losses"),
    *("wait_s", "stage_s", "update_s", "publish_s"),
    *("infer_ms", "env_step_ms", "send_ms", "credit_wait_ms"),
}
RSL_RL_TAGS = {
    "Loss/value",
    "Loss/surrogate",
    "Loss/entropy",
    "Loss/learning_rate",
    "Policy/mean_std",
    "Perf/total_fps",
    "Perf/collection_time",
    "Perf/learning_time",
    "Train/mean_reward",
    "Train/mean_episode_length",
    "Train/mean_reward/time",
    "Train/mean_episode_length/time",
}


def train(launch: Launcher, path: str, *options: str) -> Learner:
    """Train cartpole-swingup with two collectors: the learner's own, or two that were told to use TCP."""
    if path == "shm":
        return launch.learner("cartpole-swingup", "--local-collectors", "2", *options)
    learner = launch.learner("cartpole-swingup", "--set", "learner.min_collectors=2", *options)
    for _ in range(2):
        launch.collector(learner.address, "--transport", "tcp")
    return learner


@pytest.fixture(scope="module", params=["shm", "tcp"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Learner]]:
    """A short run that has ended, and the path that its collectors should have taken."""
    with launching(tmp_path_factory.mktemp(request.param)) as launch:
        # An episode of 1 s is shorter than a rollout, so that the first update has returns to show.
        overrides = "env.overrides={episode_seconds: 1, stagger: false}"
        short = ("--set", overrides, "--max-iterations", str(UPDATES))
        learner = train(launch, request.param, *short)
        assert learner.exit_code(55.0) == 0, learner.text
        for program in launch.programs[1:]:
            assert program.exit_code(5.0) == 0, program.text
        yield request.param, learner


def test_both_collectors_take_the_path_that_fits(run: tuple[str, Learner]) -> None:
    path, learner = run
    joined = [line for line in learner.text.splitlines() if " joined over " in line]
    assert len(joined) == 2
    assert all(f"joined over {path}" in line for line in joined), joined
    if path == "tcp":
        assert all("--transport tcp" in line for line in joined), "the line says why"


def test_the_run_directory_holds_what_is_promised(run: tuple[str, Learner]) -> None:
    _, learner = run
    names = {entry.name for entry in learner.run_dir.iterdir()}
    assert {"config.yaml", "endpoint.json", "metrics.jsonl", "summary.json", "checkpoints"} <= names
    config = yaml.safe_load((learner.run_dir / "config.yaml").read_text())
    assert config["train"]["max_iterations"] == UPDATES
    assert config["env"]["overrides"]["episode_seconds"] == 1
    ports = [value for key, value in learner.endpoint().items() if key.endswith("_port")]
    assert len(set(ports)) == 3
    assert 0 not in ports
    checkpoint = torch.load(learner.checkpoint(UPDATES), weights_only=True)
    assert {"actor_state_dict", "critic_state_dict", "optimizer_state_dict", "iter", "infos"} <= checkpoint.keys()
    assert checkpoint["iter"] == UPDATES


def test_every_update_has_a_line_with_every_promised_figure(run: tuple[str, Learner]) -> None:
    _, learner = run
    lines = learner.metrics()
    assert [line["iteration"] for line in lines] == list(range(1, UPDATES + 1))
    for line in lines:
        assert line.keys() >= PROMISED, PROMISED - line.keys()
        assert line.keys() == lines[0].keys()
        numbers = [value for key, value in line.items() if key not in ("losses", "reward_terms")]
        assert all(isinstance(value, (int, float)) and math.isfinite(value) for value in numbers), line
        assert all(math.isfinite(loss) for loss in line["losses"].values())
        assert line["collectors"] == 2
        assert line["env_steps_collected"] >= line["env_steps"]
        assert 0 <= line["return_mean"] <= line["length_mean"] == 25
        assert line["timeout_rate"] == 1
        assert set(line["reward_terms"]) == {"upright", "calm", "centred", "gentle"}
        assert sum(line["reward_terms"].values()) == pytest.approx(line["return_mean"], rel=1e-4)
        assert line["lag_max"] <= 10
    rollouts = [line["rollouts_trained"] for line in lines]
    assert [line["env_steps"] for line in lines] == [64 * 32 * count for count in rollouts]
    assert min(line["env_step_ms"] for line in lines) > 0
    assert min(line["update_s"] for line in lines) > 0


def test_the_event_file_has_rsl_rls_tags(run: tuple[str, Learner]) -> None:
    _, learner = run
    events = EventAccumulator(str(learner.run_dir)).Reload()
    assert set(events.Tags()["scalars"]) >= RSL_RL_TAGS
    logged = [(event.step, event.value) for event in events.Scalars("Train/mean_reward")]
    assert logged == [(line["iteration"], pytest.approx(line["return_mean"])) for line in learner.metrics()]


def test_the_summary_says_what_was_done_and_how_to_go_on(run: tuple[str, Learner]) -> None:
    _, learner = run
    summary, last = learner.summary(), learner.metrics()[-1]
    assert (summary["iterations"], summary["env_steps"]) == (UPDATES, last["env_steps"])
    assert "max_iterations" in summary["reason"]
    assert summary["final_return"] == pytest.approx(last["return_mean"])
    assert summary["best_return"] >= summary["final_return"]
    assert Path(summary["checkpoint"]) == learner.checkpoint(UPDATES)
    assert f"--resume {learner.run_dir}" in summary["resume_command"]
    for words in ("env steps/s", summary["checkpoint"], summary["resume_command"]):
        assert words in learner.text


def test_the_books_of_both_collectors_balance(run: tuple[str, Learner]) -> None:
    _, learner = run
    books = assert_books_balance(learner)
    last = learner.metrics()[-1]
    assert len(books) == 2
    assert sum(book["trained"] for book in books.values()) == last["rollouts_trained"]
    assert min(book["trained"] for book in books.values()) > 0
    assert sum(book["lost"] for book in books.values()) == 0


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_two_collectors_solve_the_task_within_three_minutes(launch: Launcher, path: str) -> None:
    learner = train(launch, path)
    assert learner.exit_code(180.0) == 0
    final = learner.summary()["final_return"]
    assert final >= SOLVED_RETURN, learner.text
