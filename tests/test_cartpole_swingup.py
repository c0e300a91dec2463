from __future__ import annotations

import numpy as np
import pytest

from appo_collector.envs.contract import Step
from appo_collector.envs.native.cartpole_swingup import SOLVED_RETURN, CartpoleSwingup
from appo_common.errors import ConfigError


@pytest.fixture
def env() -> CartpoleSwingup:
    made = CartpoleSwingup(2, reset_noise=0.0)
    made.reset(seed=0)
    return made


def still(env: CartpoleSwingup) -> Step:
    return env.step(np.zeros((env.spec.num_envs, 1), dtype=np.float32))


def test_spec() -> None:
    spec = CartpoleSwingup(7).spec
    assert spec.name == "mujoco:cartpole-swingup"
    assert spec.observations["policy"].shape == [5]
    assert (spec.num_envs, spec.num_actions, spec.episode_limit) == (7, 1, 250)
    assert spec.step_dt == pytest.approx(0.04)
    assert spec.action_names == ["push"]
    assert spec.episode_limit > SOLVED_RETURN


def test_hanging_at_rest_stays_there_and_earns_nothing(env: CartpoleSwingup) -> None:
    np.testing.assert_allclose(env.reset(seed=0)["policy"], [[0, 0, -1, 0, 0]] * 2, atol=1e-6)
    for _ in range(25):
        step = still(env)
    np.testing.assert_allclose(step.obs["policy"], [[0, 0, -1, 0, 0]] * 2, atol=1e-6)
    np.testing.assert_allclose(step.reward, 0.0, atol=1e-6)
    assert not step.terminated.any()


def test_upright_in_the_middle_at_rest_earns_one(env: CartpoleSwingup) -> None:
    env.qpos[:] = 0.0
    step = still(env)
    np.testing.assert_allclose(step.reward, 1.0, atol=1e-6)
    np.testing.assert_allclose(step.obs["policy"], [[0, 0, 1, 0, 0]] * 2, atol=1e-6)


def test_reward_terms_are_the_formulas_and_sum_to_the_reward() -> None:
    env = CartpoleSwingup(16)
    env.reset(seed=1)
    rng = np.random.default_rng(0)
    env.qpos[:, 1] = rng.uniform(-3, 3, 16)
    for _ in range(30):
        actions = rng.uniform(-2, 2, (16, 1))
        step = env.step(actions)
        terms = step.info["terms"]
        assert list(terms) == env.spec.reward_terms
        np.testing.assert_allclose(sum(terms.values()), step.reward, atol=1e-6)
        assert ((step.reward >= 0) & (step.reward <= 1)).all()
        calm = 0.5 * (1 + np.cos(env.qpos[:, 1])) * np.exp(-(env.qvel[:, 1] ** 2) / 9)
        effort = np.clip(actions[:, 0], -1, 1) ** 2
        np.testing.assert_allclose(terms["calm"], 0.4 * calm, atol=1e-6)
        np.testing.assert_allclose(terms["gentle"], 0.1 * calm * (1 - effort), atol=1e-6)


def test_the_push_is_clipped_and_moves_the_cart_by_newton(env: CartpoleSwingup) -> None:
    start = np.array([0.0, np.pi])
    env.qpos[:] = start
    step = env.step(np.array([[1.0], [50.0]], dtype=np.float32))
    np.testing.assert_array_equal(step.obs["policy"][0], step.obs["policy"][1])
    # 12 N on a cart of 1 kg with a hanging rod of 0.1 kg: the rod's pivot feels 1 + 0.1 / 4 kg at first; the
    # friction of 2 N s/m has hardly begun after 0.04 s.
    assert env.qvel[0, 0] == pytest.approx(12 / 1.025 * 0.04, rel=0.05)
    assert step.obs["policy"][0, 3] == pytest.approx(env.qvel[0, 0] / 2)
    assert step.obs["policy"][0, 0] == pytest.approx(env.qpos[0, 0] / 1.8)


def test_the_rail_stops_the_cart(env: CartpoleSwingup) -> None:
    for _ in range(100):
        env.step(np.ones((2, 1), dtype=np.float32))
    assert np.abs(env.qpos[:, 0]).max() < 1.85


def test_starts_differ_between_environments_and_seeds() -> None:
    env = CartpoleSwingup(64)
    first = env.reset(seed=0)["policy"]
    assert len(np.unique(first[:, 1])) == 64
    assert np.array_equal(env.reset(seed=0)["policy"], first)
    assert not np.array_equal(env.reset(seed=1)["policy"], first)
    assert (first[:, 2] < -0.8).all(), "every pole hangs"


def test_episode_is_truncated_at_its_limit() -> None:
    env = CartpoleSwingup(3, episode_seconds=0.2)
    env.reset(seed=0)
    flags = [still(env).truncated.all() for _ in range(10)]
    assert flags == [False, False, False, False, True] * 2


def test_wrong_overrides_are_all_named() -> None:
    with pytest.raises(ConfigError) as caught:
        CartpoleSwingup(1, episode_second=5, reset_noise=-1, stagger=1)
    text = str(caught.value)
    assert "env.overrides.episode_second: unknown option (value 5); did you mean 'episode_seconds'?" in text
    assert "env.overrides.reset_noise: -1 is not allowed; it must be a number from 0 to 3" in text
    assert "env.overrides.stagger: 1 is not allowed; it must be true or false" in text
