"""Rollouts, credits and slots: what was sent is trained on, discarded, in flight or lost, and nothing twice."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers_fleet import FIRST, Peer, make_fleet, refused
from helpers_unit import heartbeat, weights

from appo_common.errors import ProtocolError
from appo_common.messages import Bye, Credit, RolloutHeader
from appo_learner import fleet as fleet_module
from appo_learner.books import Book
from appo_learner.fleet import Fleet
from appo_learner.member import Rollout


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return make_fleet(tmp_path)


def account(fleet: Fleet, uid: str = "a") -> dict[str, int]:
    return fleet.books[uid].as_dict()


def test_a_book_adds_up() -> None:
    book = Book(0, "name", sent=10)
    book.receive(lost_before=1)
    for _ in range(8):
        book.receive()
    for reason in (None, None, None, None, "too old", "too old"):
        book.settle(reason)
    figures = {"sent": 10, "trained": 4, "discarded": 2, "in_flight": 3, "lost": 1}
    assert book.as_dict() == {**figures, "discarded: too old": 2}


# ------------------------------------------------------------------------------------------------- credits


def test_a_credit_comes_back_when_its_rollout_was_trained_on(fleet: Fleet) -> None:
    peer = Peer(fleet).join()
    first, second = peer.deliver(1.0), peer.deliver(2.0)
    assert (first.views["rewards"] == 1).all()
    assert (second.views["rewards"] == 2).all()
    assert list(peer.member.held) == []
    fleet.publish(weights(1, FIRST))
    credit = peer.take_credits(fleet.settle([second]))
    assert credit == Credit(slots=[1], min_version=1, path="tcp")
    peer.deliver(3.0)
    assert (first.views["rewards"] == 1).all(), "a slot that nobody has given back was written"
    peer.take_credits(fleet.settle([first]))
    assert account(fleet) == {"sent": 3, "trained": 2, "discarded": 0, "in_flight": 1, "lost": 0}


@pytest.mark.parametrize(("sections", "slots"), [({"max_in_flight": 3}, [0, 1, 2]), ({"mode": "sync"}, [0])])
def test_the_first_credit_is_max_in_flight_and_one_in_sync_mode(
    tmp_path: Path, sections: dict[str, Any], slots: list[int]
) -> None:
    assert Peer(make_fleet(tmp_path, learner=sections)).join().credits == slots


def test_rollouts_in_shared_memory_are_read_where_they_were_written(fleet: Fleet) -> None:
    peer = Peer(fleet, shm=True).join()
    assert peer.segment is not None
    segment, plan = peer.segment
    peer.layout.views(plan.rollout(segment, 0))["rewards"][...] = 4.5
    rollout, _ = fleet.on_rollout(peer.next_header(), [])
    assert rollout is not None
    assert (rollout.views["rewards"] == 4.5).all()
    assert np.shares_memory(rollout.views["rewards"], peer.member.slot(0)[0])


def test_a_gap_in_the_sequence_is_lost_and_its_credits_are_granted_again(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, learner={"max_in_flight": 4})
    peer = Peer(fleet).join()
    peer.next_header()
    peer.next_header()
    third = peer.next_header()
    rollout, outgoing = fleet.on_rollout(third, peer.frames())
    assert rollout is not None
    assert rollout.header.slot == 2
    assert peer.take_credits(outgoing).slots == [0, 1]
    assert list(peer.member.held) == [3, 0, 1] == peer.credits
    assert account(fleet) == {"sent": 3, "trained": 0, "discarded": 0, "in_flight": 1, "lost": 2}
    peer.take_credits(fleet.settle([rollout]))
    for _ in range(4):
        peer.deliver()
    assert account(fleet) == {"sent": 7, "trained": 1, "discarded": 0, "in_flight": 4, "lost": 2}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seq": 0}, "repeated"),
        ({"slot": 0}, "no credit"),
        ({"slot": 7}, "no credit"),
        ({"seq": 2}, "no credit"),
        ({"incarnation": "before"}, "old incarnation"),
        ({"collector": 5}, "no such collector"),
    ],
)
def test_a_rollout_that_spends_no_credit_changes_nothing(fleet: Fleet, changes: dict[str, Any], reason: str) -> None:
    peer = Peer(fleet).join()
    kept = peer.deliver(1.0)
    before = account(fleet)
    assert refused(fleet.on_rollout, peer.header(**changes), peer.frames(9.0)) == reason
    assert account(fleet) == before
    assert (kept.views["rewards"] == 1).all()
    peer.deliver()  # the credit it should have spent is still there


def test_a_second_rollout_for_one_credit_is_refused(fleet: Fleet) -> None:
    peer = Peer(fleet).join()
    for _ in range(2):
        peer.deliver()
    assert refused(fleet.on_rollout, peer.header(slot=0), peer.frames()) == "no credit"


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("short", "wrong size"),
        ("count", "malformed"),
        ("index", "malformed"),
        ("huge count", "malformed"),
    ],
)
def test_an_unusable_rollout_is_discarded_and_its_credit_given_back(fleet: Fleet, case: str, reason: str) -> None:
    peer = Peer(fleet).join()
    header, frames = peer.next_header(), peer.frames()
    if case == "short":
        frames = frames[:-1]
    elif case == "count":
        header = header.model_copy(update={"final_count": 21})
    elif case == "huge count":
        header = header.model_copy(update={"final_count": 2**63})
    else:
        block = np.zeros(peer.layout.nbytes, dtype=np.uint8)
        peer.layout.views(block)["final_index"][0] = (4, 4)  # environment 4 of 0 to 3
        header, frames = header.model_copy(update={"final_count": 1}), peer.layout.frames(block, 1)
    rollout, outgoing = fleet.on_rollout(header, frames)
    assert rollout is None
    assert peer.take_credits(outgoing).slots == [0]
    assert fleet.dropped == {reason: 1}
    assert fleet.books["a"].discarded == {reason: 1}
    assert account(fleet)["in_flight"] == 0


def test_a_rollout_of_a_version_that_was_never_published_is_not_trained_on(fleet: Fleet) -> None:
    peer = Peer(fleet).join()
    fleet.publish(weights(3, FIRST))
    header = peer.next_header().model_copy(update={"policy_version": 4})
    with contextlib.suppress(ProtocolError):  # whether it is dropped or discarded
        assert fleet.on_rollout(header, peer.frames())[0] is None


def test_a_discard_is_booked_by_its_reason(fleet: Fleet) -> None:
    peer = Peer(fleet).join()
    rollouts = [peer.deliver(), peer.deliver()]
    peer.take_credits(fleet.settle(rollouts, discarded="too old"))
    assert peer.credits == [0, 1]
    assert account(fleet)["discarded: too old"] == 2
    assert account(fleet)["in_flight"] == 0


# ------------------------------------------------------------------------------------------------- leaving


def test_rollouts_that_are_overtaken_by_bye_still_count(fleet: Fleet) -> None:
    peer = Peer(fleet).join()
    header = peer.next_header()
    assert peer.say(Bye(reason="stopped", rollouts_sent=1)) == []
    assert fleet.collecting == []
    assert len(fleet.members) == 1, "one rollout is still on its way"
    rollout, _ = fleet.on_rollout(header, peer.frames())
    assert rollout is not None
    fleet.expire()
    assert fleet.members == []
    assert fleet.settle([rollout]) == []
    assert account(fleet) == {"sent": 1, "trained": 1, "discarded": 0, "in_flight": 0, "lost": 0}


def test_rollouts_that_never_arrive_after_bye_are_lost(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(fleet).join()
    peer.say(Bye(reason="stopped", rollouts_sent=2))
    left = time.monotonic() + fleet_module.LEAVE_TIMEOUT_S + 0.1
    monkeypatch.setattr(fleet_module.time, "monotonic", lambda: left)
    fleet.expire()
    assert fleet.members == []
    assert account(fleet) == {"sent": 2, "trained": 0, "discarded": 0, "in_flight": 0, "lost": 2}


def test_the_book_of_a_process_goes_on_when_it_joins_again(fleet: Fleet) -> None:
    peer = Peer(fleet).join()
    waiting = peer.deliver()
    peer.say(heartbeat(2))
    again = Peer(fleet).join()
    assert again.index == 0
    assert account(fleet) == {"sent": 2, "trained": 0, "discarded": 0, "in_flight": 1, "lost": 1}
    assert fleet.settle([waiting]) == [], "the credit belonged to the session before"
    again.deliver()
    assert account(fleet) == {"sent": 3, "trained": 1, "discarded": 0, "in_flight": 1, "lost": 1}


def test_a_late_rollout_is_never_taken_for_one_of_the_next_holder_of_its_index(fleet: Fleet) -> None:
    earlier = Peer(fleet, "a", shm=True).join()
    late = earlier.next_header()
    fleet.retire(earlier.member, "was silent")
    later = Peer(fleet, "b", shm=True).join()
    assert later.index == earlier.index
    before = account(fleet, "b")
    refused(fleet.on_rollout, late, [])
    assert account(fleet, "b") == before
    assert list(later.member.held) == later.credits


# ------------------------------------------------------------------------------------------- a random walk


class Walk:
    """A fleet under random events, beside plain lists of where every rollout is."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet, self.rng = fleet, np.random.default_rng(seed)
        self.peers: dict[str, Peer] = {}
        self.channel: dict[str, deque[RolloutHeader]] = {}
        self.waiting: list[Rollout] = []
        self.version = 0
        self.truth: dict[str, dict[str, int]] = {}

    def pick(self, items: Any) -> Any:
        return list(items)[self.rng.integers(len(items))]

    def join(self) -> None:
        uid = "abcdef"[self.rng.integers(6)]
        self.forget(uid)
        self.peers[uid], self.channel[uid] = Peer(self.fleet, uid).join(), deque()
        self.truth.setdefault(uid, {"sent": 0, "trained": 0, "discarded": 0})

    def send(self) -> None:
        peer = self.pick(self.peers.values())
        if peer.credits:
            self.channel[peer.uid].append(peer.next_header())
            self.truth[peer.uid]["sent"] += 1

    def deliver(self) -> None:
        peer = self.pick(self.peers.values())
        if self.channel[peer.uid]:
            rollout, outgoing = self.fleet.on_rollout(self.channel[peer.uid].popleft(), peer.frames())
            assert rollout is not None
            self.waiting.append(rollout)
            if outgoing:
                peer.take_credits(outgoing)

    def lose(self) -> None:
        """Drop a rollout, unless it is the last on its way: nothing would ever show that gap."""
        queue = self.pick(self.channel.values())
        if len(queue) > 1:
            queue.popleft()

    def offend(self) -> None:
        peer = self.pick(self.peers.values())
        header = peer.header(seq=int(self.rng.integers(0, peer.sent + 1)) + 9 * int(self.rng.integers(2)), slot=9)
        assert refused(self.fleet.on_rollout, header, peer.frames()) in ("repeated", "no credit")

    def settle(self) -> None:
        chosen = [rollout for rollout in self.waiting if self.rng.random() < 0.6]
        self.waiting = [rollout for rollout in self.waiting if rollout not in chosen]
        reason = None if self.rng.random() < 0.8 else self.pick(["too old", "not finite"])
        self.version += 1
        self.fleet.publish(weights(self.version % 256, FIRST))
        for letter in self.fleet.settle(chosen, discarded=reason):
            self.peers[letter.identity.decode()].take_credits([letter])
        for rollout in chosen:
            self.truth[rollout.member.hello.uid]["trained" if reason is None else "discarded"] += 1

    def beat(self) -> None:
        peer = self.pick(self.peers.values())
        peer.say(heartbeat(peer.sent))

    def leave(self) -> None:
        peer = self.pick(self.peers.values())
        peer.say(Bye(reason="", rollouts_sent=peer.sent))
        while self.channel[peer.uid] and self.rng.random() < 0.7:
            self.waiting.append(self.fleet.on_rollout(self.channel[peer.uid].popleft(), [*peer.frames()])[0])
        for member in self.fleet.members:
            if member.identity == peer.uid.encode():
                self.fleet.retire(member, "left")
        self.forget(peer.uid)

    def die(self) -> None:
        peer = self.pick(self.peers.values())
        peer.say(heartbeat(peer.sent))
        self.fleet.retire(peer.member, "was silent")
        self.forget(peer.uid)

    def forget(self, uid: str) -> None:
        if uid in self.peers:
            peer = self.peers.pop(uid)
            if any(member.identity == uid.encode() for member in self.fleet.members):
                peer.say(heartbeat(peer.sent))  # so that the learner knows of all that dies with the session
            self.channel.pop(uid)

    def check(self) -> None:
        for uid, truth in self.truth.items():
            book = self.fleet.books[uid]
            mine = [rollout for rollout in self.waiting if rollout.member.hello.uid == uid]
            assert (book.trained, book.discarded.total()) == (truth["trained"], truth["discarded"])
            assert book.sent == book.trained + book.discarded.total() + book.in_flight + book.lost
            assert len(mine) <= book.in_flight <= len(mine) + len(self.channel.get(uid, ())) + 2
            assert book.sent <= truth["sent"]
            if uid not in self.peers:
                assert (book.sent, book.in_flight) == (truth["sent"], len(mine)), "all that left is accounted for"
                continue
            member = self.peers[uid].member
            at_learner = [rollout.header.slot for rollout in mine if rollout.member is member]
            on_the_way, in_hand = [header.slot for header in self.channel[uid]], self.peers[uid].credits
            held = list(member.held)
            assert held[len(held) - len(in_hand) :] == in_hand, "both sides must agree on the order of credits"
            assert sorted([*held, *at_learner]) == [0, 1, 2], "a slot was granted twice, or never again"
            assert set(on_the_way) <= set(held)


@pytest.mark.parametrize("seed", range(3))
def test_the_books_add_up_after_any_sequence_of_events(tmp_path: Path, seed: int) -> None:
    walk = Walk(make_fleet(tmp_path, learner={"max_in_flight": 3}), seed)
    events: list[tuple[Callable[[], None], int]] = [
        *((walk.send, 30), (walk.deliver, 30), (walk.settle, 15), (walk.beat, 5)),
        *((walk.lose, 4), (walk.offend, 5), (walk.join, 4), (walk.leave, 2), (walk.die, 1)),
    ]
    shares = np.array([share for _, share in events]) / sum(share for _, share in events)
    walk.join()
    for choice in walk.rng.choice(len(events), size=3000, p=shares):
        if not walk.peers:
            walk.join()
        events[choice][0]()
        walk.check()
    totals = {key: sum(truth[key] for truth in walk.truth.values()) for key in ("sent", "trained", "discarded")}
    assert min(totals.values()) > 20
    assert sum(book.lost for book in walk.fleet.books.values()) > 10
