"""A few updates with real processes through every kind of name. UniLab's and rsl_rl's have files of their own."""

from __future__ import annotations

from typing import Any

import pytest
from helpers_e2e import Launcher, make_config

GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 1.0}
CATEGORICAL = {"class_name": "CategoricalDistribution"}
GROUPS = {"actor": ["policy"], "critic": ["policy"]}
CARTPOLE = [
    ("envpool:CartPole-v1", {}),
    ("adapter_envs:vector", {"mode": "NEXT_STEP"}),
    ("adapter_envs:vector", {"mode": "SAME_STEP"}),
    ("adapter_envs:vector", {"mode": "DISABLED"}),
    ("adapter_envs:whole", {}),
]


def config(name: str, overrides: dict[str, Any], distribution: dict[str, Any], **train: Any) -> dict[str, Any]:
    env = {"name": name, "num_envs": 8, "overrides": overrides}
    made = make_config(env=env, train={"num_steps_per_env": 32, "max_iterations": 3, "obs_groups": GROUPS} | train)
    made["train"]["actor"]["distribution_cfg"] = distribution
    return made


@pytest.mark.parametrize(("name", "overrides"), CARTPOLE, ids=[f"{name} {o.get('mode', '')}" for name, o in CARTPOLE])
def test_cartpole_under_every_autoreset_mode(launch: Launcher, name: str, overrides: dict[str, Any]) -> None:
    """A step is worth 1, so that one which only resets would show: in the length, or in the return."""
    learner = launch.learner(config(name, overrides, CATEGORICAL), "--local-collectors", "1")
    assert learner.exit_code(55.0) == 0, learner.text
    last = learner.metrics()[-1]
    assert last["iteration"] == 3
    assert last["return_mean"] == last["length_mean"]
    assert 8 <= last["length_mean"] <= 40, "an undecided policy holds the pole for about 20 steps"


@pytest.mark.parametrize("name", ["gymnasium:Pendulum-v1", "adapter_envs:single"])
def test_bounded_actions_are_mapped_and_it_is_said(launch: Launcher, name: str) -> None:
    overrides = {"max_episode_steps": 20} if name.startswith("gymnasium") else {}
    learner = launch.learner(config(name, overrides, GAUSSIAN))
    collector = launch.collector(learner.address)
    assert learner.exit_code(55.0) == 0, learner.text
    collector.says(rf"{name}: actions from -1 to 1 are mapped to the environment's bounds.*rescale", 1.0)
    last = learner.metrics()[-1]
    assert (last["iteration"], last["length_mean"], last["timeout_rate"]) == (3, 20.0, 1.0)


def test_a_twin_with_its_reward_terms(launch: Launcher) -> None:
    learner = launch.learner(config("mujoco:Hopper-v5", {"max_episode_steps": 30}, GAUSSIAN), "--local-collectors", "1")
    assert learner.exit_code(55.0) == 0, learner.text
    last = learner.metrics()[-1]
    assert last["iteration"] == 3
    assert sum(last["reward_terms"].values()) == pytest.approx(last["return_mean"], rel=1e-4)


def test_envpools_robot_with_privileged_observations(launch: Launcher) -> None:
    groups = {"actor": ["state"], "critic": ["privileged_state"]}
    made = config("envpool:Go1JoystickFlatTerrain-v1", {}, GAUSSIAN, obs_groups=groups)
    learner = launch.learner(made, "--local-collectors", "1")
    assert learner.exit_code(55.0) == 0, learner.text
    assert learner.metrics()[-1]["iteration"] == 3


def test_pictures_and_several_choices_at_once_through_gymnasium(launch: Launcher) -> None:
    made = config("adapter_envs:Picture", {}, CATEGORICAL)
    model = {
        **{"class_name": "CNNModel", "hidden_dims": [16], "activation": "relu"},
        "cnn_cfg": {"output_channels": [4], "kernel_size": 4, "stride": 4, "activation": "relu"},
    }
    made["train"]["actor"], made["train"]["critic"] = {**model, "distribution_cfg": CATEGORICAL}, model
    learner = launch.learner(made, "--local-collectors", "1")
    assert learner.exit_code(55.0) == 0, learner.text
    last = learner.metrics()[-1]
    assert (last["iteration"], last["length_mean"], last["timeout_rate"]) == (3, 10.0, 1.0)
