from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from helpers_unit import GROUPS, TRAIN, env_spec, random_rollout, train_dict

from appo_collector.policy import Policy
from appo_common.config import LearnerConfig
from appo_common.models import build_actor, checksum, dump_state, example_observations, load_state, state_layout
from appo_learner.appo import build_appo
from appo_learner.batch import Stager


class Mixed(torch.nn.Module):
    """A parameter or buffer of every kind that rsl_rl's models hold, and some awkward values."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.nn.Parameter(torch.randn(7, 5, generator=generator))
        self.scalar = torch.nn.Parameter(torch.tensor(-0.0))
        self.register_buffer("count", torch.tensor(2**53 + 1, dtype=torch.int64))  # no float64 holds it
        self.register_buffer("wide", torch.randn(3, generator=generator, dtype=torch.float64))
        self.register_buffer("narrow", torch.randn(3, generator=generator).half())
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("odd", torch.tensor([float("nan"), float("inf"), 1e-45, -0.0]))
        self.register_buffer("turned", torch.randn(4, 6, generator=generator).T)  # not contiguous


def bits(module: torch.nn.Module) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {
        name: (str(tensor.dtype), tuple(tensor.shape), tensor.contiguous().numpy().tobytes())
        for name, tensor in module.state_dict().items()
    }


def test_a_state_survives_the_block_bit_by_bit() -> None:
    source, target = Mixed(1), Mixed(2)
    with torch.no_grad():
        target.count.zero_()
        target.scalar.fill_(3.0)
    assert bits(source) != bits(target)
    layout = state_layout(source)
    load_state(target, state_layout(target), dump_state(source, layout))
    assert bits(target) == bits(source)
    assert int(target.count) == 2**53 + 1
    assert target.scalar.shape == ()
    assert torch.signbit(target.scalar)


def test_every_tensor_keeps_its_own_dtype_and_shape() -> None:
    fields = {field.name: (field.dtype, field.shape) for field in state_layout(Mixed()).fields}
    assert fields["count"] == ("int64", ())
    assert fields["narrow"] == ("float16", (3,))
    assert fields["wide"] == ("float64", (3,))
    assert fields["mask"] == ("bool", (3,))
    assert list(fields) == list(Mixed().state_dict())


def test_a_block_is_a_copy_and_loading_writes_in_place() -> None:
    module = Mixed()
    layout = state_layout(module)
    block = dump_state(module, layout)
    before, address = block.copy(), module.weight.data_ptr()
    with torch.no_grad():
        module.weight.fill_(1.0)
    assert (block == before).all()
    load_state(module, layout, block)
    assert module.weight.data_ptr() == address
    block[:] = 0
    assert module.weight.abs().max() > 0


def test_equal_states_have_equal_checksums_and_one_bit_changes_them() -> None:
    layout = state_layout(Mixed())
    one, other = dump_state(Mixed(3), layout), dump_state(Mixed(3), layout)
    assert one.tobytes() == other.tobytes()
    assert checksum(one) == checksum(other)
    other[-1] ^= 1
    assert checksum(one) != checksum(other)
    assert checksum(np.frombuffer(b"123456789", dtype=np.uint8)) == 0xCBF43926  # the check value of CRC-32


def test_an_actor_with_a_normaliser_acts_alike_after_the_journey() -> None:
    spec = env_spec()
    torch.manual_seed(0)
    source, target = (build_actor(spec, GROUPS, TRAIN["actor"]) for _ in range(2))
    obs = example_observations(spec, 6)
    obs["policy"].normal_()
    source.train()
    source.update_normalization(obs)
    assert not torch.equal(source(obs), target(obs))
    layout = state_layout(source)
    load_state(target, layout, dump_state(source, layout))
    assert torch.equal(source(obs), target(obs))
    assert int(target.state_dict()["obs_normalizer.count"]) == 6
    assert target.state_dict()["obs_normalizer.count"].dtype == torch.int64


def test_building_an_actor_changes_neither_its_configuration_nor_the_groups() -> None:
    cfg, groups = copy.deepcopy(TRAIN["actor"]), copy.deepcopy(GROUPS)
    actor = build_actor(env_spec(), groups, cfg)
    assert cfg == TRAIN["actor"]
    assert groups == GROUPS
    assert actor(example_observations(env_spec(), 5)).shape == (5, 2)
    assert build_actor(env_spec(1), groups, cfg).obs_dim == 3, "an actor must not read the critic's group"


@pytest.mark.parametrize("action_nvec", [[], [2, 5]], ids=["continuous", "discrete"])
def test_collector_and_learner_agree_on_the_probability_of_an_action(action_nvec: list[int]) -> None:
    """V-trace's ratio is then 1 for a rollout of the current version."""
    spec, steps = env_spec(action_nvec=action_nvec), 5
    train = train_dict()
    if action_nvec:
        train["actor"]["distribution_cfg"] = {"class_name": "CategoricalDistribution"}
    agent = build_appo(train, LearnerConfig(), spec, GROUPS, "cpu")
    policy = Policy(spec, GROUPS, train["actor"])
    policy.load(dump_state(agent.get_policy(), policy.layout))
    views, count, _ = random_rollout(np.random.default_rng(0), spec, steps)
    for step in range(steps):
        obs = {"policy": views["obs/policy"][step]}
        views["actions"][step], views["log_probs"][step] = policy.act(obs)
    batch = Stager(spec, GROUPS, steps, "cpu").stage([(views, count)])
    agent.prepare(batch)
    torch.testing.assert_close(  # exactly equal where it was measured; another BLAS may round rows of other batches
        batch.storage.actions_log_prob[..., 0], torch.from_numpy(views["log_probs"]), rtol=0.0, atol=1e-6
    )


@pytest.mark.parametrize("num_envs", [1, 9])
def test_examples_have_the_shapes_and_dtypes_of_the_spec(num_envs: int) -> None:
    spec = env_spec(observations={"policy": {"shape": [3]}, "pixels": {"shape": [4, 5], "dtype": "uint8"}})
    example = example_observations(spec, num_envs)
    assert example.batch_size == (num_envs,)
    assert example["policy"].shape == (num_envs, 3)
    assert example["pixels"].shape == (num_envs, 4, 5)
    assert example["pixels"].dtype == torch.uint8
