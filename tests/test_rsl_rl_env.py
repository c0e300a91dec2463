"""Environments written for rsl_rl: ends of episodes against the hand-written table, and against rsl_rl itself."""

from __future__ import annotations

import copy
import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers_counting import GROUPS, OneSlot, rollouts
from helpers_counting_tables import EXACT
from helpers_rsl_rl import CountingTorch
from helpers_unit import TRAIN
from rsl_rl.algorithms import PPO
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from appo_collector.envs.adapters.rsl_rl_env import FINAL_KEYS, RslRlEnv, is_vec_env
from appo_collector.envs.guard import Guard
from appo_collector.policy import Policy
from appo_collector.rollout import RolloutLoop
from appo_common.errors import EnvironmentFault
from appo_learner.batch import Stager

NAME = "users_robot:make"
NOTHING_OFFERED = "it offers no final observations in extras; time-outs are bootstrapped from the last observation"


def only_one_way(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same table where an end is either terminated or cut short: all that ``time_outs`` can say."""
    changed = copy.deepcopy(table)
    for fields in changed:
        pairs = zip(fields["truncated"], fields["terminated"], strict=True)
        fields["truncated"] = [[a and not b for a, b in zip(*rows, strict=True)] for rows in pairs]
    return changed


@pytest.mark.parametrize(
    "final",
    [*FINAL_KEYS, "nested", "final_obs:rows", "final_observation:tensor", "terminal_obs:entries"],
)
def test_offered_final_observations_give_the_table(final: str) -> None:
    assert rollouts(RslRlEnv(CountingTorch(final), NAME)) == only_one_way(EXACT)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
def test_tensors_on_a_gpu_give_the_table_too() -> None:
    vec = CountingTorch("final_obs:rows", device="cuda")
    assert rollouts(RslRlEnv(vec, NAME)) == only_one_way(EXACT)
    assert vec.actions.device.type == "cuda"


def test_an_end_both_ways_is_what_time_outs_says() -> None:
    first, second = copy.deepcopy(EXACT)
    # Environment 1 ends its third episode both ways, environment 2 the third of its own; here they are cut short.
    first["terminated"][3] = [True, False, False]
    second["terminated"][2] = [False, False, False]
    first["final_index"], first["final_obs/policy"] = [[3, 1], [5, 0]], [[3, 1], [2, 1]]
    second["final_index"] = [[0, 0], [1, 2], [2, 1], [2, 2], [3, 2]]
    second["final_obs/policy"] = [[1, 2], [2, 1], [5, 2], [1, 2], [1, 3]]
    first["episodes"][2], second["episodes"][3] = (633, 3, True), (320, 1, True)
    assert rollouts(RslRlEnv(CountingTorch("final_obs", time_outs="also"), NAME)) == [first, second]


@pytest.mark.parametrize(("final", "which"), [("", ""), ("terminal_obs:other", "of the groups policy ")])
def test_without_final_observations_the_one_before_takes_their_place(
    final: str, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = only_one_way(EXACT)
    first["final_obs/policy"] = [[1, 1]]
    second["final_obs/policy"] = [[0, 2], [1, 1], [4, 2], [0, 3]]
    with caplog.at_level(logging.INFO):
        assert rollouts(RslRlEnv(CountingTorch(final), NAME)) == [first, second]
    assert caplog.text.count(NOTHING_OFFERED.replace("in extras", f"{which}in extras")) == 1


def test_without_time_outs_every_end_is_terminated(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        collected = rollouts(RslRlEnv(CountingTorch(time_outs=None), NAME))
    for fields, table in zip(collected, EXACT, strict=True):
        either = np.array(table["terminated"]) | np.array(table["truncated"])
        assert fields["terminated"] == either.tolist()
        assert not np.any(fields["truncated"])
        assert fields["final_index"] == []
    assert caplog.text.count("without extras['time_outs']; such ends count as terminated") == 1
    assert "final observations" not in caplog.text  # nothing is bootstrapped


def test_the_bootstrap_is_rsl_rls_own() -> None:
    """rsl_rl steps one environment, our loop another; rewards with γ·V of an end by time are the same numbers."""
    torch.manual_seed(3)
    vec = CountingTorch(time_outs="also")
    settings = copy.deepcopy(TRAIN) | {"num_steps_per_env": 12, "obs_groups": GROUPS, "multi_gpu": None}
    algorithm = PPO.construct_algorithm(vec.get_observations(), vec, settings, "cpu")
    with torch.inference_mode():
        obs = vec.get_observations()
        for _ in range(12):
            obs, rewards, dones, extras = vec.step(algorithm.act(obs))
            algorithm.process_env_step(obs, rewards, dones, extras)
    env = RslRlEnv(CountingTorch(time_outs="also"), NAME)
    session: Any = OneSlot(env.spec, 12)
    RolloutLoop(session, env, Policy(env.spec, GROUPS, TRAIN["actor"]), 12, seed=1).collect_one()
    batch = Stager(env.spec, GROUPS, 12, "cpu").stage([(session.views(0), session.final_count)])
    step, column = batch.final_index.unbind(1)
    assert len(step) == 7
    with torch.no_grad():
        batch.storage.rewards[step, column] += algorithm.gamma * algorithm.critic(batch.final_obs)
    torch.testing.assert_close(batch.storage.rewards, algorithm.storage.rewards, rtol=0, atol=1e-4)
    assert (batch.storage.rewards != torch.from_numpy(session.views(0)["rewards"])[..., None]).any()


def test_what_was_returned_is_not_written_again() -> None:
    env = RslRlEnv(CountingTorch("final_obs"), NAME)
    kept: list[np.ndarray] = [env.reset(1)["policy"]]
    copies = [kept[0].copy()]
    for _ in range(8):
        step = env.step(np.zeros((3, 1), dtype=np.float32))
        arrays = [step.obs["policy"], step.final_obs["policy"], step.reward, step.terminated, step.truncated]
        kept += arrays
        copies += [array.copy() for array in arrays]
    assert all(array.tolist() == copied.tolist() for array, copied in zip(kept, copies, strict=True))


def test_actions_arrive_as_float32_on_its_device_and_belong_to_it() -> None:
    vec = CountingTorch()
    env = RslRlEnv(vec, NAME)
    given = np.array([[0.5], [1.5], [-2.0]], dtype=np.float32)
    env.step(given)
    given[:] = 9.0
    assert (vec.actions.dtype, vec.actions.device, vec.actions.tolist()) == (
        torch.float32,
        vec.device,
        [[0.5], [1.5], [-2.0]],
    )


class Drawing(VecEnv):
    """Its observations are random numbers; it offers neither ``seed`` nor ``reset``."""

    def __init__(self, **groups: tuple[int, ...]) -> None:
        self.num_envs, self.num_actions, self.max_episode_length = 2, 1, 10
        self.episode_length_buf = torch.zeros(2, dtype=torch.long)
        self.device, self.cfg = "cpu", {}
        self._groups = groups or {"policy": (3,)}

    def get_observations(self) -> TensorDict:
        return TensorDict({key: torch.rand(2, *shape) for key, shape in self._groups.items()}, batch_size=[2])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        rewards = torch.full((2, 1), 0.5, dtype=torch.float64, requires_grad=True)
        return self.get_observations(), rewards, torch.zeros(2, 1, dtype=torch.uint8), {}


def test_its_own_seed_is_used_where_there_is_one() -> None:
    vec = CountingTorch()
    RslRlEnv(vec, NAME).reset(2**63 - 1)
    inner = CountingTorch()
    outer: Any = Drawing()
    outer.unwrapped = inner
    RslRlEnv(outer, NAME).reset(2**63 - 1)
    assert vec.seeds == inner.seeds
    assert 0 <= vec.seeds[0] < 2**31


def test_without_a_seed_of_its_own_the_global_generators_are_seeded() -> None:
    env = RslRlEnv(Drawing(), NAME)
    first, again, other = (env.reset(seed)["policy"].tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_shapes_and_dtypes_become_those_of_the_contract() -> None:
    env = RslRlEnv(Drawing(policy=(3,), scan=(4, 5), camera=(3, 24, 32)), NAME)
    assert {key: group.shape for key, group in env.spec.observations.items()} == {
        "policy": [3],
        "scan": [20],
        "camera": [24, 32, 3],
    }
    guard = Guard(env)
    guard.reset(1)
    assert guard.step(np.zeros((2, 1), dtype=np.float32)).reward.tolist() == [0.5, 0.5]


def test_pictures_travel_as_bytes_channels_last() -> None:
    vec = Drawing()
    pictures = torch.arange(2 * 3 * 8 * 9, dtype=torch.int64).remainder(251).to(torch.uint8).reshape(2, 3, 8, 9)
    grey = pictures[:, 0]
    vec.get_observations = lambda: TensorDict({"rgb": pictures, "grey": grey}, batch_size=[2])  # type: ignore[method-assign]
    env = RslRlEnv(vec, NAME)
    obs = env.reset(1)
    assert {key: (group.shape, group.dtype) for key, group in env.spec.observations.items()} == {
        "rgb": ([8, 9, 3], "uint8"),
        "grey": ([8, 9, 1], "uint8"),
    }
    assert np.array_equal(obs["rgb"], pictures.permute(0, 2, 3, 1).numpy())
    assert np.array_equal(obs["grey"][..., 0], grey.numpy())


def test_the_interface_before_rsl_rl_3() -> None:
    vec: Any = Drawing()
    now, privileged = torch.rand(2, 3), torch.rand(2, 4)
    extras = {"observations": {"critic": privileged, "raw": {}}}
    vec.get_observations = lambda: (now, extras)
    vec.step = lambda actions: (now + 1, torch.zeros(2), torch.tensor([1, 0]), extras)
    env = RslRlEnv(vec, NAME)
    assert {key: group.shape for key, group in env.spec.observations.items()} == {"policy": [3], "critic": [4]}
    env.reset(1)
    step = env.step(np.zeros((2, 1), dtype=np.float32))
    assert np.array_equal(step.obs["policy"], now.numpy() + 1)
    assert np.array_equal(step.final_obs["critic"], privileged[:1].numpy())


def test_episodes_that_are_under_way_say_so() -> None:
    vec = Drawing()
    vec.episode_length_buf[1] = 7
    vec.unwrapped = SimpleNamespace(step_dt=0.02)  # type: ignore[attr-defined]
    env = RslRlEnv(vec, NAME)
    assert env.ages().tolist() == [0, 7]
    assert (env.spec.step_dt, env.spec.episode_limit, env.spec.name) == (0.02, None, NAME)


def test_what_is_a_vec_env() -> None:
    alike = SimpleNamespace(num_envs=1, num_actions=1, device="cpu", get_observations=None, step=None)
    assert [is_vec_env(product) for product in (Drawing(), alike, SimpleNamespace(step=None), 3)] == [
        *(True, True),
        *(False, False),
    ]


def lacking(member: str) -> Any:
    vec = Drawing()
    delattr(vec, member)
    return vec


def nested() -> Any:
    vec = Drawing()
    inner = TensorDict({"joint_pos": torch.zeros(2, 3)}, batch_size=[2])
    vec.get_observations = lambda: TensorDict({"policy": inner}, batch_size=[2])  # type: ignore[method-assign]
    return vec


@pytest.mark.parametrize(
    ("vec", "words"),
    [
        (lacking("num_actions"), r"users_robot:make: it has no 'num_actions', which rsl_rl's VecEnv promises"),
        (nested(), r"observation group 'policy' is a TensorDict, not a tensor; concatenate its terms"),
        (Drawing(policy=(2, 3, 4, 5)), r"has the shape \(2, 2, 3, 4, 5\), expected \[num_envs, \*one to three sizes"),
    ],
)
def test_what_cannot_be_adopted_is_named(vec: Any, words: str) -> None:
    with pytest.raises(EnvironmentFault, match=words):
        RslRlEnv(vec, NAME)


def test_final_observations_of_a_wrong_shape_are_named() -> None:
    env = RslRlEnv(CountingTorch("final_obs:short"), NAME)
    env.reset(1)
    with pytest.raises(EnvironmentFault, match=r"extras\['final_obs'\]\['policy'\] has the shape \(3, 1\); expected"):
        env.step(np.zeros((3, 1), dtype=np.float32))


def test_rewards_of_a_wrong_shape_are_named() -> None:
    vec: Any = Drawing()
    vec.step = lambda actions: (vec.get_observations(), torch.zeros(2, 4), torch.zeros(2), {})
    env = RslRlEnv(vec, NAME)
    with pytest.raises(EnvironmentFault, match=r"rewards have the shape \(2, 4\), expected \[num_envs\]"):
        env.step(np.zeros((2, 1), dtype=np.float32))
