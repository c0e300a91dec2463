"""Images travel and are stored as bytes, and reach rsl_rl's CNNModel as it reads them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from helpers_unit import TRAIN
from image_envs import SIDE, Catch
from rsl_rl.models import CNNModel
from rsl_rl.modules import GaussianDistribution
from tensordict import TensorDict

from appo_collector.policy import Policy
from appo_common.config import LearnerConfig
from appo_common.layout import rollout_layout
from appo_common.models import build_actor, dump_state, state_layout
from appo_common.spec import EnvSpec
from appo_learner.appo import APPO, build_appo
from appo_learner.batch import Stager

STEPS, ENVS = 6, 3
GROUPS = {"actor": ["image", "state"], "critic": ["image"]}
CNN = {"output_channels": [4, 4], "kernel_size": 3, "stride": 2, "activation": "relu"}
SHAPE = (8, 10, 3)
"""Height, width, channels: all different, so that no two of them can be mixed up."""


def spec(dtype: str = "uint8", **fields: Any) -> EnvSpec:
    observations = {"image": {"shape": list(SHAPE), "dtype": dtype}, "state": {"shape": [2]}}
    base = {"name": "test:images", "observations": observations, "num_actions": 2, "num_envs": ENVS}
    return EnvSpec.model_validate({**base, **fields})


def train(**algorithm: Any) -> dict[str, Any]:
    changed = copy.deepcopy(TRAIN)
    for model in ("actor", "critic"):
        changed[model] |= {"class_name": "CNNModel", "cnn_cfg": dict(CNN), "obs_normalization": model == "actor"}
    changed["num_steps_per_env"] = STEPS
    changed["algorithm"] |= algorithm
    return changed


def algorithm(environment: EnvSpec, groups: dict[str, list[str]] = GROUPS, **changes: Any) -> APPO:
    torch.manual_seed(0)
    return build_appo(train(**changes), LearnerConfig(), environment, groups, "cpu")


def observations(rng: np.random.Generator, environment: EnvSpec, *batch: int) -> dict[str, np.ndarray]:
    """Random pictures and vectors, ``[*batch, *group]``, in the spec's dtypes."""
    made = {}
    for name, group in environment.observations.items():
        shape = (*batch, *group.shape)
        noise = rng.integers(0, 256, shape) if group.dtype == "uint8" else rng.normal(size=shape)
        made[name] = noise.astype(group.dtype)
    return made


def as_rsl_rl_reads(image: np.ndarray) -> np.ndarray:
    """The conversion, pixel by pixel: ``[B, H, W, C]`` to ``[B, C, H, W]`` float32, bytes to 0 to 1."""
    batch, height, width, channels = image.shape
    converted = np.zeros((batch, channels, height, width), dtype=np.float32)
    scale = 255 if image.dtype == np.uint8 else 1
    for index in np.ndindex(batch, height, width, channels):
        b, h, w, c = index
        converted[b, c, h, w] = np.float32(image[index]) / np.float32(scale)
    return converted


def rollout(environment: EnvSpec, policy: Policy) -> tuple[dict[str, np.ndarray], int]:
    """Fill a rollout: observations are noise, actions are those of ``policy``, one episode is cut short."""
    rng = np.random.default_rng(1)
    layout = rollout_layout(environment, STEPS, GROUPS)
    views = layout.views(np.zeros(layout.nbytes, dtype=np.uint8))
    for name, array in observations(rng, environment, STEPS, ENVS).items():
        views[f"obs/{name}"][...] = array
    for step in range(STEPS):
        obs = {name: views[f"obs/{name}"][step] for name in environment.observations}
        views["actions"][step], views["log_probs"][step] = policy.act(obs)
    views["rewards"][...] = rng.normal(size=(STEPS, ENVS))
    views["last_obs/image"][...] = observations(rng, environment, ENVS)["image"]
    views["truncated"][2, 1] = True
    views["final_index"][0] = (2, 1)
    views["final_obs/image"][0] = observations(rng, environment, 1)["image"]
    return views, 1


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_model_gets_channels_first_floats(dtype: str) -> None:
    environment = spec(dtype)
    raw = observations(np.random.default_rng(0), environment, 4)
    actor = build_actor(environment, GROUPS, train()["actor"])
    stored = TensorDict({name: torch.from_numpy(array) for name, array in raw.items()}, batch_size=[4])
    given = {name: tensor.clone() for name, tensor in stored.items()}
    converted = TensorDict(
        {"image": torch.from_numpy(as_rsl_rl_reads(raw["image"])), "state": stored["state"]}, batch_size=[4]
    )
    theirs = CNNModel(converted, GROUPS, "actor", 2, **_arguments(train()["actor"]))
    theirs.load_state_dict(actor.state_dict(), strict=True)  # the hook leaves no trace in a checkpoint
    torch.testing.assert_close(actor(stored), theirs(converted))
    assert all(torch.equal(stored[name], given[name]) for name in given), "the stored ones stay as they are"
    assert stored["image"].shape == (4, *SHAPE)


def _arguments(section: dict[str, Any]) -> dict[str, Any]:
    arguments = {key: value for key, value in section.items() if key != "class_name"}
    return arguments | {"distribution_cfg": section["distribution_cfg"] | {"class_name": GaussianDistribution}}


def test_a_copy_and_an_export_read_images_too() -> None:
    environment = spec()
    actor = build_actor(environment, GROUPS, train()["actor"])
    raw = observations(np.random.default_rng(0), environment, 1)
    stored = TensorDict({name: torch.from_numpy(array) for name, array in raw.items()}, batch_size=[1])
    expected = actor(stored)
    assert torch.equal(copy.deepcopy(actor)(stored), expected)
    exported = actor.as_jit()(stored["state"], [torch.from_numpy(as_rsl_rl_reads(raw["image"]))])
    torch.testing.assert_close(exported, expected)


def test_pixels_are_one_byte_each_in_the_block_and_in_the_learners_storage() -> None:
    environment = spec()
    layout = rollout_layout(environment, STEPS, GROUPS)
    fields = {field.name: field for field in layout.fields}
    pixels = int(np.prod(SHAPE))
    assert fields["obs/image"].nbytes == STEPS * ENVS * pixels
    assert fields["last_obs/image"].nbytes == ENVS * pixels
    agent = algorithm(environment)
    views, count = rollout(environment, _policy(environment, agent))
    stager = Stager(environment, GROUPS, STEPS, "cpu")
    batch = stager.stage([(views, count)])
    image = batch.storage.observations["image"]
    assert image.dtype == batch.last_obs["image"].dtype == batch.final_obs["image"].dtype == torch.uint8
    assert image.element_size() * image.nelement() == STEPS * ENVS * pixels
    assert np.array_equal(image.numpy(), views["obs/image"])


def _policy(environment: EnvSpec, agent: APPO) -> Policy:
    """A collector's copy of the learner's actor."""
    policy = Policy(environment, GROUPS, train()["actor"])
    policy.load(dump_state(agent.get_policy(), state_layout(agent.get_policy())))
    return policy


@pytest.mark.parametrize(
    "algorithm_keys", [{}, {"share_cnn_encoders": True}, {"normalize_advantage_per_mini_batch": True}], ids=str
)
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
def test_rsl_rls_update_trains_both_encoders_on_stored_bytes(algorithm_keys: dict[str, Any]) -> None:
    environment = spec()
    groups = {"actor": ["image", "state"], "critic": ["image", "state"]} if algorithm_keys else GROUPS
    agent = algorithm(environment, groups, **algorithm_keys)
    batch = Stager(environment, groups, STEPS, "cpu").stage(
        [_with_state(rollout(environment, _policy(environment, agent)))]
    )
    behaviour = batch.storage.actions_log_prob.clone()
    before = copy.deepcopy(agent.save())
    agent.prepare(batch)
    torch.testing.assert_close(batch.storage.actions_log_prob, behaviour)  # both sides agree at lag 0
    losses = agent.update()
    assert all(np.isfinite(value) for value in losses.values())
    after = agent.save()
    for model in ("actor_state_dict", "critic_state_dict"):
        weight = "cnns.image.0.weight"
        assert not torch.equal(before[model][weight], after[model][weight])
    assert int(after["actor_state_dict"]["obs_normalizer.count"]) == STEPS * ENVS, "vectors are normalised"
    if "share_cnn_encoders" in algorithm_keys:
        assert agent.actor.cnns is agent.critic.cnns


def _with_state(made: tuple[dict[str, np.ndarray], int]) -> tuple[dict[str, np.ndarray], int]:
    """Give the critic the vectors, too."""
    views, count = made
    views["last_obs/state"] = np.zeros((ENVS, 2), dtype=np.float32)
    views["final_obs/state"] = np.zeros((STEPS * ENVS, 2), dtype=np.float32)
    return views, count


def test_the_environment_of_these_tests_shows_what_it_says() -> None:
    env = Catch(num_envs=2, state=True)
    obs = env.reset(seed=0)
    landed, caught = 0, []
    while landed < 40:
        column = obs["image"][:, :-1, :, 0].any(axis=1).argmax(axis=1)
        paddle = obs["image"][:, -1, :, 0].argmax(axis=1) + 1
        assert np.allclose((obs["state"][:, 0] + 1) * (SIDE - 1) / 2, paddle)
        step = env.step((np.sign(column - paddle) + 1)[:, None].astype(np.float32))
        landed += int(step.terminated.sum())
        caught += step.reward[step.terminated].tolist()
        obs = step.obs
    assert np.mean(caught) == 1.0, "every ball can be caught"
