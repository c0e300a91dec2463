"""The twins against Gymnasium's own environments, number by number."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers_twins import compare, gymnasium_env, recording, twin_class

from appo_collector.envs.native.twins import TWINS

ENDS = {  # what ends episodes where actions are random
    "mujoco:HalfCheetah-v5": "truncated",
    "mujoco:Swimmer-v5": "truncated",
    "mujoco:Reacher-v5": "truncated",
}
ROUNDING = {  # Gymnasium squares, measures and adds in other ways than fit a batch and a sum of terms
    "mujoco:InvertedDoublePendulum-v5": 4e-15,
    "mujoco:Reacher-v5": 1e-15,
    "mujoco:Ant-v5": 4e-15,
}
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("HalfCheetah-v5", {"forward_reward_weight": 2.0, "ctrl_cost_weight": 0.3, "frame_skip": 3}),
    ("HalfCheetah-v5", {"reset_noise_scale": 0.4, "exclude_current_positions_from_observation": False}),
    ("Swimmer-v5", {"exclude_current_positions_from_observation": False, "max_episode_steps": 20}),
    ("Hopper-v5", {"terminate_when_unhealthy": False, "healthy_reward": 0.5, "forward_reward_weight": -1.0}),
    ("Hopper-v5", {"healthy_state_range": [-1.5, 1.5], "exclude_current_positions_from_observation": False}),
    ("Hopper-v5", {"healthy_z_range": [1.2, float("inf")], "healthy_angle_range": [-0.05, 0.1]}),
    ("Walker2d-v5", {"terminate_when_unhealthy": False, "ctrl_cost_weight": 0.0}),
    ("Walker2d-v5", {"healthy_z_range": [1.1, 1.3], "healthy_angle_range": [-0.2, 0.1], "reset_noise_scale": 0.02}),
    ("Ant-v4", {"terminate_when_unhealthy": False, "healthy_z_range": [0.5, 0.8], "healthy_reward": 3.0}),
    ("Ant-v4", {"healthy_z_range": [0.4, 0.8], "exclude_current_positions_from_observation": False}),
    ("Ant-v5", {"contact_cost_weight": 0.1, "contact_force_range": [-5.0, 20.0], "terminate_when_unhealthy": False}),
    ("Ant-v5", {"include_cfrc_ext_in_observation": False, "healthy_z_range": [0.4, 0.8], "frame_skip": 3}),
    ("InvertedPendulum-v5", {"reset_noise_scale": 0.15, "frame_skip": 1}),
    ("InvertedDoublePendulum-v5", {"healthy_reward": 5.0, "frame_skip": 2}),
    ("Reacher-v5", {"reward_dist_weight": 3.0, "reward_control_weight": 0.1, "max_episode_steps": 7}),
]


@pytest.mark.parametrize("name", TWINS)
def test_ten_thousand_steps_equal_gymnasiums(name: str) -> None:
    found = compare(name, num_envs=8, steps=1250)
    assert found.steps == 10_000
    assert found.state == 0.0
    assert found.obs == 0.0
    assert found.reward <= ROUNDING.get(name, 0.0)
    assert getattr(found, ENDS.get(name, "terminated")) >= 8


@pytest.mark.parametrize(("id", "options"), OPTIONS)
def test_options_mean_what_they_mean_to_gymnasium(id: str, options: dict[str, Any]) -> None:
    found = compare(f"mujoco:{id}", num_envs=4, steps=100, **options)
    assert found.state == found.obs == 0.0
    assert found.reward <= ROUNDING.get(f"mujoco:{id}", 0.0)
    if options.get("terminate_when_unhealthy") is False:
        assert found.terminated == 0


def test_a_fall_in_the_last_step_allowed_is_both_kinds_of_end() -> None:
    found = compare("mujoco:InvertedPendulum-v5", num_envs=8, steps=200, max_episode_steps=5)
    assert found.both > 0
    assert found.terminated > found.both
    assert found.truncated > found.both


def test_the_ends_of_the_rail_are_felt() -> None:
    """The observed force is zero until the cart gets there, which random actions do too late."""
    name, options = "mujoco:InvertedDoublePendulum-v5", {"reset_noise_scale": 1.0}
    twin = recording(name, 64, **options)
    twin.reset(seed=1)
    felt = 0
    for _ in range(10):
        twin.step(np.zeros((64, 1), dtype=np.float32))
        felt += np.count_nonzero(twin.played.obs[:, 8])
    assert felt > 5
    found = compare(name, num_envs=64, steps=10, **options)
    assert found.state == found.obs == 0.0


@pytest.mark.parametrize("name", TWINS)
def test_first_states_are_distributed_like_gymnasiums(name: str) -> None:
    count = 2000
    twin = twin_class(name)(count)
    twin.reset(seed=3)
    ours = start_statistics(twin.qpos, twin.qvel)
    env = gymnasium_env(name)
    data: Any = env.unwrapped.data  # type: ignore[attr-defined]
    env.reset(seed=4)
    states = []
    for _ in range(count):
        env.reset()
        states.append((data.qpos.copy(), data.qvel.copy()))
    theirs = start_statistics(*(np.stack(part) for part in zip(*states, strict=True)))
    (mean, deviation, kurtosis), (their_mean, their_deviation, their_kurtosis) = ours, theirs
    # Five standard errors; of a uniform kurtosis is 1.8, of a normal distribution 3.
    assert (np.abs(mean - their_mean) <= 5 * their_deviation * np.sqrt(2 / count)).all()
    np.testing.assert_allclose(deviation, their_deviation, rtol=5 * np.sqrt(1 / count))
    np.testing.assert_allclose(kurtosis, their_kurtosis, atol=0.7)
    twin.close()
    env.close()


def start_statistics(qpos: np.ndarray, qvel: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, standard deviation and kurtosis of every number, and of the distance of the last two positions."""
    state = np.concatenate([qpos, qvel, np.linalg.norm(qpos[:, -2:], axis=1, keepdims=True)], axis=1)
    mean, deviation = state.mean(axis=0), state.std(axis=0)
    centred = (state - mean) / np.where(deviation > 0, deviation, 1.0)
    return mean, deviation, (centred**4).mean(axis=0)


@pytest.mark.parametrize("name", TWINS)
def test_the_spec_says_what_gymnasium_says(name: str) -> None:
    twin, env = twin_class(name)(2), gymnasium_env(name)
    bounds: Any = env.action_space
    assert twin.spec.name == name
    assert twin.spec.action_low == bounds.low.tolist()
    assert twin.spec.action_high == bounds.high.tolist()
    assert twin.spec.num_actions == bounds.shape[0] == len(set(twin.spec.action_names))
    assert all(twin.spec.action_names)
    assert twin.spec.observations["policy"].shape == list(env.observation_space.shape or ())
    assert twin.spec.step_dt == env.unwrapped.dt  # type: ignore[attr-defined]
    assert twin.spec.episode_limit == gymnasium.spec(twin.id).max_episode_steps
    twin.close()
    env.close()
