"""Who is connected, what each may do, and what each has done. Speaks in messages; knows no socket."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from appo_common.errors import ProtocolError
from appo_common.layout import Layout
from appo_common.log import RateLimited
from appo_common.messages import (
    Admit,
    Alive,
    Attached,
    Bye,
    Credit,
    Heartbeat,
    Hello,
    Message,
    Ready,
    Reject,
    Rejoin,
    RolloutHeader,
    Stop,
    WantWeights,
)
from appo_common.shared_memory import Segment, SlotPlan
from appo_common.sockets import Endpoints
from appo_common.spec import EnvSpec
from appo_learner.books import Book
from appo_learner.member import Member, Rollout
from appo_learner.metrics import CollectorView
from appo_learner.terms import Contract, Run, Weights, offer_message

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 600.0
"""From WELCOME to READY a collector builds its environment and says nothing."""
LEAVE_TIMEOUT_S = 2.0
"""After BYE, for rollouts that are still on their way."""
LOST_AFTER_BEATS = 5.0
"""Heartbeat time-outs after which a rollout that was sent counts as lost. A slow link may take a while with one."""
MAX_ROLLOUT_BYTES = 2 << 30


@dataclass(frozen=True)
class Outgoing:
    """A control message for one collector, with the frames that follow it."""

    identity: bytes
    message: Message
    frames: Sequence[Any] = ()


class Fleet:
    """The members of a run. Its methods return what has to be sent, in order."""

    def __init__(self, run: Run, endpoints: Endpoints) -> None:
        """Nobody can be admitted before :meth:`open`."""
        self._run = run
        self._network = run.config.network
        self._endpoints = endpoints
        self._lost_after_s = LOST_AFTER_BEATS * self._network.heartbeat_timeout_s
        self._log = RateLimited(logger)
        self._members: dict[bytes, Member] = {}
        self._contract: Contract | None = None
        self._weights: Weights | None = None
        self.books: dict[str, Book] = {}
        """By the uid of the collector process."""
        self.dropped: Counter[str] = Counter()
        """Messages that could not be used, by reason."""
        self.first_spec: EnvSpec | None = None
        """The spec of the first collector that was ready; the training thread builds the models from it."""

    @property
    def members(self) -> list[Member]:
        """All members, by index."""
        return sorted(self._members.values(), key=lambda member: member.index)

    @property
    def collecting(self) -> list[Member]:
        """Members that have credits, by index."""
        return [member for member in self.members if member.collecting and member.leaving_since is None]

    def views(self) -> list[CollectorView]:
        """Describe the members for people."""
        return [member.view(3 * self._network.heartbeat_interval_s) for member in self.members]

    # ------------------------------------------------------------------------------- the trainer's wishes

    def open(self, contract: Contract, weights: Weights) -> list[Outgoing]:
        """Admit those that are ready, and from now on whoever becomes so."""
        self._contract, self._weights = contract, weights
        waiting = [member for member in self.members if member.spec is not None]
        return [outgoing for member in waiting for outgoing in self._admit(member)]

    def publish(self, weights: Weights) -> None:
        """Make ``weights`` the version that newcomers get and credits ask for; fill the shared-memory slots."""
        self._weights = weights
        for member in self.collecting:
            if member.segment:
                segment, plan = member.segment
                np.copyto(plan.weights(segment, weights.slot), weights.block)

    def settle(self, rollouts: Sequence[Rollout], discarded: str | None = None) -> list[Outgoing]:
        """Close the account of ``rollouts`` (trained on, unless discarded) and give their credits back."""
        freed: dict[bytes, list[int]] = {}
        for rollout in rollouts:
            member = rollout.member
            member.book.settle(discarded)
            if self._members.get(member.identity) is member and member.leaving_since is None:
                freed.setdefault(member.identity, []).append(rollout.header.slot)
        return [self._grant(self._members[identity], slots) for identity, slots in freed.items()]

    def stop(self, reason: str) -> list[Outgoing]:
        """Tell everybody that the run is over."""
        return [Outgoing(identity, Stop(reason=reason)) for identity in self._members]

    # --------------------------------------------------------------------------- what collectors have said

    def on_message(self, identity: bytes, message: Message) -> list[Outgoing]:
        """Answer one control message.

        Raises:
            ProtocolError: it makes no sense at this point of the conversation.
        """
        if isinstance(message, Hello):
            return self._welcome(identity, message)
        member = self._members.get(identity)
        if member is None:
            unknown = Rejoin(reason="the learner does not know this collector (any more)")
            return [] if isinstance(message, Bye) else [Outgoing(identity, unknown)]
        member.heard_at = time.monotonic()
        if isinstance(message, Ready):
            return self._ready(member, message.spec)
        if isinstance(message, Attached):
            return self._attached(member, message)
        if isinstance(message, Heartbeat):
            member.heard(message)
            return [Outgoing(identity, Alive(version=self._weights.version if self._weights else 0))]
        if isinstance(message, WantWeights):
            return self._resend_weights(member)
        if isinstance(message, Bye):
            return self._goodbye(member, message)
        raise ProtocolError("unexpected kind", f"{message.kind} from a collector")

    def on_rollout(self, header: RolloutHeader, frames: Sequence[Any]) -> tuple[Rollout | None, list[Outgoing]]:
        """Take a rollout in. Returns it, or None if it has already been accounted for as discarded.

        Raises:
            ProtocolError: it does not belong to this run, or not to the credit it names.
        """
        if header.incarnation != self._run.incarnation:
            raise ProtocolError("old incarnation", f"a rollout for {header.incarnation}")
        member = next((m for m in self._members.values() if m.index == header.collector and m.collecting), None)
        if member is None or member.layout is None:
            raise ProtocolError("no such collector", f"index {header.collector}")
        if header.session != member.session:
            raise ProtocolError("old session", f"a late rollout of an earlier collector {header.collector}")
        member.heard_at = time.monotonic()
        lost = member.spend(header)
        outgoing = [self._grant(member, lost)] if lost else []
        block, views = member.slot(header.slot)
        rollout = Rollout(member, header, views)
        try:
            self._check_version(header)
            rollout.check_count()
            if member.path == "tcp":
                member.layout.join(frames, into=block, count=header.final_count)
            rollout.check_indices()
        except ProtocolError as error:
            self.drop(error)
            return None, outgoing + self.settle([rollout], discarded=error.reason)
        return rollout, outgoing

    def _check_version(self, header: RolloutHeader) -> None:
        newest = self._weights.version if self._weights else -1
        if header.policy_version > newest:
            raise ProtocolError("malformed", f"made by version {header.policy_version}; the newest is {newest}")

    def drop(self, error: ProtocolError) -> None:
        """Count a message that cannot be used."""
        self.dropped[error.reason] += 1
        self._log.warning(error.reason, f"dropped a message: {error}")

    # ------------------------------------------------------------------------------------------- leaving

    def expire(self) -> list[Outgoing]:
        """Retire the members that have left, have been silent for too long, or whose rollouts never arrive."""
        now, outgoing = time.monotonic(), []
        for member in self.members:
            if member.behind_since is not None and now - member.behind_since > self._lost_after_s:
                self.retire(member, f"has sent rollouts that did not arrive within {self._lost_after_s:.0f} s")
                outgoing.append(Outgoing(member.identity, Rejoin(reason="rollouts were lost on the way")))
                continue
            if member.leaving_since is not None:
                if member.book.missing <= 0 or now - member.leaving_since > LEAVE_TIMEOUT_S:
                    self.retire(member, f"left: {member.bye}")
                continue
            patience_s = self._network.heartbeat_timeout_s if member.spec else JOIN_TIMEOUT_S
            if now - member.heard_at > patience_s:
                self.retire(member, f"was silent for {patience_s:.0f} s")
        return outgoing

    def cannot_reach(self, identity: bytes, why: str) -> None:
        """Note that something could not be sent. What this collector has said before may still be on its way."""
        if (member := self._members.get(identity)) is not None:
            member.out_of_reach = why

    def retire_unreachable(self) -> None:
        """Retire who cannot be reached and has not said goodbye. Call it when nothing is left to read.

        It would wait for what was not sent for ever; when it is heard again, it has to rejoin.
        """
        for member in self.members:
            if member.out_of_reach and member.leaving_since is None:
                self.retire(member, member.out_of_reach)

    def retire(self, member: Member, why: str) -> None:
        """Forget a member; what it is known to have sent and has not arrived is lost."""
        if self._members.pop(member.identity, None) is None:
            return
        missing = max(0, member.book.missing)
        member.book.lost += missing
        if member.segment:
            member.segment[0].unlink()
        lost = f"; {missing} rollouts lost" if missing else ""
        logger.info("collector %d (%s) %s%s", member.index, member.hello.name, why, lost)

    def _goodbye(self, member: Member, bye: Bye) -> list[Outgoing]:
        member.note_sent(bye.rollouts_sent)
        member.leaving_since, member.bye = time.monotonic(), bye.reason
        return self.expire()

    # ------------------------------------------------------------------------------------------- joining

    def _welcome(self, identity: bytes, hello: Hello) -> list[Outgoing]:
        earlier = self._members.get(identity)
        if earlier is not None and earlier.spec is not None:
            self.retire(earlier, "joins again")
        elif earlier is not None:  # HELLO is repeated until it is answered
            return [self._welcome_message(earlier)]
        if len(self._members) >= self._network.max_collectors:
            limit = self._network.max_collectors
            return [Outgoing(identity, Reject(reason=f"the run is full: network.max_collectors = {limit}"))]
        book = self.books.get(hello.uid)
        index = self._free_index(book)
        if book is None:
            book = self.books[hello.uid] = Book(index, hello.name)
        num_envs = hello.num_envs or self._run.config.env.num_envs
        self._members[identity] = Member(identity, hello, index, num_envs, book, sent_before=book.sent)
        return [self._welcome_message(self._members[identity])]

    def _welcome_message(self, member: Member) -> Outgoing:
        return Outgoing(member.identity, self._run.welcome(member.index, member.session, self._endpoints))

    def _free_index(self, book: Book | None) -> int:
        """Return the index that this process had before, if it is free, else the lowest free one."""
        taken = {member.index for member in self._members.values()}
        if book is not None and book.index not in taken:
            return book.index
        return next(index for index in range(len(taken) + 1) if index not in taken)

    def _ready(self, member: Member, spec: EnvSpec) -> list[Outgoing]:
        if member.spec is not None:
            raise ProtocolError("unexpected kind", "READY twice")
        member.spec, member.num_envs = spec, spec.num_envs
        if self._contract is not None:
            return self._admit(member)
        self.first_spec = self.first_spec or spec
        return []

    def _admit(self, member: Member) -> list[Outgoing]:
        assert self._contract is not None
        assert self._weights is not None
        assert member.spec is not None
        difference = self._contract.spec.mismatch(member.spec)
        if difference is not None:
            self.retire(member, f"is refused: {difference}")
            return [Outgoing(member.identity, Reject(reason=difference))]
        member.layout = self._contract.rollout(member.spec)
        if member.layout.nbytes > MAX_ROLLOUT_BYTES:
            self.retire(member, "is refused: its rollouts are too large")
            return [Outgoing(member.identity, Reject(reason=_too_large(member.layout.nbytes, member.spec.num_envs)))]
        offered = self._offer(member.layout)
        member.segment = None if isinstance(offered, str) else offered
        admit = Admit(
            fingerprint=member.layout.fingerprint,
            obs_groups=self._contract.obs_groups,
            offer=offer_message(*member.segment) if member.segment else None,
            offer_reason=offered if isinstance(offered, str) else "",
            weights=self._weights.header(),
        )
        return [Outgoing(member.identity, admit, self.weight_frames(self._weights))]

    def _offer(self, rollout: Layout) -> tuple[Segment, SlotPlan] | str:
        """Make a segment, or say why this collector gets none."""
        assert self._contract is not None
        if self._network.transport == "tcp":
            return "network.transport = tcp"
        return self._contract.offer(rollout, self._run.max_in_flight, self._network.shm_dir)

    def _attached(self, member: Member, answer: Attached) -> list[Outgoing]:
        if member.layout is None or member.collecting:
            raise ProtocolError("unexpected kind", "ATTACHED before ADMIT, or twice")
        proved = member.segment is not None and answer.nonce == member.segment[0].nonce
        member.use("shm" if proved else "tcp")
        why = "" if proved else f", because: {answer.reason or 'the nonce it read is not the one written here'}"
        logger.info(
            "collector %d (%s, %d envs) joined over %s%s",
            *(member.index, member.hello.name, member.num_envs, member.path, why),
        )
        return [self._grant(member, list(range(self._run.max_in_flight)))]

    def _grant(self, member: Member, slots: list[int]) -> Outgoing:
        """Give credits. They ask for the newest version, so that nobody falls behind for ever."""
        assert self._weights is not None
        member.held.extend(slots)
        path: Literal["shm", "tcp"] = "shm" if member.path == "shm" else "tcp"
        return Outgoing(member.identity, Credit(slots=slots, min_version=self._weights.version, path=path))

    def _resend_weights(self, member: Member) -> list[Outgoing]:
        if self._weights is None or self._contract is None or not member.collecting:
            raise ProtocolError("unexpected kind", "WANT_WEIGHTS before it was admitted")
        return [Outgoing(member.identity, self._weights.header(), self.weight_frames(self._weights))]

    def weight_frames(self, weights: Weights) -> list[memoryview]:
        """Cut the block of ``weights`` into frames; nothing is copied."""
        assert self._contract is not None
        return self._contract.actor.frames(weights.block)


def _too_large(nbytes: int, num_envs: int) -> str:
    return (
        f"a rollout of {num_envs} environments has {nbytes / 1e9:.1f} GB, more than {MAX_ROLLOUT_BYTES / 1e9:.1f} GB; "
        "use fewer environments per collector (--num-envs) or a smaller train.num_steps_per_env"
    )
