from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers_unit import GROUPS, env_spec, random_rollout
from tensordict import TensorDict

from appo_learner.batch import Batch, Stager

STEPS = 5
SIZES = [3, 1, 4]
Rollouts = list[tuple[dict[str, np.ndarray], int]]


def rollouts(seed: int, sizes: list[int] | None = None, ends: float = 0.15) -> Rollouts:
    rng = np.random.default_rng(seed)
    return [random_rollout(rng, env_spec(size), STEPS, ends)[:2] for size in sizes or SIZES]


def stager() -> Stager:
    return Stager(env_spec(99), GROUPS, STEPS, "cpu")


def tensors(batch: Batch) -> dict[str, torch.Tensor]:
    """A copy of all that the stager fills."""
    storage = batch.storage
    filled = {f"obs/{name}": storage.observations[name] for name in ("policy", "privileged")}
    filled |= {f"last/{name}": batch.last_obs[name] for name in ("policy", "privileged")}
    filled |= {f"final/{name}": batch.final_obs[name] for name in ("policy", "privileged")}
    filled |= {name: getattr(storage, name) for name in ("actions", "rewards", "actions_log_prob", "dones")}
    return {name: tensor.clone() for name, tensor in {**filled, "index": batch.final_index}.items()}


def test_every_rollout_has_its_columns_in_the_order_given() -> None:
    given = rollouts(1)
    got = tensors(stager().stage(given))
    start = 0
    for views, _ in given:
        for env in range(views["rewards"].shape[1]):
            column = start + env
            for step in range(STEPS):
                for name in ("policy", "privileged"):
                    assert got[f"obs/{name}"][step, column].tolist() == views[f"obs/{name}"][step, env].tolist()
                assert got["actions"][step, column].tolist() == views["actions"][step, env].tolist()
                assert got["rewards"][step, column, 0] == views["rewards"][step, env]
                assert got["actions_log_prob"][step, column, 0] == views["log_probs"][step, env]
                ended = views["terminated"][step, env] or views["truncated"][step, env]
                assert got["dones"][step, column, 0] == ended
            for name in ("policy", "privileged"):
                assert got[f"last/{name}"][column].tolist() == views[f"last_obs/{name}"][env].tolist()
        start += views["rewards"].shape[1]
    assert got["rewards"].shape == (STEPS, sum(SIZES), 1)


def test_truncated_episodes_point_to_their_columns_and_only_counted_rows_are_read() -> None:
    given = rollouts(3, ends=0.35)
    assert len({count for _, count in given}) > 1
    got = tensors(stager().stage(given))
    assert torch.isfinite(got["final/policy"]).all(), "a row that is not in use was read"
    row = start = 0
    for views, count in given:
        for place in range(count):
            step, env = views["final_index"][place].tolist()
            assert got["index"][row].tolist() == [step, start + env]
            assert got["dones"][step, start + env, 0] == 1
            for name in ("policy", "privileged"):
                assert got[f"final/{name}"][row].tolist() == views[f"final_obs/{name}"][place].tolist()
            row += 1
        start += views["rewards"].shape[1]
    assert len(got["index"]) == row > 3
    assert got["index"].dtype == torch.int64


def test_without_truncations_the_final_part_is_empty_and_shaped() -> None:
    views, _, _ = random_rollout(np.random.default_rng(0), env_spec(2), STEPS, ends=0.0)
    batch = stager().stage([(views, 0)])
    assert batch.final_index.shape == (0, 2)
    assert batch.final_obs["privileged"].shape == (0, 2)
    assert len(batch.final_obs) == 0


def test_only_groups_that_are_read_are_staged() -> None:
    groups = {"actor": ["policy"], "critic": ["policy"]}
    spec = env_spec(3)
    views, count, _ = random_rollout(np.random.default_rng(0), spec, STEPS)
    batch = Stager(spec, groups, STEPS, "cpu").stage([(views, count)])
    for observations in (batch.storage.observations, batch.last_obs, batch.final_obs):
        assert set(observations.keys()) == {"policy"}


def test_a_batch_is_a_copy() -> None:
    given = rollouts(3)
    batch = stager().stage(given)
    before = tensors(batch)
    for views, _ in given:
        for view in views.values():
            view[...] = 0
    for name, tensor in tensors(batch).items():
        assert torch.equal(tensor, before[name]), name


def test_buffers_are_reused_for_each_size_and_hold_nothing_of_the_batch_before() -> None:
    stage = stager().stage
    first = stage(rollouts(4))
    storage, address = first.storage, first.storage.observations["policy"].data_ptr()
    assert stage(rollouts(5, [2])).storage is not storage
    again = stage(rollouts(6, [1, 6, 1]))
    assert again.storage is storage
    assert again.storage.observations["policy"].data_ptr() == address
    fresh = tensors(stager().stage(rollouts(6, [1, 6, 1])))
    for name, tensor in tensors(again).items():
        assert torch.equal(tensor, fresh[name]), name


def test_fleets_of_ever_new_sizes_do_not_hoard_memory() -> None:
    stage = stager().stage
    first = {size: stage(rollouts(size, [size])).storage for size in range(1, 13)}
    kept = [size for size in range(12, 0, -1) if stage(rollouts(size, [size])).storage is first[size]]
    assert kept == [12, 11, 10, 9, 8, 7, 6, 5]


def test_the_path_through_pinned_memory_gives_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA: host buffers first, then one copy to the device. Here the device is the CPU, which pins nothing."""
    pinned = []

    def pin(self: Any) -> Any:
        pinned.append(self)
        return self

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(TensorDict, "pin_memory", pin)
    direct, through_host = stager(), stager()
    through_host._host_copies = True
    for seed, sizes in [(7, SIZES), (8, [2]), (9, SIZES), (10, [4, 4])]:
        one, other = direct.stage(rollouts(seed, sizes)), through_host.stage(rollouts(seed, sizes))
        wanted = tensors(one)
        for name, tensor in tensors(other).items():
            assert torch.equal(tensor, wanted[name]), (seed, name)
    assert pinned
    addresses = {t.data_ptr() for item in pinned for t in (item.values() if isinstance(item, TensorDict) else [item])}
    assert other.storage.rewards.data_ptr() not in addresses, "the batch is the host's buffer: nothing was copied"
