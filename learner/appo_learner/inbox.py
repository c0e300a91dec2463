"""Rollouts that have arrived and wait to be trained on, and which of them make the next batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from appo_learner.member import Rollout


@dataclass(frozen=True)
class Selection:
    """What one look into the inbox gives."""

    batch: list[Rollout] = field(default_factory=list)
    """Rollouts of the next update; empty if there are not enough yet."""
    stale: list[Rollout] = field(default_factory=list)
    """Rollouts that may not be trained on any more."""
    waiting_for: str = ""
    """Why there is no batch yet, in words."""


def select_async(
    waiting: Sequence[Rollout], version: int, max_lag: int, batch_envs: int | None, fleet_envs: int
) -> Selection:
    """Take the oldest rollouts until they fill ``batch_envs`` columns (None: as many as the fleet has).

    One update then uses about one rollout of every collector, whatever their number, and the lag stays near 1.
    """
    stale = [rollout for rollout in waiting if version - rollout.header.policy_version > max_lag]
    fresh = [rollout for rollout in waiting if rollout not in stale]
    wanted = fleet_envs if batch_envs is None else batch_envs
    batch: list[Rollout] = []
    columns = 0
    for rollout in fresh:
        if columns >= wanted:
            break
        batch.append(rollout)
        columns += rollout.num_envs
    if wanted == 0:
        return Selection(stale=stale, waiting_for="no collector is connected")
    if columns < wanted:
        return Selection(stale=stale, waiting_for=f"{columns} of {wanted} environment columns have arrived")
    return Selection(batch, stale)


def select_sync(waiting: Sequence[Rollout], version: int, collectors: Sequence[int]) -> Selection:
    """Take one rollout of exactly ``version`` from each of ``collectors``, in the order of their indices."""
    stale = [rollout for rollout in waiting if rollout.header.policy_version != version]
    by_index = {rollout.member.index: rollout for rollout in waiting if rollout not in stale}
    missing = [index for index in collectors if index not in by_index]
    if not collectors:
        return Selection(stale=stale, waiting_for="no collector is connected")
    if missing:
        return Selection(stale=stale, waiting_for=f"no rollout of collectors {missing} has arrived yet")
    return Selection([by_index[index] for index in sorted(collectors)], stale)
