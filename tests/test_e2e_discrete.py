"""Discrete and MultiDiscrete actions trained by real processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import yaml
from discrete_envs import LENGTH, NVEC
from helpers_e2e import Launcher, Learner, launching, make_config, sha256
from rsl_rl.models import MLPModel
from tensordict import TensorDict

UPDATES = 25
CATEGORICAL = {"class_name": "CategoricalDistribution"}


def config(**sections: dict[str, Any]) -> dict[str, Any]:
    """A configuration for ``discrete_envs:Match``."""
    train: dict[str, Any] = {
        "num_steps_per_env": 32,
        "max_iterations": UPDATES,
        "algorithm": {"num_learning_epochs": 5, "num_mini_batches": 2, "learning_rate": 0.01, "gamma": 0.5},
    }
    made = make_config(env={"name": "discrete_envs:Match", "num_envs": 16}, train=train)
    made["train"]["actor"]["distribution_cfg"] = CATEGORICAL
    for name, section in sections.items():
        made[name] |= section
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Learner]:
    """A run on MultiDiscrete actions that has ended."""
    with launching(tmp_path_factory.mktemp("match")) as launch:
        learner = launch.learner(config(), "--local-collectors", "1")
        assert learner.exit_code(55.0) == 0, learner.text
        yield learner


def test_several_choices_at_once_are_learnt(run: Learner) -> None:
    """Guessing earns 0.361 per step, and pressing the best known button of two panels of three 0.75 at most."""
    lines = run.metrics()
    assert lines[0]["return_mean"] / LENGTH == pytest.approx(0.361, abs=0.05)
    assert lines[-1]["return_mean"] / LENGTH > 0.9
    assert lines[0]["losses"]["entropy"] == pytest.approx(float(torch.tensor(NVEC).log().sum()), abs=0.1)


def test_rsl_rl_reads_the_checkpoint_with_the_saved_configuration(run: Learner) -> None:
    """Only ``nvec`` is added, which the learner has from the environment."""
    actor = yaml.safe_load((run.run_dir / "config.yaml").read_text())["train"]["actor"]
    actor["distribution_cfg"]["nvec"] = NVEC
    assert actor.pop("class_name") == "MLPModel"
    obs = TensorDict({"policy": torch.eye(sum(NVEC))[[1]] + torch.eye(sum(NVEC))[[4]] + torch.eye(sum(NVEC))[[8]]}, [1])
    model = MLPModel(obs, {"actor": ["policy"]}, "actor", len(NVEC), **actor)
    checkpoint = torch.load(run.checkpoint(UPDATES), weights_only=True)
    model.load_state_dict(checkpoint["actor_state_dict"], strict=True)
    assert model.eval()(obs).tolist() == [[1.0, 1.0, 3.0]], "presses what is lit"


def test_synchronous_runs_repeat_bit_for_bit(launch: Launcher) -> None:
    sums = []
    for path in ("shm", "tcp"):
        made = config(learner={"mode": "sync", "min_collectors": 2})
        learner = launch.learner(made, "--max-iterations", "4")
        for _ in range(2):
            launch.collector(learner.address, "--transport", path)
        assert learner.exit_code(55.0) == 0, learner.text
        sums.append(sha256(learner.checkpoint(4)))
    assert sums[0] == sums[1]


@pytest.mark.parametrize(
    ("name", "distribution", "words"),
    [
        (
            "discrete_envs:Match",
            {"class_name": "GaussianDistribution", "init_std": 1.0},
            ["actions", "discrete (3, 2, 4 choices)", "`distribution_cfg: {class_name: CategoricalDistribution}`"],
        ),
        ("e2e_envs:Drift", CATEGORICAL, ["continuous", "`distribution_cfg: {class_name: GaussianDistribution"]),
    ],
)
def test_a_distribution_that_does_not_suit_the_actions_ends_the_run(
    launch: Launcher, name: str, distribution: dict[str, Any], words: list[str]
) -> None:
    made = config(env={"name": name})
    made["train"]["actor"]["distribution_cfg"] = distribution
    learner = launch.learner(made, "--local-collectors", "1")
    assert learner.exit_code(40.0) == 2, learner.text
    for word in ("config-0.yaml: train.actor.distribution_cfg.class_name = ", *words):
        assert word in learner.text
    assert "Traceback" not in learner.text


def test_the_cartpole_preset_trains(launch: Launcher) -> None:
    learner = launch.learner("cartpole-v1", "--local-collectors", "1", "--max-iterations", "3")
    assert learner.exit_code(55.0) == 0, learner.text
    lines = learner.metrics()
    assert [line["iteration"] for line in lines] == [1, 2, 3]
    assert 8 <= lines[0]["return_mean"] <= 40, "an undecided policy holds the pole for about 20 steps"
    assert lines[0]["return_mean"] == lines[0]["length_mean"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_two_collectors_solve_cartpole_within_two_minutes(launch: Launcher) -> None:
    learner = launch.learner("cartpole-v1", "--local-collectors", "2")
    assert learner.exit_code(120.0) == 0, learner.text
    assert learner.summary()["final_return"] >= 475.0, learner.text
