"""A valid configuration file, to be changed by a test and written."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

# As rsl_rl.runners.OnPolicyRunner takes it, with the further keys of Isaac Lab's runner configuration.
TRAIN: dict[str, Any] = {
    "class_name": "OnPolicyRunner",
    "seed": 42,
    "device": "cuda:0",
    "num_steps_per_env": 24,
    "max_iterations": 1500,
    "save_interval": 100,
    "experiment_name": "anymal",
    "run_name": "first",
    "logger": "tensorboard",
    "wandb_project": "isaaclab",
    "neptune_project": "isaaclab",
    "resume": False,
    "load_run": ".*",
    "load_checkpoint": "model_.*.pt",
    "clip_actions": None,
    "check_for_nan": True,
    "torch_compile_mode": None,
    "obs_groups": {"actor": ["policy"], "critic": ["policy", "privileged"]},
    "actor": {
        "class_name": "MLPModel",
        "hidden_dims": [128, 64],
        "activation": "elu",
        "obs_normalization": True,
        "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "log"},
    },
    "critic": {"class_name": "MLPModel", "hidden_dims": [128, -1], "activation": "elu"},
    "algorithm": {
        "class_name": "PPO",
        "num_learning_epochs": 5,
        "num_mini_batches": 4,
        "clip_param": 0.2,
        "gamma": 0.98,
        "lam": 0.9,
        "value_loss_coef": 1.0,
        "entropy_coef": 0.005,
        "learning_rate": 1.0e-3,
        "max_grad_norm": 1.0,
        "optimizer": "adam",
        "use_clipped_value_loss": True,
        "schedule": "adaptive",
        "desired_kl": 0.01,
        "normalize_advantage_per_mini_batch": False,
        "share_cnn_encoders": False,
        "rnd_cfg": None,
        "symmetry_cfg": None,
    },
}


def sections(**changes: Any) -> dict[str, Any]:
    """A valid file's content; keyword ``a__b=1`` sets ``a.b``, and the value ``...`` removes the key."""
    tree: dict[str, Any] = {
        "env": {"num_envs": 16},
        "train": copy.deepcopy(TRAIN),
        "learner": {},
        "network": {},
    }
    for name, value in changes.items():
        *path, last = name.split("__")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        if value is ...:
            del node[last]
        else:
            node[last] = value
    return tree


def writer(directory: Path) -> Callable[..., str]:
    """A function that writes a file's content there and returns the path."""

    def _write(content: dict[str, Any] | str, name: str = "robot.yaml") -> str:
        path = directory / name
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
        return str(path)

    return _write
