from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers_mujoco import BACKENDS, Bead, push

from appo_collector.envs.native.physics import Physics
from appo_common.errors import ConfigError, EnvironmentFault


@pytest.fixture(autouse=True, params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Physics]:
    """Every test of this file runs on every backend."""
    monkeypatch.setattr(Bead, "physics", request.param)
    return request.param


def test_a_step_is_the_hand_calculated_one() -> None:
    env = Bead(num_envs=3)
    first = env.reset(seed=0)
    assert first["policy"].tolist() == [[0, 0], [10, 0], [20, 0]]
    step = push(env, 1.0, -2.0, 0.0)
    # Two physics steps of 0.1 s at 1 m/s²: v = 0.1, 0.2; x = 0.01, 0.03.
    np.testing.assert_allclose(step.obs["policy"], [[0.03, 0.2], [9.94, -0.4], [20, 0]], rtol=1e-6)
    np.testing.assert_allclose(step.reward, [0.7, 0.1, 0.5], rtol=1e-6)
    assert env.spec.step_dt == pytest.approx(0.2)
    assert env.spec.action_names == ["push"]
    # Sensors are computed before the last physics step moves the mass.
    np.testing.assert_allclose(step.obs["privileged"][:, 0], [0.01, 9.98, 20], rtol=1e-6)


def test_time_limit_truncates_exactly_at_the_limit_and_resets_within_the_step() -> None:
    env = Bead(num_envs=2, episode_seconds=0.6)  # three steps of 0.2 s
    assert env.spec.episode_limit == 3
    env.reset(seed=0)
    for _ in range(2):
        step = push(env, 1.0, 0.0)
        assert not step.truncated.any()
        assert step.final_obs["policy"].shape == (0, 2)
    step = push(env, 1.0, 0.0)
    assert step.truncated.tolist() == [True, True]
    assert not step.terminated.any()
    # x after six physics steps of 0.1 s is 0.01 * (1 + 2 + ... + 6).
    np.testing.assert_allclose(step.final_obs["policy"], [[0.21, 0.6], [10, 0]], rtol=1e-6)
    assert step.obs["policy"].tolist() == [[1, 0], [11, 0]]
    assert step.obs["privileged"].tolist() == [[1], [11]], "sensors must belong to the reset state"
    np.testing.assert_allclose(step.reward, [1.1, 0.5], rtol=1e-6)
    following = push(env, 1.0, 0.0)
    np.testing.assert_allclose(following.obs["policy"][0], [1.03, 0.2], rtol=1e-6)
    assert not following.truncated.any()


def test_only_the_environment_that_ended_is_reset() -> None:
    env = Bead(num_envs=3, reach=0.02)
    env.reset(seed=0)
    step = push(env, 0.0, 1.0, 0.0)
    assert step.terminated.tolist() == [False, True, False]
    assert not step.truncated.any()
    np.testing.assert_allclose(step.final_obs["policy"], [[10.03, 0.2]], rtol=1e-6)
    assert step.obs["policy"].tolist() == [[0, 0], [11, 0], [20, 0]]
    assert env.age.tolist() == [1, 0, 1]


def test_one_step_episodes() -> None:
    env = Bead(num_envs=2, episode_seconds=0.001)
    assert env.spec.episode_limit == 1
    env.reset(seed=0)
    for episode in range(1, 4):
        step = push(env, 1.0, 0.0)
        assert step.truncated.all()
        np.testing.assert_allclose(step.final_obs["policy"][0], [episode - 1 + 0.03, 0.2], rtol=1e-6)
        assert step.obs["policy"].tolist() == [[episode, 0], [10 + episode, 0]]


def test_both_flags_only_when_both_happened() -> None:
    env = Bead(num_envs=3, reach=0.05, episode_seconds=0.4)
    env.reset(seed=0)
    first = push(env, 1.0, 0.0, 2.0)  # x = 0.03 and 0.06
    assert first.terminated.tolist() == [False, False, True]
    assert first.truncated.tolist() == [False, False, False]
    second = push(env, 1.0, 0.0, 0.0)  # x = 0.10
    assert second.terminated.tolist() == [True, False, False]
    assert second.truncated.tolist() == [True, True, False]
    assert second.final_obs["policy"].shape == (2, 2)


def test_the_same_seed_gives_the_same_trajectories_whatever_the_threads() -> None:
    def play(threads: int, seed: int) -> np.ndarray:
        env = Bead(num_envs=8, threads=threads, stagger=True, episode_seconds=1.0)
        env.reset(seed)
        rng = np.random.default_rng(0)
        steps = [env.step(rng.normal(size=(8, 1))) for _ in range(20)]
        env.close()
        return np.array([np.column_stack([s.obs["policy"], s.reward, s.truncated]) for s in steps])

    reference = play(threads=1, seed=3)
    for threads in (0, 1, 2):
        np.testing.assert_array_equal(play(threads, seed=3), reference)
    assert not np.array_equal(play(threads=1, seed=4), reference)


def test_reset_starts_over() -> None:
    env = Bead(num_envs=1, stagger=True, episode_seconds=10.0)
    env.reset(seed=3)
    ages = env.age.copy()
    push(env, 1.0)
    env.starts[:] = 0.0
    assert env.reset(seed=3)["policy"].tolist() == [[0, 0]]
    assert env.age.tolist() == ages.tolist()


def test_staggered_episodes_time_out_at_different_steps_but_never_late() -> None:
    env = Bead(num_envs=64, stagger=True, episode_seconds=2.0)
    env.reset(seed=0)
    ends = np.array([push(env, *[0.0] * 64).truncated for _ in range(20)])
    assert (ends.sum(axis=0) == 2).all(), "each environment ends once in every ten steps"
    assert (ends.sum(axis=1) > 0).all(), "every step sees some of 64 environments end"


def test_returned_arrays_are_fresh_and_float32() -> None:
    env = Bead(num_envs=2, episode_seconds=0.4)
    kept = [env.reset(seed=0)["policy"]]
    copies = [kept[0].copy()]
    for _ in range(4):
        step = push(env, 1.0, -1.0)
        arrays = [*step.obs.values(), step.reward, *step.final_obs.values(), *step.info["terms"].values()]
        assert {array.dtype for array in arrays} == {np.dtype(np.float32)}
        arrays += [step.terminated, step.truncated]
        assert not any(np.shares_memory(array, env.qpos.base) for array in arrays)
        kept += arrays
        copies += [array.copy() for array in arrays]
    for array, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    assert step.terminated.dtype == step.truncated.dtype == np.dtype(bool)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_action_that_is_not_finite_ends_only_its_own_episode(value: float) -> None:
    env = Bead(num_envs=3)
    env.reset(seed=0)
    step = push(env, 1.0, value, 1.0)
    assert step.terminated.tolist() == [False, True, False]
    assert not step.truncated.any()
    np.testing.assert_allclose(step.reward, [0.7, 0.0, 0.7], rtol=1e-6)
    assert step.info["terms"]["bonus"].tolist() == [0.5, 0.0, 0.5]
    assert step.obs["policy"][1].tolist() == [11, 0]
    assert env.nonfinite_resets == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_state_that_blows_up_ends_the_episode_with_finite_numbers(
    value: float, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = Bead(num_envs=4, threads=threads, episode_seconds=0.2)
    env.reset(seed=0)
    env.qvel[2, 0] = value
    step = push(env, 1.0, 1.0, 1.0, 1.0)
    assert step.terminated.tolist() == [False, False, True, False]
    assert step.truncated.tolist() == [True, True, False, True]
    np.testing.assert_allclose(step.reward, [0.7, 0.7, 0.0, 0.7], rtol=1e-6)
    np.testing.assert_allclose(step.obs["policy"], [[1, 0], [11, 0], [21, 0], [31, 0]])
    assert np.isfinite(step.final_obs["policy"]).all()
    assert env.nonfinite_resets == 1
    after = push(env, 1.0, 1.0, 1.0, 1.0)
    np.testing.assert_allclose(after.reward, 0.7, rtol=1e-6)
    assert env.nonfinite_resets == 1
    env.close()
    assert not list(tmp_path.iterdir()), "MuJoCo's MUJOCO_LOG.TXT"


def test_lost_episodes_are_logged_at_once_and_then_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    env = Bead(num_envs=3)
    env.reset(seed=0)
    env.qvel[:2] = np.nan
    push(env, 0.0, 0.0, np.nan)
    assert caplog.messages[0].startswith(
        "test:bead: 3 episodes were lost, because an action or the state was not finite (3"
    )
    assert "MuJoCo: Nan, Inf or huge value in QVEL" in caplog.messages[0]
    for _ in range(5):
        push(env, np.nan, 0.0, 0.0)
    assert len(caplog.messages) == 1
    env._told_at -= 60.0
    push(env, np.nan, 0.0, 0.0)
    assert "6 episodes" in caplog.messages[1]
    assert "(9 so far)" in caplog.messages[1]


def test_wrong_use_says_what_is_wrong() -> None:
    env = Bead(num_envs=2)
    with pytest.raises(EnvironmentFault, match=r"before reset"):
        push(env, 0.0, 0.0)
    env.reset(seed=0)
    with pytest.raises(EnvironmentFault, match=r"\(3, 1\), not \(2, 1\)"):
        push(env, 0.0, 0.0, 0.0)
    env.close()
    env.close()
    with pytest.raises(EnvironmentFault, match="after close"):
        push(env, 0.0, 0.0)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_num_envs_must_be_a_positive_count(count: Any) -> None:
    with pytest.raises(ConfigError, match=r"env\.num_envs: .* whole number >= 1"):
        Bead(num_envs=count)
    with pytest.raises(ConfigError, match=r"env\.threads"):
        Bead(num_envs=1, threads=-1)
