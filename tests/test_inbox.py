from __future__ import annotations

import numpy as np
import pytest
from helpers_unit import hello, rollout_header

from appo_learner.books import Book
from appo_learner.inbox import select_async, select_sync
from appo_learner.member import Member, Rollout


def member(index: int, num_envs: int = 4) -> Member:
    return Member(b"%d" % index, hello(), index, num_envs, Book(index, "name"), sent_before=0)


def rollout(of: Member, version: int) -> Rollout:
    return Rollout(of, rollout_header(policy_version=version), {"rewards": np.zeros((5, of.num_envs))})


A, B, C = member(0, 4), member(1, 8), member(2, 2)


# ------------------------------------------------------------------------------------------------ async


def test_a_batch_has_as_many_columns_as_the_fleet() -> None:
    waiting = [rollout(A, 3), rollout(B, 3), rollout(C, 3), rollout(A, 3)]
    selection = select_async(waiting, 3, max_lag=10, batch_envs=None, fleet_envs=14)
    assert selection.batch == waiting[:3]
    assert selection.stale == []


def test_two_rollouts_of_one_collector_may_stand_for_another() -> None:
    waiting = [rollout(A, 3), rollout(A, 3), rollout(C, 3)]
    assert select_async(waiting, 3, max_lag=10, batch_envs=None, fleet_envs=8).batch == waiting[:2]


def test_a_fixed_number_of_columns_is_filled_with_whole_rollouts_oldest_first() -> None:
    waiting = [rollout(C, 5), rollout(B, 4), rollout(A, 3)]  # in the order of arrival, whatever their version
    assert select_async(waiting, 5, max_lag=10, batch_envs=3, fleet_envs=14).batch == waiting[:2]
    assert select_async(waiting, 5, max_lag=10, batch_envs=2, fleet_envs=14).batch == waiting[:1]
    assert select_async(waiting, 5, max_lag=10, batch_envs=11, fleet_envs=2).batch == waiting


@pytest.mark.parametrize(("max_lag", "stale"), [(0, 3), (1, 2), (2, 1), (3, 0)])
def test_rollouts_beyond_the_permitted_lag_are_stale_and_not_trained_on(max_lag: int, stale: int) -> None:
    waiting = [rollout(A, version) for version in (7, 8, 9, 10)]
    selection = select_async(waiting, 10, max_lag, batch_envs=4, fleet_envs=4)
    assert selection.stale == waiting[:stale]
    assert selection.batch == [waiting[stale]]


def test_stale_rollouts_are_named_even_when_there_is_no_batch() -> None:
    waiting = [rollout(A, 0), rollout(A, 20)]
    selection = select_async(waiting, 20, max_lag=10, batch_envs=None, fleet_envs=8)
    assert selection.batch == []
    assert selection.stale == waiting[:1]
    assert selection.waiting_for == "4 of 8 environment columns have arrived"


def test_without_collectors_it_says_so() -> None:
    selection = select_async([rollout(A, 3)], 3, max_lag=10, batch_envs=None, fleet_envs=0)
    assert selection.batch == []
    assert selection.waiting_for == "no collector is connected"
    assert select_sync([], 3, []).waiting_for == "no collector is connected"


# ------------------------------------------------------------------------------------------------- sync


def test_sync_takes_one_rollout_of_each_in_the_order_of_indices() -> None:
    a, b, c = rollout(A, 3), rollout(B, 3), rollout(C, 3)
    for waiting in ([c, a, b], [b, c, a], [a, b, c]):
        assert select_sync(waiting, 3, [0, 1, 2]).batch == [a, b, c]


def test_sync_waits_for_everybody_and_says_for_whom() -> None:
    selection = select_sync([rollout(B, 3)], 3, [0, 1, 2])
    assert selection.batch == []
    assert selection.waiting_for == "no rollout of collectors [0, 2] has arrived yet"


@pytest.mark.parametrize("version", [2, 4])
def test_sync_takes_exactly_the_newest_version(version: int) -> None:
    other, right = rollout(A, version), rollout(B, 3)
    selection = select_sync([other, right], 3, [0, 1])
    assert selection.batch == []
    assert selection.stale == [other]
    assert selection.waiting_for == "no rollout of collectors [0] has arrived yet"


def test_sync_leaves_a_rollout_of_a_newcomer_out_until_all_have_come() -> None:
    waiting = [rollout(A, 3), rollout(B, 3)]
    assert select_sync(waiting, 3, [0, 1, 2]).batch == []
    assert select_sync(waiting, 3, [0, 1]).batch == waiting
