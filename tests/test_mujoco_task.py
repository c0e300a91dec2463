from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from appo_collector.envs import offscreen
from appo_collector.envs.contract import Observations, Step
from appo_collector.envs.mujoco_task import MujocoTask, Rows, columns, load_asset
from appo_collector.envs.options import TaskOptions, read_options
from appo_common.errors import ConfigError, EnvironmentFault

# One mass on a slide, moved by a motor of 1 N: v += a * dt, then x += v * dt (semi-implicit Euler).
BEAD = """
<mujoco>
  <option timestep="0.1" gravity="0 0 0" integrator="Euler"/>
  <worldbody>
    <camera name="track" pos="0 -3 0" xyaxes="1 0 0 0 0 1"/>
    <light pos="0 -2 2" dir="0 1 -1"/>
    <body><joint name="slide" type="slide" axis="1 0 0"/><geom size=".2" mass="1" rgba=".9 .4 .1 1"/></body>
  </worldbody>
  <actuator><motor name="push" joint="slide"/></actuator>
  <sensor><jointpos joint="slide"/></sensor>
</mujoco>
"""


class Bead(MujocoTask):
    """Starts at ``10 * env + starts so far``; falls when it has moved by more than ``reach``."""

    def __init__(self, num_envs: int = 3, *, threads: int = 1, reach: float = 1e9, **options: Any) -> None:
        super().__init__(
            mujoco.MjModel.from_xml_string(BEAD),
            name="test:bead",
            num_envs=num_envs,
            threads=threads,
            frame_skip=2,
            observations={"policy": 2, "privileged": 1},
            reward_terms=("speed", "bonus"),
            options=read_options(TaskOptions, options),
        )
        self.reach = reach
        self.starts = np.zeros(num_envs)
        self.origin = np.zeros(num_envs)

    def _start(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        self.origin[rows] = 10.0 * rows + self.starts[rows]
        self.qpos[rows, 0] = self.origin[rows]
        self.starts[rows] += 1

    def _control(self, actions: np.ndarray) -> np.ndarray:
        return actions

    def _rewards(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        return {"speed": self.qvel[:, 0].copy(), "bonus": np.full(self.spec.num_envs, 0.5)}

    def _terminated(self) -> np.ndarray:
        return np.abs(self.qpos[:, 0] - self.origin) > self.reach

    def _observe(self, rows: Rows, rng: np.random.Generator) -> Observations:
        return {
            "policy": columns(self.qpos[rows], self.qvel[rows]),
            "privileged": columns(self.sensors[rows]),
        }


def push(env: MujocoTask, *force: float) -> Step:
    return env.step(np.array(force, dtype=np.float32)[:, None])


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


@pytest.mark.parametrize("asset", ["cartpole.xml", "quadruped.xml"])
def test_equals_a_plain_loop_bit_for_bit(asset: str) -> None:
    class Free(Bead):
        def __init__(self) -> None:
            model = load_asset(asset)
            MujocoTask.__init__(
                self,
                model,
                name="test:free",
                num_envs=4,
                threads=2,
                frame_skip=4,
                observations={"policy": model.nq + model.nv},
                reward_terms=(),
                options=TaskOptions(episode_seconds=100.0),
            )

        def _start(self, rows: np.ndarray, rng: np.random.Generator) -> None:
            self.qvel[rows] = rng.normal(size=(rows.size, self.model.nv))

        def _rewards(self, actions: np.ndarray) -> dict[str, np.ndarray]:
            return {"none": np.zeros(4)}

        def _terminated(self) -> np.ndarray:
            return np.zeros(4, dtype=bool)

        def _observe(self, rows: Rows, rng: np.random.Generator) -> Observations:
            return {"policy": columns(self.qpos[rows], self.qvel[rows])}

    env = Free()
    env.reset(seed=5)
    plain = [mujoco.MjData(env.model) for _ in range(4)]
    for data, qpos, qvel in zip(plain, env.qpos, env.qvel, strict=True):
        data.qpos[:], data.qvel[:] = qpos, qvel
    rng = np.random.default_rng(1)
    for _ in range(60):
        actions = rng.uniform(-1, 1, (4, env.spec.num_actions))
        env.step(actions)
        for data, action in zip(plain, actions, strict=True):
            data.ctrl[:] = action
            for _ in range(4):
                mujoco.mj_step(env.model, data)
    for data, qpos, qvel, sensors in zip(plain, env.qpos, env.qvel, env.sensors, strict=True):
        np.testing.assert_array_equal(qpos, data.qpos)
        np.testing.assert_array_equal(qvel, data.qvel)
        np.testing.assert_array_equal(sensors, data.sensordata)


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
    monkeypatch.chdir(tmp_path)  # MuJoCo keeps a log of its warnings in the working directory
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


def test_render_draws_the_asked_environment() -> None:
    env = Bead(num_envs=2)
    env.reset(seed=0)
    ball = env.render(env=0, width=96, height=64)
    assert (ball.shape, ball.dtype) == ((64, 96, 3), np.dtype(np.uint8))
    nothing = env.render(env=1, width=96, height=64)  # ten metres away, out of the picture
    assert ball[32, 48].max() > 60, "the ball is in the middle"
    assert ball[32, 48, 0] > ball[32, 48, 2], "and it is orange"
    assert nothing.max() == 0
    assert env.render(env=0, width=48, height=32).shape == (32, 48, 3)
    env.close()


def test_the_backend_is_the_one_asked_for_or_the_first_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "OSMesa")
    assert offscreen.backend_name() == "osmesa"
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setattr(offscreen.sys, "platform", "linux")
    monkeypatch.setattr(offscreen, "_loads", lambda library: library.startswith("libOSMesa"))
    assert offscreen.backend_name() == "osmesa"
    monkeypatch.setattr(offscreen, "_loads", lambda library: True)
    assert offscreen.backend_name() == "egl"


def test_without_a_backend_the_packages_to_install_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(offscreen.sys, "platform", "linux")
    monkeypatch.setattr(offscreen, "_LIBRARIES", {"egl": ("libNoSuchThing.so.1",)})
    env = Bead(num_envs=1)
    env.reset(seed=0)
    with pytest.raises(EnvironmentFault, match="apt-get install libegl1"):
        env.render()
