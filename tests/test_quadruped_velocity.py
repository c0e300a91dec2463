from __future__ import annotations

from itertools import pairwise

import mujoco
import numpy as np
import pytest
from helpers_mujoco import BACKENDS

from appo_collector.envs.native.physics import Physics
from appo_collector.envs.native.quadruped_velocity import STANDING, QuadrupedVelocity
from appo_common.errors import ConfigError

STILL = {"command_x": [0, 0], "command_y": [0, 0], "command_yaw": [0, 0]}


def zeros(env: QuadrupedVelocity) -> np.ndarray:
    return np.zeros((env.spec.num_envs, 12), dtype=np.float32)


def test_spec() -> None:
    env = QuadrupedVelocity(2)
    assert env.spec.name == "mujoco:quadruped-velocity"
    assert {name: group.shape for name, group in env.spec.observations.items()} == {
        "policy": [45],
        "privileged": [57],
    }
    assert (env.spec.num_actions, env.spec.episode_limit) == (12, 1000)
    assert env.spec.step_dt == pytest.approx(0.02)
    assert env.spec.action_names[:3] == ["FL_abduction", "FL_hip", "FL_knee"]
    assert 11 < env.model.body_mass.sum() < 14


def test_stands_for_two_seconds_without_actions() -> None:
    env = QuadrupedVelocity(16, **STILL)
    env.reset(seed=0)
    for _ in range(100):
        step = env.step(zeros(env))
        assert not step.terminated.any()
    assert (env.qpos[:, 2] > 0.26).all()
    assert (step.obs["privileged"][:, 49:53] == 1).all(), "all four feet on the ground"
    # At rest the feet carry the whole weight.
    weight = env.model.body_mass.sum() * 9.81
    np.testing.assert_allclose(env.sensors.sum(axis=1), weight, rtol=0.05)
    assert (np.abs(env.qvel) < 0.2).all()
    # Standing where standing was asked for is nearly the perfect step of 0.1.
    assert (step.reward > 0.095).all()


def test_reward_terms_sum_to_the_reward_also_when_it_falls() -> None:
    env = QuadrupedVelocity(32)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    falls = 0
    for _ in range(150):
        step = env.step(rng.normal(scale=3.0, size=(32, 12)))
        terms = step.info["terms"]
        assert list(terms) == env.spec.reward_terms
        np.testing.assert_allclose(sum(terms.values()), step.reward, atol=1e-5)
        np.testing.assert_array_equal(terms["fall"] < 0, step.terminated)
        falls += step.terminated.sum()
    assert falls > 0, "wild actions throw it over"
    assert env.nonfinite_resets == 0


def test_tracking_follows_the_command_in_the_frame_of_the_trunk() -> None:
    env = QuadrupedVelocity(1, observation_noise=0)
    env.reset(seed=0)
    env.qpos[0, 3:7] = [np.cos(np.pi / 4), 0, 0, np.sin(np.pi / 4)]  # turned left by 90 degrees
    env.qvel[0] = 0.0
    env.qvel[0, :3] = [-0.3, 0.5, 0.0]  # the world's y is forward for it
    velocity, gravity = env._motion(slice(None))
    np.testing.assert_allclose(velocity[0], [0.5, 0.3, 0.0], atol=1e-12)
    np.testing.assert_allclose(gravity[0], [0, 0, -1], atol=1e-12)
    env.command[:] = [[0.5, 0.3, 0.0]]
    terms = env._rewards(zeros(env))
    assert terms["track_velocity"][0] == pytest.approx(0.065)
    assert terms["track_yaw"][0] == pytest.approx(0.035)
    env.command[:] = [[0.5 + np.sqrt(0.2), 0.3, np.sqrt(0.2)]]
    terms = env._rewards(zeros(env))
    assert terms["track_velocity"][0] == pytest.approx(0.065 / np.e)
    assert terms["track_yaw"][0] == pytest.approx(0.035 / np.e)


def test_orientation_agrees_with_mujoco() -> None:
    env = QuadrupedVelocity(1, observation_noise=0)
    env.reset(seed=0)
    quaternion = np.array([0.8, 0.2, -0.3, 0.4]) / np.linalg.norm([0.8, 0.2, -0.3, 0.4])
    env.qpos[0, 3:7] = quaternion
    env.qvel[0, :3] = [0.3, -0.2, 0.1]
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, quaternion)
    to_world = matrix.reshape(3, 3)
    velocity, gravity = env._motion(np.array([0]))
    np.testing.assert_allclose(velocity[0], to_world.T @ env.qvel[0, :3], atol=1e-12)
    np.testing.assert_allclose(gravity[0], to_world.T @ [0, 0, -1], atol=1e-12)


def test_torque_term_uses_the_torque_of_the_simulated_controllers() -> None:
    env = QuadrupedVelocity(1)
    env.reset(seed=0)
    actions = np.linspace(-1, 1, 12)[None, :]
    env.step(actions)
    data = mujoco.MjData(env.model)
    data.qpos[:], data.qvel[:], data.ctrl[:] = env.qpos[0], env.qvel[0], env._control(actions)[0]
    mujoco.mj_forward(env.model, data)
    expected = np.square(data.actuator_force).sum()
    assert env._torque_square(actions)[0] == pytest.approx(expected, rel=1e-6)


def test_observations_hold_what_the_docstring_says() -> None:
    env = QuadrupedVelocity(4, observation_noise=0)
    env.reset(seed=2)
    actions = np.random.default_rng(0).uniform(-1, 1, (4, 12))
    policy = env.step(actions).obs["policy"]
    np.testing.assert_allclose(policy[:, :3], env.qvel[:, 3:6] * 0.25, atol=1e-5)
    np.testing.assert_allclose(policy[:, 6:9], env.command, atol=1e-6)
    np.testing.assert_allclose(policy[:, 9:21], env.qpos[:, 7:] - STANDING, atol=1e-6)
    np.testing.assert_allclose(policy[:, 21:33], env.qvel[:, 6:] * 0.05, atol=1e-5)
    np.testing.assert_allclose(policy[:, 33:], actions, atol=1e-6)


def test_noise_reaches_the_policy_group_only_and_not_the_command_or_action() -> None:
    env = QuadrupedVelocity(8)
    obs = env.reset(seed=0)
    difference = np.abs(obs["policy"] - obs["privileged"][:, :45])
    assert difference.max() > 0.01
    assert difference.max() < 0.06
    assert difference[:, 6:9].max() == 0
    assert difference[:, 33:].max() == 0


def test_a_fall_terminates_and_the_next_episode_stands() -> None:
    env = QuadrupedVelocity(3)
    env.reset(seed=0)
    env.qpos[1, 3:7] = [np.cos(0.8), np.sin(0.8), 0, 0]  # rolled by 1.6 rad
    env.qpos[2, 2] = 0.1
    step = env.step(zeros(env))
    assert step.terminated.tolist() == [False, True, True]
    assert not step.truncated.any()
    assert step.info["terms"]["fall"].tolist() == pytest.approx([0, -1, -1])
    assert step.final_obs["privileged"].shape == (2, 57)
    assert step.final_obs["policy"][0, 5] > -0.5, "the last observation is the fallen one"
    assert (step.obs["policy"][:, 5] < -0.9).all(), "the next episode begins upright"
    assert (step.obs["policy"][1:, 33:] == 0).all(), "without a previous action"


def test_commands_change_after_their_time_and_lie_in_their_ranges() -> None:
    env = QuadrupedVelocity(64, command_seconds=0.1, command_x=[0.2, 0.4], standing_share=0.25)
    env.reset(seed=0)
    seen = [env.command.copy()]
    for _ in range(10):
        env.step(zeros(env))
        seen.append(env.command.copy())
    changed = [bool((a != b).any()) for a, b in pairwise(seen)]
    assert changed == [False, False, False, False, True] * 2
    commands = np.concatenate([seen[0], seen[5], seen[10]])
    standing = (commands == 0).all(axis=1)
    assert 0.1 < standing.mean() < 0.4
    assert (commands[~standing, 0] >= 0.2).all()
    assert (commands[~standing, 0] <= 0.4).all()


def test_landing_feet_are_paid_by_the_time_they_were_up() -> None:
    env = QuadrupedVelocity(1, standing_share=0)
    env.reset(seed=0)
    env.command[:] = [[0.5, 0.0, 0.0]]
    env._airborne[:] = [[0.3, 0.22, 0.0, 0.5]]
    env.sensors = np.array([[20.0, 20.0, 20.0, 0.0]])  # the last foot is still up, the third was never
    assert env._swings()[0] == pytest.approx(0.18 + 0.10)
    env.command[:] = 0.0
    assert env._swings()[0] == 0


def test_same_seed_same_trajectory_with_any_number_of_threads() -> None:
    def play(threads: int, seed: int) -> np.ndarray:
        env = QuadrupedVelocity(8, threads=threads, episode_seconds=0.5)
        env.reset(seed)
        rng = np.random.default_rng(1)
        return np.array([env.step(rng.normal(size=(8, 12))).obs["privileged"] for _ in range(40)])

    reference = play(1, seed=0)
    np.testing.assert_array_equal(play(2, seed=0), reference)
    assert not np.array_equal(play(1, seed=1), reference)


@pytest.mark.parametrize("backend", BACKENDS)
def test_randomised_robots_differ_as_asked(backend: type[Physics], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuadrupedVelocity, "physics", backend)
    env = QuadrupedVelocity(8, friction=[0.5, 0.8], mass=[1.1, 1.4], gain=[0.9, 1.0], **STILL)
    env.reset(seed=0)
    nominal = env.model
    for field, low, high in (("geom_friction", 0.5, 0.8), ("body_mass", 1.1, 1.4), ("actuator_gainprm", 0.9, 1.0)):
        value = getattr(nominal, field)
        factors = (env.model_field(field)[:, value > 0] / value[value > 0]).T
        assert len(np.unique(factors[0])) == 8, "one factor per environment"
        np.testing.assert_allclose(factors, np.broadcast_to(factors[0], factors.shape))
        assert ((factors >= low) & (factors <= high)).all()
    for _ in range(100):
        env.step(zeros(env))
    weight = env.model_field("body_mass").sum(axis=1) * 9.81
    np.testing.assert_allclose(env.sensors.sum(axis=1), weight, rtol=0.05)
    # The torque term knows the environment's own controllers.
    actions = np.tile(np.linspace(-1, 1, 12), (8, 1))
    data = mujoco.MjData(nominal)
    data.qpos[:], data.qvel[:], data.ctrl[:] = env.qpos[3], env.qvel[3], env._control(actions)[3]
    mujoco.mj_forward(env._physics.model_of(3), data)
    assert env._torque_square(actions)[3] == pytest.approx(np.square(data.actuator_force).sum(), rel=1e-6)


def test_ranges_of_one_draw_no_random_numbers() -> None:
    plain, ones = QuadrupedVelocity(4), QuadrupedVelocity(4, friction=[1, 1], mass=[1, 1], gain=[1.0, 1.0])
    np.testing.assert_array_equal(plain.reset(seed=3)["policy"], ones.reset(seed=3)["policy"])
    assert plain._rng.bit_generator.state == ones._rng.bit_generator.state


def test_wrong_overrides_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        QuadrupedVelocity(1, command_x=[1.0, 0.5], command_y=0.3, action_scale="big", comand_yaw=[0, 1])
    text = str(caught.value)
    assert "env.overrides.command_x: [1.0, 0.5] is not allowed; it must be a list [lowest, highest]" in text
    assert "env.overrides.command_y: 0.3" in text
    assert "env.overrides.action_scale: 'big' is not allowed; it must be a number from 0.01 to 2" in text
    assert "did you mean 'command_yaw'?" in text


def test_render_shows_a_robot_on_a_floor() -> None:
    env = QuadrupedVelocity(1)
    env.reset(seed=0)
    picture = env.render(width=160, height=120)
    assert picture.shape == (120, 160, 3)
    assert picture.std() > 20
    env.close()
