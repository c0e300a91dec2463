"""Ends of episodes, through every adapter and autoreset mode, against a table worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from helpers_counting import SCRIPT, CountingContract, CountingGym, CountingVector, rollouts
from helpers_counting_tables import EXACT, SKIPPING

from appo_collector.envs.adapters.gymnasium_env import GymnasiumEnv, vectorise
from appo_collector.envs.contract import VectorEnv

NEXT, SAME, NEVER = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


def makers(**options: bool) -> list[Callable[[], CountingGym]]:
    return [partial(CountingGym, env, line, **options) for env, line in enumerate(SCRIPT)]


def sync(mode: AutoresetMode, copy: bool = True, **options: bool) -> VectorEnv:
    return GymnasiumEnv(SyncVectorEnv(makers(**options), copy=copy, autoreset_mode=mode), "counting")


def parallel(mode: AutoresetMode, **options: Any) -> VectorEnv:
    return GymnasiumEnv(AsyncVectorEnv(makers(), autoreset_mode=mode, **options), "counting")


SAME_STEP_RESULTS: dict[str, Callable[[], VectorEnv]] = {
    "the contract itself": CountingContract,
    "single environments": lambda: vectorise(makers(), "counting"),
    "single environments that write into one array": lambda: vectorise(makers(in_place=True), "counting"),
    "single environments with Dict": lambda: vectorise(makers(as_dict=True, in_place=True), "counting"),
    "sync NEXT_STEP": lambda: sync(NEXT),
    "sync NEXT_STEP without copies": lambda: sync(NEXT, copy=False, in_place=True),
    "sync SAME_STEP": lambda: sync(SAME),
    "sync SAME_STEP with Dict": lambda: sync(SAME, as_dict=True, copy=False),
    "sync DISABLED": lambda: sync(NEVER),
    "async NEXT_STEP": lambda: parallel(NEXT),
    "async SAME_STEP": lambda: parallel(SAME, shared_memory=False),
    "async DISABLED without copies": lambda: parallel(NEVER, copy=False),
    "another SAME_STEP": lambda: GymnasiumEnv(CountingVector(SAME), "counting"),
    "another DISABLED": lambda: GymnasiumEnv(CountingVector(NEVER), "counting"),
}
SKIPPING_RESULTS: dict[str, Callable[[], VectorEnv]] = {
    "another NEXT_STEP": lambda: GymnasiumEnv(CountingVector(NEXT), "counting"),
    "a wrapped sync NEXT_STEP": lambda: GymnasiumEnv(
        RecordEpisodeStatistics(SyncVectorEnv(makers(), autoreset_mode=NEXT)), "counting"
    ),
}


@pytest.mark.parametrize("kind", SAME_STEP_RESULTS)
def test_every_kind_of_end_is_recorded_as_worked_out_by_hand(kind: str) -> None:
    env = SAME_STEP_RESULTS[kind]()
    try:
        assert not env.spec.skips_steps
        assert rollouts(env) == EXACT
        assert rollouts(env) == EXACT  # from the start again: nothing of the first time was left
    finally:
        env.close()


@pytest.mark.parametrize("kind", SKIPPING_RESULTS)
def test_steps_that_only_reset_are_marked_and_the_others_are_the_same(kind: str) -> None:
    env = SKIPPING_RESULTS[kind]()
    assert env.spec.skips_steps
    assert rollouts(env) == SKIPPING
    assert rollouts(env) == SKIPPING
    env.close()


def test_both_tables_hold_the_same_transitions() -> None:
    exact, skipping = (transitions(table) for table in (EXACT, SKIPPING))
    for with_all, with_less in zip(exact, skipping, strict=True):
        assert with_less == with_all[: len(with_less)]
    assert [len(env) for env in skipping] == [9, 9, 9]  # of 12


def transitions(table: list[dict[str, Any]]) -> list[list[Any]]:
    """Of each environment: the valid steps, one after the other."""
    result: list[list[Any]] = [[], [], []]
    for fields in table:
        names = ("obs/policy", "rewards", "terminated", "truncated")
        valid = fields.get("valid", np.ones((6, 3), dtype=bool).tolist())
        for step, env in np.argwhere(valid):
            result[env].append([fields[name][step][env] for name in names])
    return result
