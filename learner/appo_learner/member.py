"""One collector in one session, as the learner knows it."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from appo_common.errors import ProtocolError
from appo_common.layout import Layout
from appo_common.messages import Heartbeat, Hello, RolloutHeader
from appo_common.shared_memory import Segment, SlotPlan
from appo_common.spec import EnvSpec
from appo_learner.books import Book
from appo_learner.metrics import CollectorView


@dataclass(frozen=True, eq=False)
class Rollout:
    """A rollout in the learner's hands. Its arrays stay valid until its credit has been given back."""

    member: Member
    header: RolloutHeader
    views: dict[str, np.ndarray]

    @property
    def num_envs(self) -> int:
        """N: columns it adds to a batch."""
        return int(self.views["rewards"].shape[1])

    def check_count(self) -> None:
        """Raise ProtocolError if the header counts more truncated episodes than the layout has room for."""
        rows = len(self.views["final_index"])
        if self.header.final_count > rows:
            raise ProtocolError("malformed", f"final_count {self.header.final_count} of at most {rows}")

    def check_indices(self) -> None:
        """Raise ProtocolError if a truncated episode lies outside the rollout."""
        used = self.views["final_index"][: self.header.final_count]
        if used.size and (used.min() < 0 or (used >= self.views["rewards"].shape).any()):
            raise ProtocolError("malformed", "final_index out of range")


@dataclass(eq=False)
class Member:
    """A collector from its HELLO to its end.

    A slot is a place for one rollout: in a shared segment, or in private memory that TCP frames are copied to.
    Its index is a credit: the collector holds it, or the learner does, never both.
    """

    identity: bytes
    hello: Hello
    index: int
    num_envs: int
    book: Book
    sent_before: int
    """Rollouts that the same process had sent in earlier sessions."""
    session: str = field(default_factory=lambda: secrets.token_hex(4))
    spec: EnvSpec | None = None
    layout: Layout | None = None
    segment: tuple[Segment, SlotPlan] | None = None
    path: str = ""
    """``shm`` or ``tcp`` once it collects, empty before."""
    held: deque[int] = field(default_factory=deque)
    """Credits at the collector, in the order they were granted, which is the order they are used in."""
    next_seq: int = 0
    leaving_since: float | None = None
    """When it said BYE. Its last rollouts may still be on their way, on another connection."""
    bye: str = ""
    """Why, in its own words."""
    out_of_reach: str = ""
    """What could not be sent to it, once something could not."""
    behind_since: float | None = None
    """Since when it is known to have sent more than has arrived."""
    heartbeat: Heartbeat | None = None
    heard_at: float = field(default_factory=time.monotonic)
    _slots: dict[int, tuple[np.ndarray, dict[str, np.ndarray]]] = field(default_factory=dict)
    _rate: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=6))

    @property
    def collecting(self) -> bool:
        """Whether it has been given its path and may collect."""
        return bool(self.path)

    def use(self, path: str) -> None:
        """Fix the path; with TCP the segment, if there is one, is given up."""
        self.path = path
        if self.segment is not None:
            self.segment[0].unlink()  # mapped by both or needed by none: no crash can leak it now
            if path != "shm":
                self.segment = None

    def slot(self, slot: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the bytes ``[nbytes]`` and the arrays of ``slot``."""
        if slot not in self._slots:
            assert self.layout is not None
            block = (
                self.segment[1].rollout(self.segment[0], slot)
                if self.segment
                else np.zeros(self.layout.nbytes, dtype=np.uint8)
            )
            self._slots[slot] = (block, self.layout.views(block))
        return self._slots[slot]

    def spend(self, header: RolloutHeader) -> list[int]:
        """Take the credit that ``header`` spends; return the slots of rollouts that were lost before it.

        Raises:
            ProtocolError: an old sequence number, or a slot for which it holds no credit.
        """
        missed = header.seq - self.next_seq
        if missed < 0:
            raise ProtocolError("repeated", f"rollout {header.seq} where {self.next_seq} is next")
        if missed >= len(self.held) or self.held[missed] != header.slot:
            raise ProtocolError("no credit", f"rollout {header.seq} in slot {header.slot}; held: {list(self.held)}")
        lost = [self.held.popleft() for _ in range(missed)]
        self.held.popleft()
        self.next_seq = header.seq + 1
        self.behind_since = None
        self.note_sent(self.next_seq)
        self.book.receive(lost_before=missed)
        return lost

    def note_sent(self, count: int) -> None:
        """Learn that it has sent ``count`` rollouts in this session."""
        self.book.sent = max(self.book.sent, self.sent_before + count)

    def heard(self, heartbeat: Heartbeat) -> None:
        """Take the figures of a heartbeat."""
        self.heartbeat = heartbeat
        self.note_sent(heartbeat.rollouts_sent)
        if self.book.missing <= 0:
            self.behind_since = None
        elif self.behind_since is None:
            self.behind_since = time.monotonic()
        self._rate.append((time.monotonic(), heartbeat.env_steps))

    def view(self, silent_after_s: float) -> CollectorView:
        """Describe it for people."""
        beat, book = self.heartbeat, self.book
        state = beat.state if beat and self.collecting else "joining"
        if time.monotonic() - self.heard_at > silent_after_s:
            state = "silent"
        return CollectorView(
            index=self.index,
            name=self.hello.name,
            host=self.hello.host,
            path=self.path,
            state=state,
            num_envs=self.num_envs,
            policy_version=beat.policy_version if beat else -1,
            env_steps=beat.env_steps if beat else 0,
            steps_per_s=_slope(self._rate),
            rollouts_sent=book.sent,
            rollouts_trained=book.trained,
            rollouts_discarded=book.discarded.total(),
            rollouts_in_flight=book.in_flight,
            timers_ms=dict(beat.timers_ms) if beat else {},
            cpu_percent=beat.cpu_percent if beat else 0.0,
            memory_mb=beat.memory_mb if beat else 0.0,
        )


def _slope(points: Iterable[tuple[float, int]]) -> float:
    first, *rest = list(points) or [(0.0, 0)]
    if not rest or rest[-1][0] == first[0]:
        return 0.0
    return (rest[-1][1] - first[1]) / (rest[-1][0] - first[0])
