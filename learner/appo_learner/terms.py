"""What the learner tells every collector alike: which run this is, what was settled, and the newest weights."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from appo_common.config import RunConfig
from appo_common.errors import SharedMemoryError
from appo_common.layout import Layout, rollout_layout
from appo_common.messages import SharedMemoryOffer, WeightsHeader, Welcome
from appo_common.models import checksum
from appo_common.shared_memory import Segment, SlotPlan
from appo_common.sockets import Endpoints
from appo_common.spec import EnvSpec

WEIGHT_SLOTS = 3
"""Versions in each segment: one being written, the newest, and the one that a slow reader may still copy."""


@dataclass(frozen=True)
class Run:
    """One process of a learner: a restart has the same ``run_id`` and another ``incarnation``."""

    config: RunConfig
    run_id: str
    incarnation: str
    start_iteration: int = 0
    source: str = "configuration"
    """The file or preset that the user gave, for errors that show only when an environment is known."""

    @property
    def max_in_flight(self) -> int:
        """Credits of each collector. In sync mode every update waits for everybody, so one is enough."""
        return 1 if self.config.learner.mode == "sync" else self.config.learner.max_in_flight

    def welcome(self, index: int, session: str, endpoints: Endpoints) -> Welcome:
        """Return what a collector needs to build its environment and its actor."""
        config, train = self.config, self.config.train
        return Welcome(
            run_id=self.run_id,
            incarnation=self.incarnation,
            collector=index,
            session=session,
            seed=[config.seed, index, self.start_iteration],
            env=config.env.model_dump(),
            train={key: train[key] for key in ("num_steps_per_env", "obs_groups", "actor") if key in train},
            rollout_port=endpoints.rollout_port,
            weights_port=endpoints.weights_port,
            heartbeat_interval_s=config.network.heartbeat_interval_s,
            heartbeat_timeout_s=config.network.heartbeat_timeout_s,
        )


@dataclass(frozen=True)
class Contract:
    """What the first collector's spec has settled for the whole run."""

    spec: EnvSpec
    obs_groups: dict[str, list[str]]
    actor: Layout
    num_steps: int

    def rollout(self, spec: EnvSpec) -> Layout:
        """Return the rollout layout of a collector with this spec."""
        return rollout_layout(spec, self.num_steps, self.obs_groups)

    def offer(self, rollout: Layout, slots: int, directory: str) -> tuple[Segment, SlotPlan] | str:
        """Make a segment with ``slots`` rollouts; or say why there can be none."""
        plan = SlotPlan(rollout.nbytes, slots, self.actor.nbytes, WEIGHT_SLOTS)
        try:
            return Segment.create(directory, plan.nbytes), plan
        except SharedMemoryError as error:
            return str(error)


def offer_message(segment: Segment, plan: SlotPlan) -> SharedMemoryOffer:
    """Describe a segment to the collector. The nonce is left out: having read it is the proof."""
    return SharedMemoryOffer(
        path=segment.path,
        nbytes=plan.nbytes,
        rollout_slots=plan.rollout_slots,
        weight_slots=plan.weight_slots,
    )


@dataclass(frozen=True)
class Weights:
    """One published version of the actor. The block is never written again."""

    incarnation: str
    version: int
    block: np.ndarray
    """``[actor.nbytes]`` uint8."""
    crc32: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "crc32", checksum(self.block))

    @property
    def slot(self) -> int:
        """Shared-memory slot that this version is copied to."""
        return self.version % WEIGHT_SLOTS

    def header(self, slot: int | None = None) -> WeightsHeader:
        """Return the header for shared memory (with a slot) or for the frames of the block."""
        return WeightsHeader(
            incarnation=self.incarnation,
            version=self.version,
            crc32=self.crc32,
            nbytes=self.block.nbytes,
            slot=slot,
        )
