"""The mailroom with real sockets: the collector's end is held by the test's thread."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from helpers_unit import (
    WirePeer,
    contract,
    env_spec,
    heartbeat,
    hello,
    learner_run,
    random_rollout,
    receive,
    rollout_header,
    train_dict,
    until,
    weights,
)

from appo_common import sockets
from appo_common.errors import ConfigError
from appo_common.layout import FRAME_BYTES
from appo_common.messages import Alive, Bye, Credit, Stop, WantWeights, WeightsHeader, expect, pack
from appo_common.models import checksum
from appo_learner.inbox import Selection
from appo_learner.mailroom import Mailroom
from appo_learner.member import Rollout
from appo_learner.terms import Weights

BIG = train_dict()
BIG["actor"]["hidden_dims"] = [700, 700]  # two megabytes: more than one frame
TERMS, FIRST = contract(env_spec())


@pytest.fixture
def mailroom(tmp_path: Path) -> Iterator[Mailroom]:
    with_it = Mailroom(learner_run(tmp_path), "127.0.0.1", 0)
    with_it.start()
    yield with_it
    with_it._wish(lambda: [with_it._fleet.retire(member, "is done") for member in with_it._fleet.members] and [])
    with_it.close("the test is over")


@pytest.fixture
def peer(mailroom: Mailroom) -> Iterator[WirePeer]:
    with WirePeer(mailroom.endpoints) as collector:
        yield collector


def everything(waiting: Any, _: Any) -> Selection:
    return Selection(list(waiting))


def take(mailroom: Mailroom, count: int) -> list[Rollout]:
    """Wait for ``count`` rollouts and take them."""
    got: list[Rollout] = []

    def enough() -> bool:
        got.extend(mailroom.take(everything).batch)
        return len(got) >= count

    until(enough, lambda: mailroom.wait(0.1), f"{count} rollouts")
    return got


def newest_version(peer: WirePeer) -> int:
    """Ask the learner. Its answer comes after those to all that was said before."""
    peer.say(heartbeat())
    return peer.hear(Alive)[0].version


# ------------------------------------------------------------------------------------------------ rollouts


def test_a_collector_joins_over_tcp_and_its_rollouts_arrive_bit_by_bit(mailroom: Mailroom, peer: WirePeer) -> None:
    mailroom.open(TERMS, FIRST)
    assert peer.join() == Credit(slots=[0, 1], min_version=0, path="tcp")
    assert [member.index for member in mailroom.collecting()] == [0]
    rng = np.random.default_rng(0)
    sent = [random_rollout(rng, peer.spec) for _ in range(2)]
    for seq, (_, count, block) in enumerate(sent):
        peer.send_rollout(block, seq=seq, slot=seq, final_count=count, policy_version=0)
    for rollout, (views, count, _) in zip(take(mailroom, 2), sent, strict=True):
        assert rollout.header.final_count == count
        assert rollout.num_envs == 4
        for name, view in views.items():
            rows = count if name.startswith("final_") else None
            assert rollout.views[name][:rows].tobytes() == view[:rows].tobytes(), name
    assert mailroom.env_steps_received == 2 * 5 * 4
    (view,) = mailroom.views()
    assert (view.path, view.rollouts_sent) == ("tcp", 2)


def test_a_credit_comes_back_after_publish_and_not_before(mailroom: Mailroom, peer: WirePeer) -> None:
    mailroom.open(TERMS, FIRST)
    peer.join()
    peer.send_rollout(random_rollout(np.random.default_rng(0), peer.spec)[2])
    rollouts = take(mailroom, 1)
    assert newest_version(peer) == 0
    assert "CREDIT" not in peer.unread
    mailroom.publish(weights(1, FIRST), rollouts)
    assert peer.hear(Credit)[0] == Credit(slots=[0], min_version=1, path="tcp")
    (book,) = mailroom.books()
    assert book.as_dict() == {"sent": 1, "trained": 1, "discarded": 0, "in_flight": 0, "lost": 0}


def test_stale_rollouts_are_discarded_and_their_credit_returns_without_an_update(
    mailroom: Mailroom, peer: WirePeer
) -> None:
    mailroom.open(TERMS, FIRST)
    peer.join()
    peer.send_rollout(random_rollout(np.random.default_rng(0), peer.spec)[2])
    select = lambda waiting, _: Selection(stale=list(waiting))  # noqa: E731
    until(lambda: mailroom.take(select).stale, lambda: mailroom.wait(0.1), "the rollout")
    assert peer.hear(Credit)[0].slots == [0]
    assert mailroom.books()[0].as_dict()["discarded: too old"] == 1


def test_what_was_not_taken_stays(mailroom: Mailroom, peer: WirePeer) -> None:
    mailroom.open(TERMS, FIRST)
    peer.join()
    for seq in range(2):
        peer.send_rollout(random_rollout(np.random.default_rng(seq), peer.spec)[2], seq=seq, slot=seq)
    oldest = lambda waiting, _: Selection(list(waiting)[:1] if len(waiting) == 2 else [])  # noqa: E731
    until(lambda: mailroom.take(oldest).batch, lambda: mailroom.wait(0.1), "two rollouts")
    assert [rollout.header.seq for rollout in take(mailroom, 1)] == [1]


# ------------------------------------------------------------------------------------------------- weights


def test_weights_travel_in_frames_of_one_mebibyte_and_only_to_those_who_subscribed(
    mailroom: Mailroom, peer: WirePeer
) -> None:
    big_terms, big_first = contract(env_spec(), BIG)
    mailroom.open(big_terms, big_first)
    eager = peer.subscribe(b"")  # would be sent anything that is sent at all

    def notice_heard() -> bool:
        mailroom.publish(weights(1, big_first), [])
        return bool(eager.poll(100))

    until(notice_heard, lambda: None, "the first notice")
    before = published(mailroom, eager, weights(2, big_first))
    assert {message[0] for message in before} == {sockets.SHM_TOPIC}, "bytes that nobody has asked for"
    assert expect(before[-1][1], WeightsHeader) == weights(2, big_first).header(slot=2)
    assert [len(message) for message in before] == [2] * len(before)

    blocks = peer.subscribe(sockets.TCP_TOPIC)
    until(lambda: mailroom._tcp_subscribers, lambda: mailroom.wait(0.05), "the subscription")
    newest = Weights("now", 5, np.random.default_rng(0).integers(0, 256, big_first.block.size, dtype=np.uint8))
    mailroom.publish(newest, [])
    topic, header, *frames = receive(blocks)
    assert topic == sockets.TCP_TOPIC
    assert expect(header, WeightsHeader) == newest.header()
    assert [len(frame) for frame in frames][:-1] == [FRAME_BYTES]
    assert b"".join(frames) == b"".join(big_terms.actor.frames(newest.block))

    blocks.setsockopt(zmq.UNSUBSCRIBE, sockets.TCP_TOPIC)
    until(lambda: not mailroom._tcp_subscribers, lambda: mailroom.wait(0.05), "the unsubscription")


def published(mailroom: Mailroom, subscriber: Any, version: Weights) -> list[list[bytes]]:
    """Publish ``version`` and return all that has been heard up to its notice."""
    mailroom.publish(version, [])
    messages = [receive(subscriber)]
    while expect(messages[-1][1], WeightsHeader).version != version.version:
        messages.append(receive(subscriber))
    return messages


def test_weights_that_were_missed_can_be_asked_for(mailroom: Mailroom, peer: WirePeer) -> None:
    mailroom.open(TERMS, FIRST)
    peer.join()
    newest = weights(3, FIRST)
    mailroom.publish(newest, [])
    until(lambda: newest_version(peer) == 3, lambda: None, "the publication")
    peer.say(WantWeights(version=3))
    header, frames = peer.hear(WeightsHeader)
    block = np.zeros_like(FIRST.block)
    TERMS.actor.join(frames, into=block)
    assert header.version == 3
    assert header.slot is None
    assert checksum(newest.block) == header.crc32
    for name, view in TERMS.actor.views(block).items():
        assert view.tobytes() == TERMS.actor.views(newest.block)[name].tobytes()


# ------------------------------------------------------------------------------------------- wrong messages


def test_malformed_messages_are_counted_and_everything_goes_on(mailroom: Mailroom, peer: WirePeer) -> None:
    mailroom.open(TERMS, FIRST)
    peer.control.send(b"")
    peer.control.send(b"\xc1 noise")
    peer.control.send_multipart([pack(hello()), b"a frame too many"])
    peer.control.send(pack(Alive(version=1)))  # answered with REJOIN: nobody knows the sender yet
    peer.rollouts.send_multipart([b"noise", b"more"])
    peer.rollouts.send(pack(hello()))
    peer.rollouts.send(pack(rollout_header(incarnation="before")))
    peer.rollouts.send(pack(rollout_header(collector=77)))
    peer.join()
    peer.send_rollout(random_rollout(np.random.default_rng(0), peer.spec)[2], slot=1)
    peer.send_rollout(random_rollout(np.random.default_rng(0), peer.spec)[2])
    assert take(mailroom, 1)[0].header.slot == 0
    assert mailroom.dropped() == {
        "not msgpack": 3,
        "malformed": 1,
        "unexpected kind": 1,
        "old incarnation": 1,
        "no such collector": 1,
        "no credit": 1,
    }
    assert newest_version(peer) == 0


def test_noise_on_every_socket_never_ends_the_loop(mailroom: Mailroom, peer: WirePeer) -> None:
    mailroom.open(TERMS, FIRST)
    peer.join()
    rng = np.random.default_rng(1)
    kinds = [pack(hello("x")), pack(heartbeat()), pack(rollout_header()), pack(Bye(reason="", rollouts_sent=2**40))]
    for number in range(300):
        damaged = bytearray(kinds[rng.integers(len(kinds))])
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        socket = (peer.control, peer.rollouts)[number % 2]
        socket.send_multipart([bytes(damaged), *([rng.bytes(9)] * int(rng.integers(0, 3)))])
    with WirePeer(mailroom.endpoints, "uid-honest") as honest:
        honest.join()
        honest.send_rollout(random_rollout(rng, honest.spec)[2])
        took = take(mailroom, 1)
    assert "uid-honest" in {rollout.member.hello.uid for rollout in took}
    assert mailroom.dropped().total() > 150


# --------------------------------------------------------------------------------------- failures and the end


def test_an_exception_inside_the_thread_reaches_the_trainer_with_its_own_traceback(tmp_path: Path) -> None:
    mailroom = Mailroom(learner_run(tmp_path), "127.0.0.1", 0)
    mailroom.start()
    broken: Any = ["not a rollout"]
    mailroom.discard(broken, "because")
    with pytest.raises(AttributeError, match="'str' object has no attribute 'member'") as caught:
        until(lambda: False, lambda: mailroom.wait(5.0), "the failure")
    assert "settle" in "".join(traceback.format_tb(caught.tb))
    with pytest.raises(AttributeError, match="member"):
        mailroom.take(everything)
    mailroom.close("it failed")
    assert not mailroom._thread.is_alive()


def test_waiting_ends_when_something_arrives_and_when_time_is_up(mailroom: Mailroom, peer: WirePeer) -> None:
    started = time.monotonic()
    mailroom.wait(0.05)
    assert time.monotonic() - started < 5.0
    waiter = threading.Thread(target=lambda: until(mailroom.collecting, lambda: mailroom.wait(30.0), "a member"))
    waiter.start()
    mailroom.open(TERMS, FIRST)
    peer.join()
    waiter.join(8.0)
    assert not waiter.is_alive()


def test_closing_says_stop_waits_for_bye_and_takes_the_last_rollouts(tmp_path: Path) -> None:
    mailroom = Mailroom(learner_run(tmp_path), "127.0.0.1", 0)
    mailroom.start()
    mailroom.open(TERMS, FIRST)
    with WirePeer(mailroom.endpoints) as peer:
        peer.join()
        closing = threading.Thread(target=mailroom.close, args=("reached the end",))
        started = time.monotonic()
        closing.start()
        assert peer.hear(Stop)[0].reason == "reached the end"
        peer.send_rollout(random_rollout(np.random.default_rng(0), peer.spec)[2])
        peer.say(Bye(reason="told to stop", rollouts_sent=1))
        closing.join(10.0)
        assert not closing.is_alive()
        assert time.monotonic() - started < 1.5, "it waited although everybody had left"
    (book,) = mailroom.books()
    assert book.as_dict() == {
        "sent": 1,
        "trained": 0,
        "discarded": 1,
        "in_flight": 0,
        "lost": 0,
        "discarded: the run ended": 1,
    }


def test_closing_takes_less_than_five_seconds_with_a_collector_that_is_deaf(tmp_path: Path) -> None:
    mailroom = Mailroom(learner_run(tmp_path), "127.0.0.1", 0)
    mailroom.start()
    mailroom.open(TERMS, FIRST)
    with WirePeer(mailroom.endpoints) as peer:
        peer.join()
        peer.say(heartbeat(1))
        peer.hear(Alive)
        started = time.monotonic()
        mailroom.close("over")
        assert time.monotonic() - started < 5.0
    assert mailroom.books()[0].as_dict()["lost"] == 1
    assert not mailroom._thread.is_alive()
    mailroom.close("again")
    again = Mailroom(learner_run(tmp_path), "127.0.0.1", mailroom.endpoints.control_port)  # the ports are free
    again.close("never started")
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_refused_before_anything_starts(mailroom: Mailroom, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Address already in use"):
        Mailroom(learner_run(tmp_path), "127.0.0.1", mailroom.endpoints.control_port)
