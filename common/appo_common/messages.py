"""Every message on the wire: msgpack maps, validated on receipt.

An unknown field is ignored, a missing or wrong one rejects the message. Nothing here knows about sockets.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgpack
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from appo_common.errors import ProtocolError
from appo_common.spec import EnvSpec

MAGIC = "APPO"
PROTOCOL_VERSION = 1
OTHER_VERSION = "protocol version"
"""Reason of the ProtocolError for a peer of another release."""

Count = Annotated[int, Field(ge=0)]
Index = Annotated[int, Field(ge=0, lt=1 << 20)]


class Message(BaseModel):
    """Base of all messages. ``kind`` is the name on the wire."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)
    kind: ClassVar[str]


# ----------------------------------------------------------------------------- joining, collector to learner


class Hello(Message):
    """First words of a collector."""

    kind = "HELLO"
    uid: str
    """Unique for the process; the same across reconnects."""
    name: str
    host: str
    pid: Count
    software: dict[str, str]
    num_envs: Annotated[int, Field(gt=0)] | None
    """Environments wanted; None takes the configured number."""


class Ready(Message):
    """The environment stands."""

    kind = "READY"
    spec: EnvSpec


class Attached(Message):
    """Answer to the shared-memory offer."""

    kind = "ATTACHED"
    nonce: bytes | None
    """What the collector read from the segment; None if it could not or would not."""
    reason: str
    """Why not, in words; empty if attached."""


class Heartbeat(Message):
    """The program makes progress; also the newest figures for the view."""

    kind = "HEARTBEAT"
    policy_version: int
    rollouts_sent: Count
    env_steps: Count
    state: str
    timers_ms: dict[str, float]
    cpu_percent: float
    memory_mb: float


class WantWeights(Message):
    """No weights of at least this version have arrived over PUB/SUB: please send them here."""

    kind = "WANT_WEIGHTS"
    version: Count


class Bye(Message):
    """The collector leaves."""

    kind = "BYE"
    reason: str
    rollouts_sent: Count


# ----------------------------------------------------------------------------- joining, learner to collector


class Welcome(Message):
    """What the collector needs to build its environment and its actor."""

    kind = "WELCOME"
    run_id: str
    incarnation: str
    collector: Index
    session: str
    """Named in every rollout header: an index, and sequence numbers, are used again by later sessions."""
    seed: list[Count]
    """Entropy for :class:`numpy.random.SeedSequence`: the run's seed, the index, the iteration it started at."""
    env: dict[str, Any]
    train: dict[str, Any]
    """``num_steps_per_env``, ``obs_groups`` and ``actor`` of rsl_rl's dictionary."""
    rollout_port: Annotated[int, Field(gt=0, lt=65536)]
    weights_port: Annotated[int, Field(gt=0, lt=65536)]
    heartbeat_interval_s: float
    heartbeat_timeout_s: float


class SharedMemoryOffer(BaseModel):
    """One file in a shared-memory directory. Its nonce is inside the file, so that reading it is proof."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)
    path: str
    nbytes: Count
    rollout_slots: Count
    weight_slots: Count


class Admit(Message):
    """The collector is part of the run. The weights block follows as further frames."""

    kind = "ADMIT"
    fingerprint: str
    """Of the rollout layout; the collector computes its own and must agree."""
    obs_groups: dict[str, list[str]]
    offer: SharedMemoryOffer | None
    offer_reason: str
    """Why there is no offer; empty if there is one."""
    weights: WeightsHeader


class Credit(Message):
    """Permission to start more rollouts."""

    kind = "CREDIT"
    slots: list[Index]
    """One rollout may be started for each: the slot of shared memory (or of the learner's staging) it will fill."""
    min_version: Count
    """The lowest policy version they may start from."""
    path: Literal["shm", "tcp"]


class Alive(Message):
    """Answer to a heartbeat."""

    kind = "ALIVE"
    version: Count


class Rejoin(Message):
    """The learner does not know this collector (any more): start again from HELLO."""

    kind = "REJOIN"
    reason: str


class Reject(Message):
    """Refused for good, in words a user can act on."""

    kind = "REJECT"
    reason: str


class Stop(Message):
    """The run is over."""

    kind = "STOP"
    reason: str


# ----------------------------------------------------------------------------- data headers


class WeightsHeader(Message):
    """In front of one version of the actor's parameters and buffers."""

    kind = "WEIGHTS"
    incarnation: str
    version: Count
    crc32: Count
    nbytes: Count
    slot: Index | None
    """Shared-memory slot, or None when the block follows in frames."""


MAX_EPISODES = 100
"""Episodes in one rollout header: as many as the learner's figures are means of. More would outgrow a frame."""


class Episodes(BaseModel):
    """The newest episodes that ended in a rollout (at most 100), one entry per episode and list."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)
    returns: list[float]
    """Undiscounted sums of exactly what the environment returned."""
    lengths: list[Count]
    timeouts: list[bool]
    terms: dict[str, list[float]]
    """Per-episode sums of each reward term."""

    @model_validator(mode="after")
    def _of_one_length(self) -> Episodes:
        lists: list[list[Any]] = [self.lengths, self.timeouts, *self.terms.values()]
        if any(len(values) != len(self.returns) for values in lists):
            raise ValueError("lists of different lengths")
        return self


class RolloutHeader(Message):
    """In front of one rollout, or instead of it when the block lies in shared memory."""

    kind = "ROLLOUT"
    incarnation: str
    collector: Index
    session: str
    seq: Count
    """Counts the rollouts of this collector from 0 in every session."""
    policy_version: Count
    slot: Index
    """The credit this rollout spends. With shared memory the block lies in that slot."""
    final_count: Count
    episodes: Episodes
    timers_ms: dict[str, float]


Admit.model_rebuild()

KINDS: dict[str, type[Message]] = {
    message.kind: message
    for message in (
        *(Hello, Ready, Attached, Heartbeat, WantWeights, Bye),
        *(Welcome, Admit, Credit, Alive, Rejoin, Reject, Stop),
        *(WeightsHeader, RolloutHeader),
    )
}

M = TypeVar("M", bound=Message)


def pack(message: Message) -> bytes:
    """Serialise a message to one frame."""
    body = message.model_dump()
    packed: bytes = msgpack.packb(
        {"magic": MAGIC, "protocol": PROTOCOL_VERSION, "kind": message.kind, **body}, use_bin_type=True
    )
    return packed


def unpack(frame: Any) -> Message:
    """Parse one frame (any buffer).

    Raises:
        ProtocolError: not msgpack, another magic or protocol version, an unknown kind, a missing or wrong field.
    """
    try:
        body = msgpack.unpackb(frame, raw=False)
    except Exception as error:  # msgpack raises a dozen unrelated types on hostile input
        raise ProtocolError("not msgpack", type(error).__name__) from error
    if not isinstance(body, dict) or body.get("magic") != MAGIC:
        raise ProtocolError("foreign message", "no APPO magic")
    if body.get("protocol") != PROTOCOL_VERSION:
        raise ProtocolError(
            OTHER_VERSION,
            f"peer speaks version {_shown(body.get('protocol'))}, this side {PROTOCOL_VERSION}; "
            "install the same release",
        )
    kind = KINDS.get(body.get("kind", "")) if isinstance(body.get("kind"), str) else None
    if kind is None:
        raise ProtocolError("unknown kind", _shown(body.get("kind")))
    try:
        return kind.model_validate(body, strict=True)  # the nested spec too
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ProtocolError("malformed", f"{kind.kind}.{place}: {first['msg']}") from None


def _shown(value: Any) -> str:
    """Describe a peer's value: short, and without looking into what may be nested without end."""
    return repr(value)[:40] if isinstance(value, (int, str)) else f"of type {type(value).__name__}"


def expect(frame: Any, kind: type[M]) -> M:
    """Parse one frame that must be of this kind; any other raises ProtocolError."""
    message = unpack(frame)
    if not isinstance(message, kind):
        raise ProtocolError("unexpected kind", f"{message.kind} where {kind.kind} was due")
    return message
