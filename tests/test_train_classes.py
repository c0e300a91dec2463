"""Arguments of distributions for discrete actions and of image encoders, before any environment is known."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from helpers_config import TRAIN

from appo_common.train_classes import class_problems
from appo_common.train_config import Problem, structure_problems

CNN = {"output_channels": [16, 32], "kernel_size": [3, 3], "stride": 2, "activation": "relu"}
LONG = "appo_common.distributions:CategoricalDistribution"


def categorical(**arguments: Any) -> dict[str, Any]:
    train = copy.deepcopy(TRAIN)
    train["actor"]["distribution_cfg"] = {"class_name": "CategoricalDistribution", **arguments}
    return train


def cnns(cnn_cfg: Any = None, critic: Any = None, **algorithm: Any) -> dict[str, Any]:
    train = copy.deepcopy(TRAIN)
    train["actor"] |= {"class_name": "CNNModel", "cnn_cfg": CNN if cnn_cfg is None else cnn_cfg}
    train["critic"] = {"class_name": "CNNModel", **({"cnn_cfg": CNN} if critic is None else critic)}
    train["algorithm"] |= algorithm
    return train


def problems(train: dict[str, Any]) -> list[Problem]:
    return [*structure_problems(train), *class_problems(train)]


@pytest.mark.parametrize("name", ["CategoricalDistribution", LONG, LONG.replace(":", ".")])
@pytest.mark.parametrize("arguments", [{}, {"nvec": [3, 2]}], ids=str)
def test_a_categorical_distribution_by_any_of_its_names(name: str, arguments: dict[str, Any]) -> None:
    assert problems(categorical(**{"class_name": name, **arguments})) == []


@pytest.mark.parametrize(
    ("arguments", "key", "words"),
    [
        ({"init_std": 1.0}, "init_std", "has no standard deviation; remove it"),
        ({"std_type": "log"}, "std_type", "has no standard deviation; remove it"),
        ({"nvecs": [2]}, "nvecs", "did you mean 'nvec'?"),
        ({"nvec": 3}, "nvec", "must be a list of whole numbers above 0, one per action"),
        ({"nvec": [3, 0]}, "nvec", "must be a list of whole numbers above 0, one per action"),
        ({"class_name": "CategoricalDistributon"}, "class_name", "did you mean 'CategoricalDistribution'?"),
    ],
)
def test_what_it_does_not_take_is_named_with_the_remedy(arguments: dict[str, Any], key: str, words: str) -> None:
    (problem,) = problems(categorical(**arguments))
    assert problem.key == f"actor.distribution_cfg.{key}"
    assert words in problem.text


def test_a_gaussian_takes_no_choices() -> None:
    train = copy.deepcopy(TRAIN)
    train["actor"]["distribution_cfg"]["nvec"] = [2]
    (problem,) = problems(train)
    assert problem.key == "actor.distribution_cfg.nvec"
    assert "unknown argument of GaussianDistribution" in problem.text


@pytest.mark.parametrize(
    "train",
    [
        cnns(),
        cnns({"camera": CNN, "depth": CNN}),
        cnns(critic={"cnn_cfg": None}, share_cnn_encoders=True),
        cnns(critic={}, share_cnn_encoders=True),
    ],
    ids=["one for all", "one for each", "shared", "shared and left out"],
)
def test_encoders_that_can_be_built_are_accepted(train: dict[str, Any]) -> None:
    assert problems(train) == []


@pytest.mark.parametrize(
    ("train", "key", "words"),
    [
        (cnns({**CNN, "kernel": 3}), "actor.cnn_cfg.kernel", "unknown argument of CNN; did you mean 'kernel_size'?"),
        (cnns({"camera": {**CNN, "strides": 3}}), "actor.cnn_cfg.camera.strides", "did you mean 'stride'?"),
        (cnns({"output_channels": [8]}), "actor.cnn_cfg.kernel_size", "is missing; CNN cannot be built without it"),
        (cnns(3), "actor.cnn_cfg", "write, for example, `cnn_cfg: {output_channels: "),
        (cnns(critic={}), "critic.cnn_cfg", "is missing; write, for example, `cnn_cfg: {output_channels: "),
        (cnns(critic={"cnn_cfg": None}), "critic.cnn_cfg", "is missing; write, for example"),
        (
            cnns(critic={"class_name": "MLPModel"}, share_cnn_encoders=True),
            "algorithm.share_cnn_encoders",
            "actor and critic are both a CNNModel",
        ),
    ],
)
def test_encoders_that_cannot_are_named_with_the_remedy(train: dict[str, Any], key: str, words: str) -> None:
    (problem,) = problems(train)
    assert problem.key == key
    assert words in problem.text
