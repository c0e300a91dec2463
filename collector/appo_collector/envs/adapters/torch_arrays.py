"""From the tensors of a torch environment, which reuses them, to arrays of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from appo_collector.envs.adapters.image_layout import channels_first, channels_last
from appo_collector.envs.contract import Observations
from appo_common.errors import EnvironmentFault
from appo_common.spec import ObservationGroup


def as_array(tensor: Any, dtype: str) -> np.ndarray:
    """Return a copy of ``tensor``, of any device and dtype, as an array of ``dtype`` that nobody else writes."""
    if isinstance(tensor, torch.Tensor):
        tensor = tensor.detach().cpu().numpy()
    return np.array(tensor, dtype=dtype, order="C")


def as_groups(batch: Mapping[str, Any], name: str) -> Observations:
    """Return every group of ``batch``, a TensorDict or a dict of tensors ``[rows, ...]``, as an array of its own.

    * uint8 of two or three dimensions: images ``[rows, H, W, C]``, uint8.
    * anything else of three dimensions: images, float32.
    * all others: float32 ``[rows, size]``.

    Channels that come first are moved to the end, see :func:`channels_first`.
    Raises EnvironmentFault for a group that holds further groups, or that has more dimensions.
    """
    return {str(key): _group(tensor, f"{name}: observation group {key!r}") for key, tensor in batch.items()}


def describe(groups: Observations) -> dict[str, ObservationGroup]:
    """Return the spec of ``groups``, arrays ``[N, *group]``."""
    return {key: ObservationGroup(shape=list(array.shape[1:]), dtype=array.dtype.name) for key, array in groups.items()}


def _group(tensor: Any, place: str) -> np.ndarray:
    if not isinstance(tensor, torch.Tensor):
        remedy = "; concatenate its terms, for instance with concatenate_terms=True" if hasattr(tensor, "items") else ""
        raise EnvironmentFault(f"{place} is a {type(tensor).__name__}, not a tensor{remedy}")
    shape = tuple(tensor.shape[1:])
    if tensor.ndim == 0 or len(shape) > 3 or 0 in shape:
        raise EnvironmentFault(f"{place} has the shape {tuple(tensor.shape)}, expected [num_envs, *one to three sizes]")
    dtype = "uint8" if tensor.dtype == torch.uint8 and len(shape) >= 2 else "float32"
    array = as_array(tensor, dtype)
    if len(shape) == 3:
        return channels_last(array) if channels_first(shape) else array
    return array[..., None] if dtype == "uint8" else array.reshape(len(array), -1)
