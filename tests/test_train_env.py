"""What an environment offers against what the configured models can read and act with."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers_config import TRAIN

from appo_common.config import RunConfig
from appo_common.errors import ConfigError
from appo_common.models import build_actor
from appo_common.spec import EnvSpec
from appo_common.train_env import check_environment

CNN = {"output_channels": [4], "kernel_size": 3, "stride": 2}
IMAGE = {"shape": [8, 6, 3], "dtype": "uint8"}
VECTOR = {"shape": [5]}


def spec(actions: int = 2, **fields: Any) -> EnvSpec:
    base = {"name": "my:env", "num_actions": actions, "num_envs": 4}
    return EnvSpec.model_validate({"observations": {"policy": VECTOR, "privileged": {"shape": [12]}}, **base, **fields})


def train(groups: dict[str, list[str]] | None = None, **actor: Any) -> dict[str, Any]:
    changed = copy.deepcopy(TRAIN)
    changed["obs_groups"] = groups or {"actor": ["policy"], "critic": ["policy"]}
    changed["actor"] |= {"obs_normalization": False, **actor}
    return changed


def with_cnns(groups: list[str], obs_normalization: bool = False, **cnn_cfg: Any) -> dict[str, Any]:
    sets, cfg = {"actor": groups, "critic": groups}, cnn_cfg or CNN
    changed = train(sets, class_name="CNNModel", cnn_cfg=cfg, obs_normalization=obs_normalization)
    changed["critic"] = {"class_name": "CNNModel", "cnn_cfg": cnn_cfg or CNN}
    return changed


def refusal(train: dict[str, Any], spec: EnvSpec) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        check_environment(RunConfig(train=train), spec, "robot.yaml")
    return str(caught.value).splitlines()


def test_what_fits_is_accepted() -> None:
    image, discrete = {"observations": {"camera": IMAGE, "policy": VECTOR}}, {"action_nvec": [3, 2]}
    categorical = {"distribution_cfg": {"class_name": "CategoricalDistribution"}}
    for dictionary, environment in [
        (train(), spec()),
        (train(**categorical), spec(**discrete)),
        (train(distribution_cfg={"class_name": "CategoricalDistribution", "nvec": [3, 2]}), spec(**discrete)),
        (with_cnns(["camera"]), spec(**image)),
        (with_cnns(["camera", "policy"]), spec(**image)),
        (with_cnns(["policy", "camera"], camera=CNN), spec(**image)),
        (with_cnns(["camera"]), spec(observations={"camera": {**IMAGE, "dtype": "float32"}})),
    ]:
        check_environment(RunConfig(train=dictionary), environment)


def test_groups_that_the_environment_lacks_are_named() -> None:
    groups = {"actor": ["polcy"], "critic": ["policy", "camera"]}
    actor, critic = refusal(train(groups), spec())
    assert actor.startswith("robot.yaml: train.obs_groups.actor = ['polcy']: my:env offers no group 'polcy'")
    assert "did you mean 'policy'" in actor
    assert "train.obs_groups.critic" in critic
    assert "only policy, privileged" in critic


@pytest.mark.parametrize(
    ("distribution", "action_nvec", "words"),
    [
        (
            {"class_name": "GaussianDistribution", "init_std": 1.0},
            [4, 2],
            [
                "class_name = GaussianDistribution",
                "discrete (4, 2 choices)",
                "`distribution_cfg: {class_name: CategoricalDistribution}`",
            ],
        ),
        ({"class_name": "BetaDistribution"}, [4, 2], ["class_name: CategoricalDistribution"]),
        (
            {"class_name": "CategoricalDistribution"},
            [],
            ["are continuous", "`distribution_cfg: {class_name: GaussianDistribution, init_std: 1.0}`"],
        ),
        ({"class_name": "CategoricalDistribution", "nvec": [2, 4]}, [4, 2], ["nvec = [2, 4]", "[4, 2]", "remove"]),
    ],
)
def test_a_distribution_of_the_other_kind_is_refused_with_the_line_to_write(
    distribution: dict[str, Any], action_nvec: list[int], words: list[str]
) -> None:
    (line,) = refusal(train(distribution_cfg=distribution), spec(action_nvec=action_nvec))
    for word in ("robot.yaml: train.actor.distribution_cfg.", *words):
        assert word in line


CAMERA = {"observations": {"camera": IMAGE, "policy": VECTOR}}
SECTIONS: list[tuple[str, dict[str, Any], dict[str, Any], list[str]]] = [
    (
        "an image for MLPModel",
        train({"actor": ["policy", "camera"], "critic": ["policy"]}),
        CAMERA,
        ["actor.class_name = MLPModel", "'camera'", "[8, 6, 3] uint8", "class_name: CNNModel", "cnn_cfg: {"],
    ),
    (
        "no image for CNNModel",
        train(class_name="CNNModel", cnn_cfg=CNN),
        CAMERA,
        ["train.actor.class_name = CNNModel", "train.obs_groups.actor has none", "class_name: MLPModel"],
    ),
    (
        "bytes that are no image",
        train(),
        {"observations": {"policy": {"shape": [5], "dtype": "uint8"}}},
        ["train.obs_groups.actor = ['policy']", "'policy' is uint8", "MLPModel reads float32"],
    ),
    (
        "two dimensions",
        train(),
        {"observations": {"policy": {"shape": [5, 2]}}},
        ["train.obs_groups.actor = ['policy']", "[5, 2] float32", "reshape"],
    ),
    (
        "an image of half precision",
        with_cnns(["camera"]),
        {"observations": {"camera": {**IMAGE, "dtype": "float16"}}},
        ["train.obs_groups.actor = ['camera']", "float16"],
    ),
    (
        "a kernel larger than the image",
        with_cnns(["camera"], output_channels=[4], kernel_size=7),
        CAMERA,
        ["train.actor.cnn_cfg = ", "'camera' of 8 x 6", "7 x 7"],
    ),
    (
        "a kernel too few",
        with_cnns(["camera"], output_channels=[4, 4], kernel_size=[3]),
        CAMERA,
        ["train.actor.cnn_cfg = ", "'camera'"],
    ),
    (
        "normalisation of nothing",
        with_cnns(["camera"], obs_normalization=True),
        CAMERA,
        ["train.actor.obs_normalization = True", "['camera'] has none", "write false"],
    ),
    ("an encoder that keeps planes", with_cnns(["camera"], **CNN, flatten=False), CAMERA, ["flatten"]),
    ("an encoder for another image", with_cnns(["camera"], depth=CNN), CAMERA, ["train.actor.cnn_cfg", "camera"]),
]


@pytest.mark.parametrize(("dictionary", "fields", "words"), [c[1:] for c in SECTIONS], ids=[c[0] for c in SECTIONS])
def test_observations_that_a_model_cannot_read_are_refused(
    dictionary: dict[str, Any], fields: dict[str, Any], words: list[str]
) -> None:
    lines = refusal(dictionary, spec(**fields))
    for word in ("robot.yaml: train.", *words):
        assert word in lines[0]
    assert len(lines) <= 2, "one line for the actor, and one for the critic where it has the same fault"


def test_the_collector_refuses_in_the_same_words() -> None:
    actor = train()["actor"]
    with pytest.raises(ConfigError, match="write `class_name: CNNModel` and `cnn_cfg: "):
        build_actor(spec(**CAMERA), {"actor": ["camera"]}, actor)
    with pytest.raises(ConfigError, match=r"distribution_cfg: \{class_name: CategoricalDistribution\}"):
        build_actor(spec(action_nvec=[4, 2]), {"actor": ["policy"]}, actor)


def test_a_model_of_the_users_own_reads_what_it_likes(user_module: Any) -> None:
    class Pixels(torch.nn.Module):
        is_recurrent = False

        def __init__(self, obs: Any, obs_groups: Any, obs_set: str, output_dim: int, **cfg: Any) -> None: ...

    user_module(Pixels=Pixels)
    groups = {"actor": ["grid", "camera"], "critic": ["policy"]}
    observations = {"policy": VECTOR, "camera": IMAGE, "grid": {"shape": [4, 4], "dtype": "float16"}}
    dictionary = train(groups, class_name="users_robot:Pixels")
    check_environment(RunConfig(train=dictionary), spec(observations=observations))


def test_checking_draws_no_random_numbers() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    check_environment(RunConfig(train=with_cnns(["camera"])), spec(**CAMERA))
    assert torch.equal(torch.get_rng_state(), state)
