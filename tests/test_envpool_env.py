"""EnvPool's environments: real pools, compared with what EnvPool itself says in its own way of resetting."""

from __future__ import annotations

import warnings
from typing import Any

import envpool
import numpy as np
import pytest
from helpers_counting import rollouts

from appo_collector.envs.adapters.envpool_env import EnvPoolEnv, from_id
from appo_collector.envs.contract import Step
from appo_collector.envs.guard import Guard
from appo_common.errors import ConfigError, EnvironmentFault

ENVS = 3
CARTPOLE = "CartPole-v1"


def random_actions(env: EnvPoolEnv, steps: int) -> np.ndarray:
    """``[steps, N, A]`` float32 within the bounds."""
    rng = np.random.default_rng(2)
    shape = (steps, env.spec.num_envs, env.spec.num_actions)
    if env.spec.action_nvec:
        return rng.integers(0, env.spec.action_nvec, shape).astype(np.float32)
    return rng.uniform(env.spec.action_low, env.spec.action_high, shape).astype(np.float32)


def run(env: EnvPoolEnv, actions: np.ndarray, seed: int = 3) -> tuple[dict[str, np.ndarray], list[Step]]:
    guard = Guard(env)  # checks every shape and dtype
    first, _ = guard.reset(seed)
    return first, [guard.step(one) for one in actions]


def as_envpool_says(id: str, actions: np.ndarray, discrete: bool, **options: Any) -> list[list[tuple[Any, ...]]]:
    """Of each environment, its real steps: what was seen, reward, terminated, truncated, what was seen next.

    The pool resets in the step after an end, which takes no action; such steps are left out.
    """
    seeds = (np.random.SeedSequence(3).generate_state(ENVS) >> 1).tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        pool = envpool.make(id, env_type="gymnasium", num_envs=ENVS, seed=seeds, **options)
        seen = pool.reset()[0]
    real: list[list[tuple[Any, ...]]] = [[] for _ in range(ENVS)]
    resets = np.zeros(ENVS, dtype=bool)
    while min(len(steps) for steps in real) < len(actions):
        places = [min(len(steps), len(actions) - 1) for steps in real]
        rows = np.stack([actions[place, env] for env, place in enumerate(places)])
        seen_next, rewards, terminated, truncated, infos = pool.step(rows[:, 0] if discrete else rows.astype(float))
        assert not infos["elapsed_step"][resets].any()
        for env in np.flatnonzero(~resets):
            step = (rewards[env], terminated[env], truncated[env])
            real[env].append((pick(seen, env), *step, pick(seen_next, env)))
        seen, resets = seen_next, terminated | truncated
    return real


def pick(batch: Any, env: int) -> dict[str, np.ndarray]:
    groups = batch if isinstance(batch, dict) else {"policy": batch}
    result = {}
    for name, array in groups.items():
        row = np.array(array[env])
        if row.ndim == 3:
            row = row.transpose(1, 2, 0)
        result[name] = row if row.dtype == np.uint8 else row.astype(np.float32)
        if row.ndim == 2:
            result[name] = result[name].ravel()
    return result


@pytest.mark.parametrize(
    ("id", "options", "steps"),
    [
        (CARTPOLE, {"max_episode_steps": 12}, 60),  # some fall first, some are cut short
        ("Catch-v0", {}, 40),
        ("HalfCheetah-v5", {"max_episode_steps": 7}, 30),
        ("Pong-v5", {"max_episode_steps": 6}, 20),
        ("Go1JoystickFlatTerrain-v1", {"max_episode_steps": 16}, 40),
    ],
)
def test_transitions_are_envpools_own_without_the_steps_that_only_reset(
    id: str, options: dict[str, Any], steps: int
) -> None:
    env = from_id(id, ENVS, 1, options)
    actions = random_actions(env, steps)
    obs, results = run(env, actions)
    real = as_envpool_says(id, actions, bool(env.spec.action_nvec), **options)
    ends = 0
    for step, result in enumerate(results):
        ended = np.flatnonzero(result.terminated | result.truncated)
        for row in range(ENVS):
            seen, earned, terminated, truncated, seen_next = real[row][step]
            assert result.reward[row] == earned
            assert result.truncated[row] == truncated
            assert result.terminated[row] == terminated or (truncated and id.startswith("Go1"))
            final = {key: array[ended.tolist().index(row)] for key, array in result.final_obs.items() if row in ended}
            for key in env.spec.observations:
                assert np.array_equal(obs[key][row], seen[key])
                got_next = final[key] if row in ended else result.obs[key][row]
                assert np.array_equal(got_next, seen_next[key])
        ends += ended.size
        obs = result.obs
    assert ends >= 4, "the comparison says nothing about ends"
    env.close()


def test_rollouts_hold_the_ends_that_can_be_worked_out_by_hand() -> None:
    """A pendulum's episodes have no end but the limit, of four steps here."""
    first, second = rollouts(from_id("Pendulum-v1", ENVS, 1, {"max_episode_steps": 4}))
    rows = [[True] * ENVS if step in (3, 7, 11) else [False] * ENVS for step in range(12)]
    assert first["truncated"] + second["truncated"] == rows
    assert not np.any(first["terminated"] + second["terminated"])
    assert first["final_index"] == [[3, 0], [3, 1], [3, 2]]
    assert second["final_index"] == [[1, 0], [1, 1], [1, 2], [5, 0], [5, 1], [5, 2]]
    assert [(length, timeout) for _, length, timeout in first["episodes"] + second["episodes"]] == [(4, True)] * 9
    earned = np.array(first["rewards"] + second["rewards"])
    by_hand = np.concatenate([earned[start : start + 4].sum(0) for start in (0, 4, 8)])
    returns = [value for value, _, _ in first["episodes"] + second["episodes"]]
    np.testing.assert_allclose(returns, by_hand, rtol=1e-6)
    # The observation after an end is that of a new episode, not the last one of the old.
    assert second["last_obs/policy"] != second["final_obs/policy"][3:]


def test_a_game_of_catch_is_terminated_in_its_ninth_step() -> None:
    env = from_id("Catch-v0", ENVS, 1, {})
    _, results = run(env, random_actions(env, 30))
    assert [step for step, result in enumerate(results) if result.terminated.any()] == [8, 17, 26]
    assert all(result.terminated.all() for result in results[8::9])
    assert not any(result.truncated.any() for result in results)
    assert [np.abs(result.reward).tolist() for result in results[8::9]] == [[1, 1, 1]] * 3


def test_a_fall_in_the_last_step_is_both_where_the_task_tells() -> None:
    id = "Go1JoystickFlatTerrain-v1"
    free = from_id(id, ENVS, 1, {})
    actions = random_actions(free, 200)
    _, results = run(free, actions)
    fall = next(step for step, result in enumerate(results) if result.terminated.any())
    fallen = results[fall].terminated
    assert not results[fall].truncated.any()
    _, limited = run(from_id(id, ENVS, 1, {"max_episode_steps": fall + 1}), actions[: fall + 1])
    assert limited[fall].truncated.all()
    assert limited[fall].terminated.tolist() == fallen.tolist()


def test_spec_of_a_robot_with_privileged_observations() -> None:
    spec = from_id("Go1JoystickFlatTerrain-v1", ENVS, 1, {}).spec
    assert {name: group.shape for name, group in spec.observations.items()} == {
        "state": [48],
        "privileged_state": [123],
    }
    assert (spec.num_actions, spec.action_low, spec.action_high) == (12, [-1.0] * 12, [1.0] * 12)
    assert (spec.name, spec.step_dt, spec.episode_limit) == ("envpool:Go1JoystickFlatTerrain-v1", 0.02, 1000)


def test_images_come_channels_last_and_an_unlimited_game_has_no_limit() -> None:
    pong = from_id("Pong-v5", 1, 1, {}).spec
    assert (pong.observations["policy"].shape, pong.observations["policy"].dtype) == ([84, 84, 4], "uint8")
    assert pong.action_nvec == [6]
    assert from_id("Catch-v0", 1, 1, {}).spec.episode_limit is None


def test_the_same_seed_gives_the_same_and_every_environment_its_own() -> None:
    env = from_id(CARTPOLE, ENVS, 1, {})
    actions = random_actions(env, 40)
    (first, once), (again, twice), (other, _) = run(env, actions, 3), run(env, actions, 3), run(env, actions, 4)
    assert first["policy"].tolist() == again["policy"].tolist()
    assert [step.obs["policy"].tolist() for step in once] == [step.obs["policy"].tolist() for step in twice]
    assert len(np.unique(np.concatenate([first["policy"], other["policy"]]), axis=0)) == 2 * ENVS
    assert env.reset(2**63 - 1)["policy"].shape == (ENVS, 4)


def test_any_number_of_threads_gives_the_same() -> None:
    envs = [from_id(CARTPOLE, 8, threads, {"max_episode_steps": 11}) for threads in (1, 3)]
    actions = random_actions(envs[0], 100)
    alone, shared = (run(env, actions)[1] for env in envs)
    for one, other in zip(alone, shared, strict=True):
        assert one.obs["policy"].tolist() == other.obs["policy"].tolist()
        assert one.final_obs["policy"].tolist() == other.final_obs["policy"].tolist()


def test_what_was_returned_is_not_written_again() -> None:
    env = from_id("HalfCheetah-v5", ENVS, 1, {"max_episode_steps": 3})
    kept = [env.reset(1)["policy"]]
    copies = [kept[0].copy()]
    for one in random_actions(env, 8):
        step = env.step(one)
        kept += [step.obs["policy"], step.final_obs["policy"], step.reward]
        copies += [array.copy() for array in kept[-3:]]
    assert all(array.tolist() == copy.tolist() for array, copy in zip(kept, copies, strict=True))


@pytest.mark.parametrize(
    ("id", "overrides", "words"),
    [
        ("Cartpole-v1", {}, r"env.name: 'envpool:Cartpole-v1' is unknown to EnvPool; nearest: CartPole-v1"),
        ("qqqqqqq", {}, r"nothing is near"),
        (CARTPOLE, {"max_steps": 3}, r"env.overrides.max_steps: unknown option .* nearest: max_episode_steps"),
        (
            CARTPOLE,
            {"max_episode_steps": "x"},
            r"env.overrides: envpool:CartPole-v1 refused {'max_episode_steps': 'x'}",
        ),
        (CARTPOLE, {"seed": 3}, r"env.overrides.seed: it belongs to train.seed"),
        (CARTPOLE, {"num_threads": 3}, r"env.overrides.num_threads: it belongs to --threads"),
        (CARTPOLE, {"batch_size": 1}, r"env.overrides.batch_size: it belongs to the adapter"),
    ],
)
def test_wrong_configuration_is_named(id: str, overrides: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_id(id, ENVS, 1, overrides)


def test_actions_of_a_wrong_shape_are_refused_before_envpool_ends_the_process() -> None:
    env = from_id(CARTPOLE, ENVS, 1, {})
    env.reset(1)
    with pytest.raises(EnvironmentFault, match=r"actions are \(2, 1\)"):
        env.step(np.zeros((2, 1), dtype=np.float32))


def test_pictures_where_asked_for_and_a_close_that_can_be_repeated() -> None:
    env = from_id("Pendulum-v1", 2, 1, {"render_mode": "rgb_array"})
    env.reset(1)
    picture = env.render(1)
    assert (picture.shape[2], picture.dtype) == (3, np.uint8)
    assert picture.std() > 0
    env.close()
    env.close()
    with pytest.raises(EnvironmentFault, match=r"set env.overrides.render_mode: rgb_array"):
        from_id("Pendulum-v1", 2, 1, {}).render()
