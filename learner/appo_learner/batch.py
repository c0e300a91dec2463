"""From the rollouts of any collectors to one time-major batch in rsl_rl's storage."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from appo_common.layout import observation_groups
from appo_common.models import example_observations
from appo_common.spec import EnvSpec

Views = Mapping[str, np.ndarray]


@dataclass
class Batch:
    """T steps of K environment columns on the learner's device."""

    storage: RolloutStorage
    """Observations ``[T, K, *group]``, actions ``[T, K, A]``; rewards, dones and the behaviour policy's
    log-probabilities ``[T, K, 1]``. The rest is filled by :class:`appo_learner.appo.APPO`."""
    last_obs: TensorDict
    """The critic's groups after step T-1, ``[K, *group]``."""
    final_index: torch.Tensor
    """``[M, 2]`` int64: step and column of every truncated episode."""
    final_obs: TensorDict
    """The critic's groups at the end of those episodes, ``[M, *group]``."""
    valid: torch.Tensor | None = None
    """``[T, K]`` bool where environments skip steps: False for a step that only reset an environment."""


class Stager:
    """Copies rollouts into a batch. On a CUDA device the copy goes through pinned memory and does not block."""

    def __init__(self, spec: EnvSpec, obs_groups: Mapping[str, Sequence[str]], num_steps: int, device: str) -> None:
        """Buffers are made at the first batch of each size."""
        self._spec = spec
        self._groups = observation_groups(obs_groups)
        self._critic_groups = sorted(set(obs_groups["critic"]))
        self._num_steps = num_steps
        self._device = device
        self._host_copies = torch.device(device).type != "cpu"
        self._buffers: dict[int, tuple[RolloutStorage, TensorDict, RolloutStorage, TensorDict]] = {}

    def stage(self, rollouts: Sequence[tuple[Views, int]]) -> Batch:
        """Copy ``(views, final_count)`` of each rollout to its columns, in the order given."""
        columns = sum(views["rewards"].shape[1] for views, _ in rollouts)
        host, host_last, storage, last_obs = self._buffers_for(columns)
        start = 0
        for views, _ in rollouts:
            stop = start + views["rewards"].shape[1]
            self._copy_columns(views, host, host_last, slice(start, stop))
            start = stop
        if self._host_copies:
            _copy_to_device(host, storage)
            last_obs.copy_(host_last, non_blocking=True)
        final_index, final_obs = self._final(rollouts)
        return Batch(storage, last_obs, final_index, final_obs, self._valid(rollouts))

    def _copy_columns(self, views: Views, storage: RolloutStorage, last_obs: TensorDict, columns: slice) -> None:
        for name in self._groups:
            storage.observations[name][:, columns].copy_(torch.from_numpy(views[f"obs/{name}"]))
        for name in self._critic_groups:
            last_obs[name][columns].copy_(torch.from_numpy(views[f"last_obs/{name}"]))
        storage.actions[:, columns].copy_(torch.from_numpy(views["actions"]))
        storage.rewards[:, columns, 0].copy_(torch.from_numpy(views["rewards"]))
        storage.actions_log_prob[:, columns, 0].copy_(torch.from_numpy(views["log_probs"]))
        dones = views["terminated"] | views["truncated"]
        storage.dones[:, columns, 0].copy_(torch.from_numpy(dones))

    def _final(self, rollouts: Sequence[tuple[Views, int]]) -> tuple[torch.Tensor, TensorDict]:
        """Gather the truncated episodes; their columns are shifted to those of the batch."""
        indices, groups = [], {name: [self._spec.zeros(name, 0)] for name in self._critic_groups}
        start = 0
        for views, count in rollouts:
            indices.append(views["final_index"][:count].astype(np.int64) + np.array([0, start]))
            for name in self._critic_groups:
                groups[name].append(views[f"final_obs/{name}"][:count])
            start += views["rewards"].shape[1]
        index = torch.from_numpy(np.concatenate(indices)).to(self._device)
        obs = {name: torch.from_numpy(np.concatenate(parts)) for name, parts in groups.items()}
        return index, TensorDict(obs, batch_size=[len(index)]).to(self._device)

    def _valid(self, rollouts: Sequence[tuple[Views, int]]) -> torch.Tensor | None:
        if not self._spec.skips_steps:
            return None
        return torch.from_numpy(np.concatenate([views["valid"] for views, _ in rollouts], axis=1)).to(self._device)

    def _buffers_for(self, columns: int) -> tuple[RolloutStorage, TensorDict, RolloutStorage, TensorDict]:
        if columns not in self._buffers:
            if len(self._buffers) >= 8:  # fleets of changing size: keep the newest few sizes
                self._buffers.pop(next(iter(self._buffers)))
            storage, last_obs = self._allocate(columns, self._device)
            host, host_last = storage, last_obs
            if self._host_copies:
                host, host_last = self._allocate(columns, "cpu")
                _pin(host)
                host_last = host_last.pin_memory()
            self._buffers[columns] = (host, host_last, storage, last_obs)
        return self._buffers[columns]

    def _allocate(self, columns: int, device: str) -> tuple[RolloutStorage, TensorDict]:
        example = example_observations(self._spec, columns, device).select(*self._groups)
        storage = RolloutStorage("rl", columns, self._num_steps, example, [self._spec.num_actions], device)
        return storage, example.select(*self._critic_groups)


def keep_valid(storage: RolloutStorage, valid: torch.Tensor) -> RolloutStorage:
    """Return a storage of the V steps that ``valid`` (``[T, K]`` bool) marks, ``[V, 1, ...]`` each.

    rsl_rl cuts mini-batches from steps and columns alike, so that their arrangement is of no account.
    """
    kept = copy.copy(storage)
    kept.num_transitions_per_env, kept.num_envs = int(valid.sum()), 1
    for name in (*_STAGED, "values", "returns", "advantages"):
        setattr(kept, name, getattr(storage, name)[valid].unsqueeze(1))
    parameters = storage.distribution_params or ()
    kept.distribution_params = tuple(parameter[valid].unsqueeze(1) for parameter in parameters)
    return kept


_STAGED = ("observations", "actions", "rewards", "actions_log_prob", "dones")


def _pin(storage: RolloutStorage) -> None:
    for name in _STAGED:
        setattr(storage, name, getattr(storage, name).pin_memory())


def _copy_to_device(host: RolloutStorage, storage: RolloutStorage) -> None:
    for name in _STAGED:
        getattr(storage, name).copy_(getattr(host, name), non_blocking=True)
