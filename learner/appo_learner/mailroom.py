"""The one thread that owns the learner's sockets: it admits, stages, grants and publishes.

The training thread meets it in two queues: rollouts that have arrived, and wishes to be carried out. What both
look at is guarded by one lock, which is never held while training or waiting for a socket.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

import zmq

from appo_common import sockets
from appo_common.errors import ConfigError, ProtocolError
from appo_common.layout import env_steps
from appo_common.messages import OTHER_VERSION, Reject, RolloutHeader, expect, pack, unpack
from appo_common.spec import EnvSpec
from appo_learner.books import Book
from appo_learner.fleet import Fleet, Outgoing
from appo_learner.inbox import Selection
from appo_learner.member import Member, Rollout
from appo_learner.metrics import CollectorView
from appo_learner.terms import Contract, Run, Weights

logger = logging.getLogger(__name__)

POLL_MS = 200
FAREWELL_S = 2.0
"""How long the end of a run waits for the collectors' BYE and their last rollouts."""

Select = Callable[[Sequence[Rollout], Sequence[Member]], Selection]
"""Chooses from the waiting rollouts, given the members that collect."""


class Mailroom:
    """The learner's side of the wire, for the training thread."""

    def __init__(self, run: Run, host: str, port: int) -> None:
        """Bind the sockets; nothing is read before :meth:`start`.

        Raises:
            ConfigError: the address cannot be bound.
        """
        self._ctx = sockets.context()
        try:
            bound = sockets.bind_learner(self._ctx, host, port)
        except ConfigError:
            self._ctx.term()
            raise
        self._control, self._rollouts, self._publisher, self.endpoints = bound
        self._fleet = Fleet(run, self.endpoints)
        self._lock = threading.Condition()
        self._waiting: list[Rollout] = []
        self._wishes: deque[Callable[[], list[Outgoing]]] = deque()
        self._wake_reader, self._wake_writer = os.pipe()
        self._failure: BaseException | None = None
        self._farewell_until: float | None = None
        self._closed = False
        self._tcp_subscribers = False
        self._thread = threading.Thread(target=self._run, name="mailroom", daemon=True)
        self._events = self._seen = 0
        self.env_steps_received = 0
        """Environment steps that have arrived in usable rollouts."""

    # --------------------------------------------------------------------------------- the training thread

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Sleep until something has arrived, at most ``timeout_s``. Raises the mailroom's own failure."""
        with self._lock:
            self._lock.wait_for(lambda: self._events != self._seen or self._failure, timeout_s)
            self._seen = self._events
            self._raise_failure()

    def first_spec(self) -> EnvSpec | None:
        """Return the spec of the first collector that was ready, if any."""
        with self._lock:
            return self._fleet.first_spec

    def open(self, contract: Contract, weights: Weights) -> None:
        """Admit collectors from now on."""
        self._wish(lambda: self._fleet.open(contract, weights))

    def collecting(self) -> list[Member]:
        """Return the members that have credits, by index."""
        with self._lock:
            return self._fleet.collecting

    def take(self, select: Select) -> Selection:
        """Remove what ``select`` chooses from the rollouts that wait."""
        with self._lock:
            self._raise_failure()
            self._seen = self._events
            selection = select(self._waiting, self._fleet.collecting)
            gone = {id(rollout) for rollout in (*selection.batch, *selection.stale)}
            self._waiting = [rollout for rollout in self._waiting if id(rollout) not in gone]
        if selection.stale:
            self.discard(selection.stale, "too old")
        return selection

    def discard(self, rollouts: Sequence[Rollout], reason: str) -> None:
        """Give up rollouts that were taken."""
        self._wish(lambda: self._fleet.settle(rollouts, discarded=reason))

    def publish(self, weights: Weights, trained: Sequence[Rollout]) -> None:
        """Publish a version, and then give back the credits of the rollouts it was trained on."""

        def carry_out() -> list[Outgoing]:
            self._publish(weights)
            return self._fleet.settle(trained)

        self._wish(carry_out)

    def views(self) -> list[CollectorView]:
        """Describe the fleet for people."""
        with self._lock:
            return self._fleet.views()

    def books(self) -> list[Book]:
        """Return every collector's account."""
        with self._lock:
            return list(self._fleet.books.values())

    def dropped(self) -> Counter[str]:
        """Count the messages that could not be used, by reason."""
        with self._lock:
            return self._fleet.dropped.copy()

    def close(self, reason: str) -> None:
        """Send STOP, wait a little for the collectors to leave, and close everything. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._thread.is_alive():
            self._wish(lambda: self._say_farewell(reason))
            self._thread.join(FAREWELL_S + 3.0)
        for rollout in self._waiting:
            rollout.member.book.settle(discarded="the run ended")
        self._waiting.clear()
        for member in self._fleet.members:
            self._fleet.retire(member, "had not said goodbye when the run ended")
        for socket in (self._control, self._rollouts, self._publisher):
            socket.close()
        self._ctx.term()
        os.close(self._wake_writer)
        os.close(self._wake_reader)

    def _wish(self, carry_out: Callable[[], list[Outgoing]]) -> None:
        self._wishes.append(carry_out)
        os.write(self._wake_writer, b"w")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --------------------------------------------------------------------------------- the mailroom's thread

    def _run(self) -> None:
        try:
            poller = zmq.Poller()
            for readable in (self._control, self._rollouts, self._publisher, self._wake_reader):
                poller.register(readable, zmq.POLLIN)
            while not self._may_leave():
                ready = dict(poller.poll(POLL_MS))
                if self._wake_reader in ready:
                    os.read(self._wake_reader, 4096)
                self._serve()
        except BaseException as error:  # must reach the training thread, which ends the run with this traceback
            with self._lock:
                self._failure = error
                self._lock.notify_all()

    def _serve(self) -> None:
        """Do everything there is to do now: wishes first, they free collectors that wait."""
        while self._wishes:
            wish = self._wishes.popleft()
            with self._lock:
                outgoing = wish()
            self._send(outgoing)
        self._read_subscriptions()
        while self._read_control():
            pass
        while self._read_rollout():
            pass
        with self._lock:
            self._fleet.retire_unreachable()
            outgoing = self._fleet.expire()
            self._events += 1
            self._lock.notify_all()
        self._send(outgoing)

    def _read_control(self) -> bool:
        try:
            identity, *frames = self._control.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        with self._lock:
            try:
                if len(frames) != 1:
                    raise ProtocolError("malformed", f"{len(frames)} frames on the control connection")
                outgoing = self._fleet.on_message(identity, unpack(frames[0]))
            except ProtocolError as error:
                self._fleet.drop(error)
                # A peer of another release understands no message, but sees by any of them that it is one.
                outgoing = [Outgoing(identity, Reject(reason=str(error)))] if error.reason == OTHER_VERSION else []
        self._send(outgoing)
        return True

    def _read_rollout(self) -> bool:
        try:
            first, *frames = self._rollouts.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        with self._lock:
            try:
                header = expect(first.buffer, RolloutHeader)
                # Each frame is copied once, into the slot, and dropped when this call returns.
                rollout, outgoing = self._fleet.on_rollout(header, [frame.buffer for frame in frames])
            except ProtocolError as error:
                self._fleet.drop(error)
                return True
            if rollout is not None:
                self._waiting.append(rollout)
                self.env_steps_received += env_steps(rollout.views)
        self._send(outgoing)
        return True

    def _read_subscriptions(self) -> None:
        """XPUB reports the first subscriber of a topic and the loss of the last: nobody on TCP, no bytes."""
        while True:
            try:
                event = self._publisher.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            if event[1:] == sockets.TCP_TOPIC:
                self._tcp_subscribers = event[:1] == b"\x01"

    def _publish(self, weights: Weights) -> None:
        self._fleet.publish(weights)
        self._publisher.send_multipart([sockets.SHM_TOPIC, pack(weights.header(weights.slot))])
        if self._tcp_subscribers:
            # The frames point into the block, which is never written again: ZeroMQ may keep it as long as it likes.
            frames = self._fleet.weight_frames(weights)
            self._publisher.send_multipart([sockets.TCP_TOPIC, pack(weights.header()), *frames], copy=False)

    def _send(self, outgoing: Sequence[Outgoing]) -> None:
        for letter in outgoing:
            try:
                self._control.send_multipart(
                    [letter.identity, pack(letter.message), *letter.frames], zmq.NOBLOCK, copy=False
                )
            except zmq.ZMQError as error:  # EHOSTUNREACH: it is gone; EAGAIN: it has not read for a long time
                with self._lock:
                    self._fleet.cannot_reach(letter.identity, f"is out of reach of {letter.message.kind} ({error})")

    def _say_farewell(self, reason: str) -> list[Outgoing]:
        self._farewell_until = time.monotonic() + FAREWELL_S
        return self._fleet.stop(reason)

    def _may_leave(self) -> bool:
        """Whether a farewell is over: everybody has left and all that was sent has arrived, or time is up."""
        if self._farewell_until is None:
            return False
        return not self._fleet.members or time.monotonic() > self._farewell_until
