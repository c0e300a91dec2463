"""A CNN learns from images by real processes, vectors beside them or not.

The ball's column is uniform and shows in the image alone, and the paddle always covers 3 of the 12 columns: whatever
a policy does that does not see the image, it catches 3/12 = 0.25 of the balls. One that sees can catch all of them.
"""

from __future__ import annotations

from typing import Any

import pytest
from helpers_e2e import Launcher, make_config
from image_envs import SIDE

BLIND = 3 / SIDE
SEEING = 0.8
"""Mean return over the last 100 episodes; a blind policy's has a standard deviation of 0.043 about 0.25."""


def config(groups: list[str], distribution: dict[str, Any], **overrides: Any) -> dict[str, Any]:
    """A configuration for ``image_envs:Catch``."""
    model = {
        "class_name": "CNNModel",
        "hidden_dims": [64],
        "activation": "relu",
        "obs_normalization": False,
        "cnn_cfg": {"output_channels": [16], "kernel_size": 4, "stride": 4, "activation": "relu"},
    }
    made = make_config(
        env={"name": "image_envs:Catch", "num_envs": 32, "overrides": overrides},
        train={
            "num_steps_per_env": 20,
            "obs_groups": {"actor": groups, "critic": groups},
            "algorithm": {
                "num_learning_epochs": 4,
                "num_mini_batches": 4,
                "learning_rate": 2e-3,
                "schedule": "fixed",
                "gamma": 0.95,
                "entropy_coef": 0.01,
                "use_clipped_value_loss": False,
            },
        },
    )
    made["train"]["actor"] = {**model, "distribution_cfg": distribution}
    made["train"]["critic"] = model
    return made


CATEGORICAL = {"class_name": "CategoricalDistribution"}


def test_a_cnn_learns_to_catch_what_only_the_image_shows(launch: Launcher) -> None:
    learner = launch.learner(config(["image"], CATEGORICAL), "--local-collectors", "1", "--max-iterations", "70")
    assert learner.exit_code(55.0) == 0, learner.text
    lines = learner.metrics()
    assert lines[0]["return_mean"] == pytest.approx(BLIND, abs=0.15)
    assert lines[-1]["return_mean"] > SEEING, [line["return_mean"] for line in lines]


@pytest.mark.parametrize(
    ("distribution", "overrides"),
    [
        (CATEGORICAL, {"state": True, "as_float": True}),
        ({"class_name": "GaussianDistribution", "init_std": 1.0}, {"state": True, "box": True}),
    ],
    ids=["float image", "continuous action"],
)
def test_images_and_vectors_train_together(
    launch: Launcher, distribution: dict[str, Any], overrides: dict[str, Any]
) -> None:
    made = config(["image", "state"], distribution, **overrides)
    learner = launch.learner(made, "--local-collectors", "1", "--max-iterations", "3")
    assert learner.exit_code(55.0) == 0, learner.text
    assert [line["iteration"] for line in learner.metrics()] == [1, 2, 3]


def test_an_image_for_an_mlp_ends_the_run_with_the_lines_to_write(launch: Launcher) -> None:
    made = config(["image"], CATEGORICAL)
    made["train"]["actor"] = {"class_name": "MLPModel", "distribution_cfg": CATEGORICAL}
    learner = launch.learner(made, "--local-collectors", "1")
    assert learner.exit_code(40.0) == 2, learner.text
    for words in ("config-0.yaml: train.actor.class_name = MLPModel", "'image'", "class_name: CNNModel", "`cnn_cfg: {"):
        assert words in learner.text
    assert "Traceback" not in learner.text
