"""How the twins are named, configured and refused."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from helpers_twins import gymnasium_env, twin_class

from appo_collector.envs.native.physics_rollout import RolloutPhysics
from appo_collector.envs.native.twins import TWINS
from appo_common.errors import ConfigError

NOT_OPTIONS = {"self", "kwargs", "xml_file", "default_camera_config", "main_body"}
CONTACTS = {"use_contact_forces", "contact_cost_weight", "contact_force_range"}


@pytest.mark.parametrize("name", TWINS)
def test_options_are_gymnasiums_arguments_with_its_defaults(name: str) -> None:
    options = dataclasses.asdict(twin_class(name).options_type())
    for ours in ("stagger", "max_episode_steps"):
        del options[ours]
    if name == "mujoco:Ant-v4":  # Gymnasium's has them only since v5
        assert options.pop("frame_skip") == 5
        assert options.pop("forward_reward_weight") == 1.0
    arguments = inspect.signature(type(gymnasium_env(name).unwrapped).__init__).parameters
    left_out = NOT_OPTIONS | (CONTACTS if name == "mujoco:Ant-v4" else set())
    assert options == {key: value.default for key, value in arguments.items() if key not in left_out}


@pytest.mark.parametrize("name", TWINS)
def test_the_table_names_the_classes(name: str) -> None:
    kind = twin_class(name)
    assert f"mujoco:{kind.id}" == name
    assert kind.__module__ == TWINS[name][0]
    assert len(TWINS[name][2]) < 100


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("Hopper-v5", {"helthy_reward": 1.0}, ["helthy_reward: unknown option", "'healthy_reward'"]),
        ("Reacher-v5", {"reset_noise_scale": 0.1}, ["reset_noise_scale: unknown option", "reward_dist_weight"]),
        ("Ant-v4", {"use_contact_forces": True}, ["use_contact_forces: unknown option"]),
        ("Hopper-v5", {"healthy_z_range": [2.0, 1.0]}, ["[2.0, 1.0]", "[lowest, highest]"]),
        ("Hopper-v5", {"healthy_z_range": [0.7, float("nan")]}, ["nan", "[lowest, highest]"]),
        ("Swimmer-v5", {"ctrl_cost_weight": float("inf")}, ["inf", "a number of any size"]),
        ("Swimmer-v5", {"max_episode_steps": 0}, ["max_episode_steps: 0", "of at least 1"]),
    ],
)
def test_wrong_options_are_named(name: str, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        twin_class(f"mujoco:{name}")(2, **options)
    for word in words:
        assert word in str(caught.value)


def test_without_gymnasium_the_error_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)  # how Python marks a module that is not to be had
    with pytest.raises(ConfigError, match=r"'mujoco:Hopper-v5' needs the package gymnasium.*appo\[gymnasium\]"):
        twin_class("mujoco:Hopper-v5")(2)


def test_an_old_mujoco_is_refused_with_the_alternative() -> None:
    class OnOldMujoco(twin_class("mujoco:HalfCheetah-v5")):  # type: ignore[misc]
        physics = RolloutPhysics  # what is taken without mujoco.batch

    with pytest.raises(ConfigError, match=r"mujoco>=3\.17.*'gymnasium:HalfCheetah-v5'"):
        OnOldMujoco(2)


def test_the_table_costs_no_import_and_a_twin_does_not_import_gymnasium() -> None:
    code = (
        "import sys; from appo_collector.envs.native.twins import TWINS; assert 'mujoco' not in sys.modules; "
        "from appo_collector.envs.native.twins.pendulums import InvertedPendulum; "
        "InvertedPendulum(2).reset(seed=0); assert 'gymnasium' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_one_seed_one_trajectory_and_the_first_ages_can_be_spread() -> None:
    runs = []
    for seed in (1, 1, 2):
        twin = twin_class("mujoco:Reacher-v5")(3, stagger=True)
        twin.reset(seed)
        assert twin.ages().max() > 0
        runs.append([twin.step(np.full((3, 2), 0.1, dtype=np.float32)).obs["policy"] for _ in range(60)])
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])
