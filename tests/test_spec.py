from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers_unit import env_spec
from pydantic import ValidationError

from appo_common.spec import EnvSpec

PIXELS = {"shape": [4, 5], "dtype": "uint8"}
SPEC = env_spec(
    8,
    observations={"policy": {"shape": [48]}, "pixels": PIXELS},
    episode_limit=500,
    step_dt=0.02,
    reward_terms=["track", "torque"],
)


def changed(**changes: Any) -> EnvSpec:
    return EnvSpec.model_validate({**SPEC.model_dump(), **changes})


def test_specs_that_differ_in_what_is_not_agreed_on_fit() -> None:
    other = changed(num_envs=99, name="another:name", action_names=["hip", "knee"])
    assert SPEC.mismatch(other) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"observations": {"policy": {"shape": [45]}, "pixels": PIXELS}},
            "observation group 'policy': this run has (48,) float32, the collector offers (45,) float32",
        ),
        (
            {
                "observations": {
                    "policy": {"shape": [48], "dtype": "float16"},
                    "pixels": PIXELS,
                }
            },
            "observation group 'policy': this run has (48,) float32, the collector offers (48,) float16",
        ),
        (
            {"observations": {"policy": {"shape": [48]}}},
            "observation group 'pixels': this run has (4, 5) uint8, the collector offers none",
        ),
        (
            {"observations": {**SPEC.model_dump()["observations"], "extra": {"shape": [1]}}},
            "observation group 'extra': this run has none, the collector offers (1,) float32",
        ),
        ({"num_actions": 3}, "num_actions: this run has 2, the collector offers 3"),
        ({"episode_limit": None}, "episode_limit: this run has 500, the collector offers None"),
        ({"step_dt": 0.01}, "step_dt: this run has 0.02, the collector offers 0.01"),
        ({"reward_terms": ["track"]}, "reward_terms: this run has ['track', 'torque'], the collector offers ['track']"),
    ],
)
def test_a_mismatch_names_both_values(changes: dict[str, Any], words: str) -> None:
    assert SPEC.mismatch(changed(**changes)) == words


def test_zeros_have_the_shape_and_dtype_of_the_group() -> None:
    zeros = SPEC.zeros("pixels", 3, 2)
    assert (zeros.shape, zeros.dtype) == ((3, 2, 4, 5), np.uint8)
    assert SPEC.zeros("policy", 0).shape == (0, 48)


@pytest.mark.parametrize(
    "changes",
    [
        {"observations": {}},
        {"observations": {"policy": {"shape": [0]}}},
        {"observations": {"policy": {"shape": [3], "dtype": "float64"}}},
        {"observations": {"policy": {"shape": [3], "dtype": "object"}}},
        {"num_actions": 0},
        {"num_envs": -1},
        {"episode_limit": 0},
        {"step_dt": 0.0},
    ],
)
def test_impossible_specs_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        changed(**changes)
