"""Gymnasium's environments in the contract: making them, seeds, ownership of arrays, and modes that do not hold."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import TransformReward
from helpers_counting import SCRIPT, CountingGym, CountingVector

from appo_collector.envs.adapters.gymnasium_env import GymnasiumEnv, autoreset_mode, from_id, vectorise
from appo_collector.envs.contract import VectorEnv
from appo_collector.envs.guard import Guard
from appo_common.errors import ConfigError, EnvironmentFault

PENDULUM = "Pendulum-v1"


def zeros(env: VectorEnv) -> np.ndarray:
    return np.zeros((env.spec.num_envs, env.spec.num_actions), dtype=np.float32)


def counting(mode: Any, script: tuple[str, ...] = SCRIPT) -> tuple[CountingVector, GymnasiumEnv]:
    vec = CountingVector(mode, script)
    return vec, GymnasiumEnv(vec, "counting")


def test_the_spec_of_a_registered_id() -> None:
    spec = from_id(PENDULUM, 2, 1, {"max_episode_steps": 30}).spec
    assert (spec.name, spec.num_envs, spec.episode_limit, spec.step_dt) == ("gymnasium:Pendulum-v1", 2, 30, 0.05)
    assert (spec.action_low, spec.action_high, spec.action_nvec) == ([-2.0], [2.0], [])
    cartpole = from_id("CartPole-v1", 2, 1, {}).spec
    assert (cartpole.action_nvec, cartpole.action_low, cartpole.step_dt) == ([2], [], 1.0)
    assert (cartpole.episode_limit, cartpole.skips_steps) == (500, False)


def test_transitions_are_those_of_the_single_environment() -> None:
    env = Guard(from_id(PENDULUM, 2, 1, {"max_episode_steps": 5}))
    obs, _ = env.reset(7)
    seeds = np.random.SeedSequence(7).generate_state(2).tolist()
    alone = [gymnasium.make(PENDULUM, max_episode_steps=5) for _ in seeds]
    assert obs["policy"].tolist() == [one.reset(seed=seed)[0].tolist() for one, seed in zip(alone, seeds, strict=True)]
    rng = np.random.default_rng(1)
    for step in range(12):
        actions = rng.uniform(-2, 2, (2, 1)).astype(np.float32)
        result = env.step(actions)
        for row, one in enumerate(alone):
            seen, reward, terminated, truncated, _ = one.step(actions[row])
            assert (result.terminated[row], result.truncated[row]) == (terminated, truncated) == (False, step % 5 == 4)
            assert result.reward[row] == np.float32(reward)
            if truncated:
                assert result.final_obs["policy"][row].tolist() == seen.tolist()
                seen, _ = one.reset()
            assert result.obs["policy"][row].tolist() == seen.tolist()


@pytest.mark.parametrize("kind", ["sync", "vector"])
def test_the_same_seed_gives_the_same_and_every_environment_its_own(kind: str) -> None:
    if kind == "sync":
        env: VectorEnv = from_id("CartPole-v1", 3, 1, {})
    else:
        vec = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
        env = GymnasiumEnv(vec, "cartpole")
        assert env.spec.skips_steps
    runs = []
    for seed in (5, 5, 6):
        guard = Guard(env)
        seen = [guard.reset(seed)[0]["policy"]]
        seen += [guard.step(zeros(env)).obs["policy"] for _ in range(25)]  # long enough to fall and begin again
        runs.append(np.stack(seen))
    assert runs[0].tolist() == runs[1].tolist()
    assert len(np.unique(np.concatenate([runs[0][0], runs[2][0]]), axis=0)) == 6
    env.reset(2**63 - 1)


def test_seeding_leaves_the_global_generator_alone() -> None:
    before = np.random.get_state()[1].tolist()
    from_id(PENDULUM, 1, 1, {}).reset(3)
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("own", [False, True])
def test_what_was_returned_is_not_written_again(mode: AutoresetMode, own: bool) -> None:
    if own:
        _, env = counting(mode)
    else:
        makers = [partial(CountingGym, row, line, in_place=True) for row, line in enumerate(SCRIPT)]
        env = GymnasiumEnv(SyncVectorEnv(makers, copy=False, autoreset_mode=mode), "counting")
    kept = [env.reset(1)["policy"]]
    copies = [kept[0].copy()]
    for _ in range(12):
        step = env.step(zeros(env))
        kept += [step.obs["policy"], step.final_obs["policy"], step.reward, step.terminated, step.truncated]
        kept += [] if step.valid is None else [step.valid]
        copies += [array.copy() for array in kept[len(copies) :]]
    assert all(array.tolist() == copy.tolist() for array, copy in zip(kept, copies, strict=True))


@pytest.mark.parametrize("said", ["NextStep", "NEXT_STEP", AutoresetMode.NEXT_STEP, "next_step"])
def test_a_mode_is_read_from_the_metadata_in_any_spelling(said: Any) -> None:
    vec = CountingVector(said)
    assert autoreset_mode(vec, "test") == "NEXT_STEP"


@pytest.mark.parametrize("said", [None, "Sometimes", True])
def test_a_mode_that_is_unknown_is_refused(said: Any) -> None:
    with pytest.raises(EnvironmentFault, match=rf"test: .*{said!r}; set it .* NEXT_STEP, SAME_STEP, DISABLED"):
        GymnasiumEnv(CountingVector(said), "test")


def until_fault(env: VectorEnv, steps: int = 12) -> None:
    env.reset(1)
    for _ in range(steps):
        env.step(zeros(env))


@pytest.mark.parametrize("shape", ["missing", "masked", "object"])
def test_same_step_without_final_observations_is_named(shape: str) -> None:
    vec, env = counting(AutoresetMode.SAME_STEP)
    plain = vec.step

    def step(actions: Any) -> Any:
        *result, infos = plain(actions)
        if infos:
            infos = {
                "missing": {},
                "masked": {**infos, "_final_obs": np.zeros(3, dtype=bool)},
                "object": {"final_obs": np.full(3, None)},
            }[shape]
        return *result, infos

    vec.step = step  # type: ignore[method-assign]
    with pytest.raises(EnvironmentFault, match=r"counting: says .* SAME_STEP, .* environments \[1\] without"):
        until_fault(env)


def test_next_step_that_does_not_reset_in_the_next_step_is_named() -> None:
    vec, env = counting(AutoresetMode.NEXT_STEP)
    vec.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # what it does, not what it said
    with pytest.raises(EnvironmentFault, match=r"counting: says autoreset mode NEXT_STEP, but .* had a reward"):
        until_fault(env)


def test_a_wrappers_reward_in_a_step_that_only_resets_is_dropped() -> None:
    vec = TransformReward(CountingVector(AutoresetMode.NEXT_STEP), lambda reward: reward - 1.0)
    env = GymnasiumEnv(vec, "counting")
    env.reset(1)
    first, second = env.step(zeros(env)), env.step(zeros(env))
    assert first.reward.tolist() == [99.0, 199.0, 299.0]
    assert second.valid is not None
    assert (second.valid.tolist(), second.reward.tolist()) == ([True, False, True], [100.0, 0.0, 300.0])


def test_a_reset_forgets_what_the_next_step_would_have_reset() -> None:
    _, env = counting(AutoresetMode.NEXT_STEP)
    env.reset(1)
    assert env.step(zeros(env)).terminated.tolist() == [False, True, False]
    env.reset(1)
    again = env.step(zeros(env))
    assert again.valid is not None
    assert again.valid.all()
    assert again.reward.tolist() == [100.0, 200.0, 300.0]


def test_disabled_that_resets_more_than_it_was_asked_for_is_named() -> None:
    vec, env = counting(AutoresetMode.DISABLED)
    plain = vec.reset
    vec.reset = lambda *, seed=None, options=None: plain(seed=seed)  # type: ignore[method-assign]
    with pytest.raises(EnvironmentFault, match=r"of the environments \[1\] changed 'policy' of others"):
        until_fault(env)


def test_a_pool_of_envpools_is_sent_to_its_own_adapter() -> None:
    envpool = pytest.importorskip("envpool")
    pool = envpool.make(PENDULUM, env_type="gymnasium", num_envs=2)
    with pytest.raises(ConfigError, match=r"mine: EnvPool takes a seed only .* envpool:<id>"):
        GymnasiumEnv(pool, "mine")


@pytest.mark.parametrize(
    ("id", "overrides", "words"),
    [
        ("CartPol-v1", {}, r"env.name: 'gymnasium:CartPol-v1' cannot be made. Nearest known ids: CartPole-v1"),
        ("CartPole-v7", {}, r"versioned environments"),
        ("ALE/Pong-v5", {}, r"Namespace ALE not found. Have you installed the proper package for ALE"),
        ("no_such_module:Robot-v0", {}, r"needs a package that is not installed: No module named 'no_such_module'"),
        ("two words", {}, r"Malformed environment ID"),
        ("CartPole-v1", {"max_episode_steps": 0}, r"env.overrides: 'gymnasium:CartPole-v1' refused .* positive"),
        ("CartPole-v1", {"gravity": 3}, r"env.overrides: 'gymnasium:CartPole-v1' refused {'gravity': 3}: .*gravity"),
    ],
)
def test_wrong_configuration_is_named(id: str, overrides: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_id(id, 1, 1, overrides)


def test_pictures_where_asked_for() -> None:
    env = from_id("FrozenLake-v1", 2, 1, {"render_mode": "ansi"})
    env.reset(1)
    with pytest.raises(EnvironmentFault, match=r"cannot render as it was made; set env.overrides.render_mode"):
        env.render()
    picture = np.full((4, 6, 3), 7, dtype=np.uint8)
    drawn = vectorise([Drawing, lambda: Drawing(picture)], "drawing")
    assert drawn.render(1).tolist() == picture.tolist()
    assert drawn.render(1) is not picture


class Drawing(CountingGym):
    render_mode = "rgb_array"

    def __init__(self, picture: np.ndarray | None = None) -> None:
        super().__init__(0, "")
        self.picture = picture

    def render(self) -> Any:
        return self.picture


def test_close_can_be_repeated() -> None:
    closed = []
    vec, env = counting(AutoresetMode.DISABLED)
    vec.close = lambda **_: closed.append(1)  # type: ignore[method-assign]
    env.close()
    env.close()
    assert closed == [1]
    processes = AsyncVectorEnv([partial(CountingGym, 0, "")])
    env = GymnasiumEnv(processes, "counting")
    env.close()
    env.close()
    assert not any(process.is_alive() for process in processes.processes)


class WithOptions(CountingGym):
    """Reads its options where there are some, as Gymnasium's interface has it."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        assert options is None or options["level"]
        return super().reset(seed=seed, options=options)


def test_a_reset_comes_without_options() -> None:
    env = vectorise([lambda: WithOptions(0, "TT.")], "users:make")
    env.reset(0)
    assert [env.step(zeros(env)).terminated.tolist() for _ in range(3)] == [[True], [True], [False]]
