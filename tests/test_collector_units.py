"""Episodes, weights and slots of a collector, each by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import zmq
from helpers_collector import CountingEnv
from helpers_unit import DEADLINE_S, receive, rollout_header, until

from appo_collector.envs.contract import Step
from appo_collector.episodes import EpisodeTracker
from appo_collector.sender import RolloutSender
from appo_collector.weights import WeightsInbox
from appo_common import sockets
from appo_common.layout import Field, Layout
from appo_common.messages import RolloutHeader, WeightsHeader, expect, pack
from appo_common.models import checksum
from appo_common.shared_memory import Segment, SlotPlan

# ------------------------------------------------------------------------------------------------ episodes


def test_episodes_are_the_environments_own_sums() -> None:
    rng = np.random.default_rng(0)
    env = CountingEnv(["".join(rng.choice(list("...TUB"), 400)) for _ in range(7)])
    tracker = EpisodeTracker(7, env.spec.reward_terms)
    env.reset(0)
    returns: list[float] = []
    lengths: list[int] = []
    timeouts: list[bool] = []
    wanted_timeouts: list[bool] = []
    for number in range(400):
        step = env.step(np.zeros((7, 2), dtype=np.float32))
        tracker.step(step)
        wanted_timeouts += [bool(not t) for t, u in zip(step.terminated, step.truncated, strict=True) if t or u]
        if number % 13 == 0 or number == 399:
            episodes = tracker.drain()
            returns += episodes.returns
            lengths += episodes.lengths
            timeouts += episodes.timeouts
            most, rest = np.array(episodes.terms["most"]), np.array(episodes.terms["rest"])
            np.testing.assert_allclose(most + rest, episodes.returns, rtol=1e-12)
            np.testing.assert_allclose(most, 0.75 * np.array(episodes.returns), rtol=1e-12)
    assert returns == env.returns
    assert lengths == env.lengths
    assert timeouts == wanted_timeouts, "an episode with both flags has terminated"
    assert len(returns) > 1000
    assert tracker.drain().returns == []


def step_of(rewards: list[float], ended: list[bool]) -> Step:
    flags = np.array(ended)
    return Step({}, np.array(rewards, dtype=np.float32), flags, np.zeros_like(flags), {}, {})


def test_sums_do_not_lose_small_rewards_of_long_episodes() -> None:
    tracker = EpisodeTracker(1, [])
    for number in range(100_000):
        tracker.step(step_of([1e-3 if number else 1e5], [number == 99_999]))
    assert tracker.drain().returns == [pytest.approx(1e5 + 99_999 * float(np.float32(1e-3)), rel=1e-12)]


def test_first_episodes_that_began_elsewhere_are_left_out_and_the_next_ones_count() -> None:
    tracker = EpisodeTracker(3, [], ages=np.array([0, 7, 0]))
    tracker.step(step_of([1.0, 2.0, 3.0], [True, True, False]))
    assert tracker.drain().returns == [1.0]
    tracker.step(step_of([1.0, 2.0, 3.0], [False, True, True]))
    assert tracker.drain().returns == [2.0, 6.0]


# ------------------------------------------------------------------------------------------------- weights

ACTOR = Layout([Field("weight", "float32", (400_000,)), Field("count", "int64", ())])


class Wire(NamedTuple):
    """A learner's three sockets and what is connected to them; ``kept`` are closed at the end."""

    ctx: Any
    rollouts: Any
    publisher: Any
    ends: sockets.Endpoints
    kept: list[Any]

    def sub(self) -> Any:
        """A SUB whose subscription has arrived at the publisher."""
        socket = sockets.connect_weights(self.ctx, f"tcp://127.0.0.1:{self.ends.weights_port}", sockets.TCP_TOPIC)
        self.kept.append(socket)
        receive(self.publisher)
        return socket

    def push(self) -> Any:
        self.kept.append(sockets.connect_rollouts(self.ctx, f"tcp://127.0.0.1:{self.ends.rollout_port}"))
        return self.kept[-1]


@pytest.fixture
def wire() -> Iterator[Wire]:
    ctx = sockets.context()
    control, rollouts, publisher, ends = sockets.bind_learner(ctx, "127.0.0.1", 0)
    made = Wire(ctx, rollouts, publisher, ends, [control, rollouts, publisher])
    yield made
    for socket in made.kept:
        socket.close(linger=0)
    ctx.term()


def block_of(version: int, layout: Layout = ACTOR) -> np.ndarray:
    return np.full(layout.nbytes, version, dtype=np.uint8)


def header_of(block: np.ndarray, version: int, **changes: Any) -> WeightsHeader:
    fields = {"incarnation": "now", "version": version, "crc32": checksum(block), "nbytes": block.nbytes, "slot": None}
    return WeightsHeader(**{**fields, **changes})


class Published(NamedTuple):
    header: WeightsHeader
    frames: list[memoryview]


def published(version: int, **changes: Any) -> Published:
    """A version whose used bytes are its number; the padding is zero, as a learner leaves it."""
    block = np.zeros(ACTOR.nbytes, dtype=np.uint8)
    for start, stop in ACTOR.used_ranges(0):
        block[start:stop] = version
    return Published(header_of(block, version, **changes), ACTOR.frames(block))


def make_inbox(socket: Any = None) -> WeightsInbox:
    return WeightsInbox(socket, "now", ACTOR)


def test_the_newest_version_is_taken_and_only_once(wire: Wire) -> None:
    inbox = make_inbox(wire.sub())
    for version in (1, 2, 3):
        header, frames = published(version)
        wire.publisher.send_multipart([sockets.TCP_TOPIC, pack(header), *frames])
    until(lambda: inbox.drain() or inbox.newest_version == 3, lambda: inbox._socket.poll(100), "version 3")
    assert inbox.version == -1, "nothing was taken yet"
    block = inbox.take()
    assert block is not None
    assert (ACTOR.views(block)["weight"].view(np.uint8) == 3).all()
    assert inbox.version == 3
    assert inbox.take() is None
    inbox.offer(*published(2))
    inbox.offer(*published(3))
    assert inbox.take() is None, "older versions do not come back"
    assert inbox.rejected == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"crc32": 1},
        {"incarnation": "before"},
        {"nbytes": ACTOR.nbytes - 1},
        {"slot": 0},
    ],
)
def test_weights_that_cannot_be_used_are_counted_and_the_version_stays(changes: dict[str, Any]) -> None:
    inbox = make_inbox()
    inbox.offer(*published(1))
    assert inbox.take() is not None
    inbox.offer(*published(2, **changes))
    assert inbox.take() is None
    assert (inbox.version, inbox.newest_version, inbox.rejected) == (1, 1, 1)
    inbox.offer(*published(3))
    assert inbox.take() is not None
    assert inbox.version == 3


def test_frames_that_do_not_fit_are_counted() -> None:
    inbox = make_inbox()
    header, frames = published(1)
    inbox.offer(header, frames[:-1])
    assert inbox.take() is None
    assert inbox.rejected == 1


def test_malformed_notices_are_counted_and_the_next_one_is_read(wire: Wire) -> None:
    inbox = make_inbox(wire.sub())
    header, frames = published(1)
    wire.publisher.send_multipart([sockets.TCP_TOPIC])
    wire.publisher.send_multipart([sockets.TCP_TOPIC, b"noise"])
    wire.publisher.send_multipart([sockets.TCP_TOPIC, pack(rollout_header())])
    wire.publisher.send_multipart([sockets.TCP_TOPIC, pack(header), *frames])
    until(lambda: inbox.drain() or inbox.newest_version == 1, lambda: inbox._socket.poll(100), "version 1")
    assert inbox.rejected == 3
    assert inbox.take() is not None


@pytest.fixture
def segment(tmp_path: Path) -> tuple[Segment, SlotPlan]:
    plan = SlotPlan(64, 1, ACTOR.nbytes, 3)
    return Segment.create(str(tmp_path), plan.nbytes), plan


def test_weights_in_shared_memory_are_copied_out(segment: tuple[Segment, SlotPlan]) -> None:
    inbox = make_inbox()
    inbox.attach(*segment)
    slot = segment[1].weights(segment[0], 1)
    slot[:] = 4
    inbox.offer(header_of(slot, 4, slot=1), [])
    block = inbox.take()
    assert block is not None
    slot[:] = 5
    assert (block == 4).all()
    inbox.offer(header_of(slot, 5, slot=3), [])
    assert inbox.take() is None, "there is no slot 3"
    assert inbox.rejected == 1


def test_a_slot_that_is_overwritten_while_it_is_copied_is_noticed(segment: tuple[Segment, SlotPlan]) -> None:
    inbox = make_inbox()
    inbox.attach(*segment)
    slot = segment[1].weights(segment[0], 1)
    slot[:] = 1
    header = header_of(slot, 1, slot=1)
    slot[: ACTOR.nbytes // 2] = 4
    inbox.offer(header, [])
    assert inbox.take() is None
    assert (inbox.version, inbox.newest_version, inbox.rejected) == (-1, -1, 1)
    slot[:] = 4
    inbox.offer(header_of(slot, 4, slot=1), [])
    assert inbox.take() is not None
    assert inbox.version == 4


def test_no_block_ever_mixes_two_versions_however_fast_they_are_written(segment: tuple[Segment, SlotPlan]) -> None:
    inbox = make_inbox()
    inbox.attach(*segment)
    newest: list[WeightsHeader] = []
    done = threading.Event()

    def write() -> None:
        for version in range(1, 400):
            slot = segment[1].weights(segment[0], version % 3)
            slot[:] = version % 251
            newest.append(header_of(slot, version, slot=version % 3))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    taken = 0
    while not done.is_set() or not taken:
        if newest:
            inbox.offer(newest[-1], [])
        block = inbox.take()
        if block is not None:
            taken += 1
            assert (block == inbox.version % 251).all(), "half of one version and half of another"
    writer.join()
    assert taken > 3


# ------------------------------------------------------------------------------------------------- sending

ROLLOUT = Layout([Field("rewards", "uint8", (24 << 20,)), Field("final", "uint8", (8, 64), counted=True)])


def header(slot: int, seq: int, final_count: int = 0) -> RolloutHeader:
    return rollout_header(slot=slot, seq=seq, final_count=final_count)


def never() -> None:
    raise AssertionError("nothing should have to wait")


def test_a_slot_is_not_given_out_while_zeromq_still_reads_it(wire: Wire) -> None:
    sender = RolloutSender(wire.push(), ROLLOUT)
    until(lambda: sender._socket.poll(100, zmq.POLLOUT), lambda: None, "the connection")
    received: list[list[bytes]] = []

    def idle() -> None:
        """Only now does the learner begin to read."""
        if wire.rollouts.poll(100):
            received.append(wire.rollouts.recv_multipart())

    waits = 0
    for seq in range(8):
        before = len(received)
        views = sender.slot(seq % 2, idle)
        waits += len(received) > before
        views["rewards"][:] = seq + 1
        sender.send(header(seq % 2, seq), never if seq < 4 else idle)
    until(lambda: len(received) == 8, idle, "all rollouts")
    assert waits > 0, "the test never came to the point"
    for seq, (first, *frames) in enumerate(received):
        assert expect(first, RolloutHeader).seq == seq
        assert b"".join(frames) == bytes([seq + 1]) * (24 << 20), "written while it was being sent"
    assert sender.sent == 8


def test_without_a_learner_a_rollout_waits_and_is_not_lost(wire: Wire) -> None:
    address = wire.rollouts.getsockopt_string(zmq.LAST_ENDPOINT)
    wire.rollouts.unbind(address)
    sender = RolloutSender(wire.push(), ROLLOUT)
    sender.slot(0, never)["rewards"][:] = 9
    idled = 0

    def idle() -> None:
        nonlocal idled
        idled += 1
        if idled == 3:
            wire.rollouts.bind(address)
        assert idled < 100 * DEADLINE_S, "the connection was never made"
        sender._socket.poll(100, zmq.POLLOUT)

    sender.send(header(0, 0), idle)
    assert idled >= 3
    assert b"".join(receive(wire.rollouts)[1:]) == bytes([9]) * (24 << 20)


def test_only_the_used_rows_are_sent_and_nothing_but_a_header_over_shared_memory(wire: Wire, tmp_path: Path) -> None:
    small = Layout([Field("rewards", "uint8", (64,)), Field("final", "uint8", (8, 64), counted=True)])
    sender = RolloutSender(wire.push(), small)
    until(lambda: sender._socket.poll(100, zmq.POLLOUT), lambda: None, "the connection")
    sender.slot(1, never)["final"][:] = 3
    sender.send(header(1, 0, final_count=2), never)
    assert [len(frame) for frame in receive(wire.rollouts)[1:]] == [64 + 2 * 64]

    plan = SlotPlan(small.nbytes, 2, 64, 3)
    segment = Segment.create(str(tmp_path), plan.nbytes)
    sender.attach(segment, plan)
    sender.slot(1, never)["rewards"][:] = 7
    sender.send(header(1, 1, final_count=2), never)
    (only,) = receive(wire.rollouts)
    assert expect(only, RolloutHeader).seq == 1
    assert (plan.rollout(segment, 1)[:64] == 7).all()
    assert np.shares_memory(sender.slot(1, never)["rewards"], plan.rollout(segment, 1))
