"""Synchronous mode repeats bit for bit, whatever path the bytes take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers_e2e import SYNC_UPDATES, Launcher, Learner, assert_books_balance, sha256, sync_run


@pytest.fixture(scope="module")
def tcp_run(shared_launch: Launcher) -> Learner:
    """The same seed as the reference, over TCP."""
    return finish(shared_launch, 1, "--transport", "tcp")


def finish(launch: Launcher, seed: int, *options: str) -> Learner:
    learner = sync_run(launch, seed)
    collectors = [launch.collector(learner.address, *options) for _ in range(2)]
    assert learner.exit_code(55.0) == 0, learner.text
    assert [collector.exit_code(5.0) for collector in collectors] == [0, 0]
    return learner


def state(learner: Learner) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(learner.checkpoint(SYNC_UPDATES), weights_only=True)
    return loaded


def assert_equal(left: Any, right: Any, place: str = "") -> None:
    """Compare two checkpoints entry by entry, so that a failure names the entry."""
    assert type(left) is type(right), place
    if isinstance(left, dict):
        assert left.keys() == right.keys(), place
        for key in left:
            assert_equal(left[key], right[key], f"{place}.{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), place
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            assert_equal(one, other, f"{place}[{index}]")
    elif isinstance(left, torch.Tensor):
        assert torch.equal(left, right), place
    else:
        assert left == right, place


def test_shared_memory_and_tcp_give_the_same_checkpoint_bit_for_bit(sync_reference: Learner, tcp_run: Learner) -> None:
    assert sync_reference.text.count("joined over shm") == 2
    assert tcp_run.text.count("joined over tcp") == 2
    assert_equal(state(sync_reference), state(tcp_run))
    assert sha256(sync_reference.checkpoint(SYNC_UPDATES)) == sha256(tcp_run.checkpoint(SYNC_UPDATES))


def test_the_learning_curves_are_the_same_too(sync_reference: Learner, tcp_run: Learner) -> None:
    keys = ("env_steps", "return_mean", "length_mean", "timeout_rate", "losses", "learning_rate", "reward_terms")
    one, other = ([{key: line[key] for key in keys} for line in run.metrics()] for run in (sync_reference, tcp_run))
    assert one == other
    assert 0 < one[-1]["timeout_rate"] < 1, "falls and time-outs both occur, or the test shows little"


def test_another_seed_gives_another_policy(launch: Launcher, sync_reference: Learner) -> None:
    other = finish(launch, 2)
    left, right = state(sync_reference)["actor_state_dict"], state(other)["actor_state_dict"]
    assert left.keys() == right.keys()
    assert not all(torch.equal(left[key], right[key]) for key in left)
    assert sync_reference.metrics()[-1]["return_mean"] != other.metrics()[-1]["return_mean"]


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_every_update_takes_one_rollout_of_the_newest_version_from_each_collector(
    sync_reference: Learner, tcp_run: Learner, path: str
) -> None:
    run = sync_reference if path == "shm" else tcp_run
    lines = run.metrics()
    assert [line["lag_max"] for line in lines] == [0] * SYNC_UPDATES
    assert [line["rollouts_trained"] for line in lines] == [2 * (n + 1) for n in range(SYNC_UPDATES)]
    assert all(line["rollouts_discarded"] == 0 for line in lines)
    assert [book["trained"] for book in assert_books_balance(run).values()] == [SYNC_UPDATES] * 2
