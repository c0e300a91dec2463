"""rsl_rl models on both sides: what they are built from, what they read, and their parameters as one block of bytes."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from rsl_rl.utils import resolve_class
from tensordict import TensorDict

from appo_common.layout import Field, Layout
from appo_common.spec import EnvSpec
from appo_common.train_classes import takes_nvec
from appo_common.train_config import importable
from appo_common.train_env import check_model, is_image


def example_observations(spec: EnvSpec, num_envs: int, device: str = "cpu") -> TensorDict:
    """Return zeros as they travel and are stored: ``[num_envs, *group]`` each, in the dtype of the spec."""
    return TensorDict(
        {name: torch.from_numpy(spec.zeros(name, num_envs)) for name in spec.observations},
        batch_size=[num_envs],
        device=device,
    )


def example_model_input(spec: EnvSpec, device: str = "cpu") -> TensorDict:
    """Return zeros of one environment as models read them (see :func:`feed_images`); rsl_rl sizes models by it."""
    return _channels_first(_images(spec, spec.observations), example_observations(spec, 1, device))


def feed_images(model: torch.nn.Module, spec: EnvSpec, names: Sequence[str]) -> None:
    """Let ``model`` be called with images as they are stored: ``[B, H, W, C]``, uint8 or float32.

    It gets them as rsl_rl's CNNModel reads them, ``[B, C, H, W]`` float32, uint8 divided by 255. That happens at
    each call, on the model's device, so that every copy before it moves one byte per value. ``names`` are the groups
    that the model reads; those that are no images pass as they are.
    """
    if images := _images(spec, names):
        model.register_forward_pre_hook(partial(_convert_input, images))


def complete_actor(actor_cfg: Mapping[str, Any], spec: EnvSpec) -> dict[str, Any]:
    """Return a deep copy of ``train.actor`` with what only the environment knows: the choices of discrete actions."""
    cfg = copy.deepcopy(dict(actor_cfg))
    distribution = cfg.get("distribution_cfg")
    if distribution and takes_nvec(distribution["class_name"]):
        distribution["class_name"] = importable(distribution["class_name"])
        distribution["nvec"] = list(spec.action_nvec)
    return cfg


def build_actor(spec: EnvSpec, obs_groups: Mapping[str, Sequence[str]], actor_cfg: dict[str, Any]) -> Any:
    """Build the actor that ``train.actor`` describes, as rsl_rl does (``class_name`` and its arguments).

    ``actor_cfg`` is copied: rsl_rl's classes may change what they are given. Raises ConfigError where it does not
    suit the environment.
    """
    check_model("actor", actor_cfg, obs_groups["actor"], spec)
    actor_class, arguments = resolve_class(complete_actor(actor_cfg, spec))
    groups = {key: list(names) for key, names in obs_groups.items()}
    actor = actor_class(example_model_input(spec), groups, "actor", spec.num_actions, **arguments)
    feed_images(actor, spec, groups["actor"])
    return actor


def _images(spec: EnvSpec, names: Iterable[str]) -> list[str]:
    return [name for name in names if is_image(spec.observations[name])]


def _convert_input(images: list[str], module: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert the first argument of a model's call, the observations; a forward pre-hook of torch."""
    obs, *others = inputs
    return (_channels_first(images, obs), *others)


def _channels_first(images: list[str], obs: TensorDict) -> TensorDict:
    """Return ``obs`` with ``images`` as :func:`feed_images` says; the caller's are left as they are."""
    converted = obs.copy()
    for name in images:
        image = obs[name].movedim(-1, -3)
        converted[name] = image.float() / 255 if image.dtype == torch.uint8 else image
    return converted


def state_layout(module: torch.nn.Module) -> Layout:
    """Lay out every parameter and buffer of ``module`` with its own dtype, in the order of its state dict."""
    return Layout(
        Field(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in module.state_dict().items()
    )


def dump_state(module: torch.nn.Module, layout: Layout) -> np.ndarray:
    """Copy the state of ``module`` (on any device) to a new ``[layout.nbytes]`` uint8 block."""
    block = np.zeros(layout.nbytes, dtype=np.uint8)  # zeros: the padding is part of the checksum
    views = layout.views(block)
    for name, tensor in module.state_dict().items():
        torch.from_numpy(views[name]).copy_(tensor)
    return block


def load_state(module: torch.nn.Module, layout: Layout, block: np.ndarray) -> None:
    """Copy a block into ``module`` in place."""
    views = layout.views(block)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            tensor.copy_(torch.from_numpy(views[name]))


def checksum(block: np.ndarray) -> int:
    """CRC-32 of a block."""
    return zlib.crc32(block.data)
