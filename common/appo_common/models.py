"""rsl_rl models on both sides, and their parameters as one block of bytes."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from rsl_rl.utils import resolve_class
from tensordict import TensorDict

from appo_common.layout import Field, Layout
from appo_common.spec import EnvSpec


def example_observations(spec: EnvSpec, num_envs: int, device: str = "cpu") -> TensorDict:
    """Return zeros in the shapes of the spec, ``[num_envs, *group]`` each; rsl_rl sizes models and storage by it."""
    return TensorDict(
        {name: torch.from_numpy(spec.zeros(name, num_envs)) for name in spec.observations},
        batch_size=[num_envs],
        device=device,
    )


def build_actor(spec: EnvSpec, obs_groups: Mapping[str, Sequence[str]], actor_cfg: dict[str, Any]) -> Any:
    """Build the actor that ``train.actor`` describes, as rsl_rl does (``class_name`` and its arguments).

    ``actor_cfg`` is copied: rsl_rl's classes may change what they are given.
    """
    actor_class, arguments = resolve_class(copy.deepcopy(actor_cfg))
    groups = {key: list(names) for key, names in obs_groups.items()}
    return actor_class(example_observations(spec, 1), groups, "actor", spec.num_actions, **arguments)


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
