"""One collector's side of the conversation with a fleet, by messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers_unit import ENDPOINTS, contract, env_spec, hello, learner_run, rollout_header

from appo_common.errors import ProtocolError
from appo_common.layout import rollout_layout
from appo_common.messages import Admit, Attached, Credit, Message, Ready, RolloutHeader, Welcome
from appo_common.shared_memory import Segment, SlotPlan
from appo_common.spec import EnvSpec
from appo_learner.fleet import Fleet, Outgoing
from appo_learner.member import Member, Rollout

SPEC = env_spec(4)
TERMS, FIRST = contract(SPEC)


def make_fleet(shm_dir: Path, opened: bool = True, **sections: Any) -> Fleet:
    fleet = Fleet(learner_run(shm_dir, **sections), ENDPOINTS)
    if opened:
        assert fleet.open(TERMS, FIRST) == []
    return fleet


class Peer:
    """A collector's side of the conversation."""

    def __init__(self, fleet: Fleet, uid: str = "a", spec: EnvSpec = SPEC, shm: bool = False) -> None:
        self.fleet, self.uid, self.spec, self.shm = fleet, uid, spec, shm
        self.layout = rollout_layout(spec, 5, TERMS.obs_groups)
        self.index, self.session = -1, ""
        self.credits: list[int] = []
        self.sent = 0
        self.segment: tuple[Segment, SlotPlan] | None = None

    @property
    def member(self) -> Member:
        return next(member for member in self.fleet.members if member.identity == self.uid.encode())

    def say(self, message: Message) -> list[Message]:
        outgoing = self.fleet.on_message(self.uid.encode(), message)
        assert all(letter.identity == self.uid.encode() for letter in outgoing)
        return [letter.message for letter in outgoing]

    def join(self) -> Peer:
        (welcome,) = self.say(hello(self.uid))
        assert isinstance(welcome, Welcome)
        self.index, self.session = welcome.collector, welcome.session
        (admit,) = self.say(Ready(spec=self.spec))
        assert isinstance(admit, Admit)
        return self.attach(admit)

    def attach(self, admit: Admit) -> Peer:
        offer, nonce = admit.offer, None
        if self.shm:
            assert offer is not None
            plan = SlotPlan(self.layout.nbytes, offer.rollout_slots, TERMS.actor.nbytes, offer.weight_slots)
            self.segment = (Segment.attach(offer.path, offer.nbytes), plan)
            nonce = self.segment[0].nonce
        (credit,) = self.say(Attached(nonce=nonce, reason="" if nonce else "told so"))
        assert isinstance(credit, Credit)
        assert credit.path == ("shm" if self.shm else "tcp")
        self.credits = list(credit.slots)
        return self

    def header(self, **changes: Any) -> RolloutHeader:
        slot = self.credits[0] if self.credits else 0
        return rollout_header(
            **{"collector": self.index, "session": self.session, "seq": self.sent, "slot": slot} | changes
        )

    def frames(self, fill: float = 0.0, count: int = 0) -> list[bytes]:
        block = np.zeros(self.layout.nbytes, dtype=np.uint8)
        self.layout.views(block)["rewards"][...] = fill
        return [bytes(frame) for frame in self.layout.frames(block, count)]

    def next_header(self) -> RolloutHeader:
        """Spend a credit as if the rollout had been sent."""
        header = self.header()
        self.credits.pop(0)
        self.sent += 1
        return header

    def deliver(self, fill: float = 0.0) -> Rollout:
        rollout, outgoing = self.fleet.on_rollout(self.next_header(), self.frames(fill))
        assert outgoing == []
        assert rollout is not None
        return rollout

    def take_credits(self, outgoing: list[Outgoing]) -> Credit:
        (letter,) = outgoing
        assert letter.identity == self.uid.encode()
        assert isinstance(letter.message, Credit)
        self.credits += letter.message.slots
        return letter.message


def refused(call: Any, *arguments: Any) -> str:
    with pytest.raises(ProtocolError) as caught:
        call(*arguments)
    return caught.value.reason
