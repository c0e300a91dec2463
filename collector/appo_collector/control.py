"""The collector's end of the control connection: messages in, messages out, and the three that end a session."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any, TypeVar

import zmq

from appo_common import sockets
from appo_common.errors import ProtocolError, RefusedError
from appo_common.messages import OTHER_VERSION, Message, Reject, Rejoin, Stop, pack, unpack
from appo_common.process import StopRequest

logger = logging.getLogger(__name__)

POLL_SLICE_S = 0.1
"""Longest uninterrupted wait, so that signals are obeyed."""

M = TypeVar("M", bound=Message)
Arrival = tuple[Message, list[Any]]
"""A message and the frames behind it."""


class RunEnded(Exception):
    """The learner said STOP, or this process was asked to stop."""


class SessionLost(Exception):
    """The learner is gone or no longer knows this collector; a new session may succeed."""


class ControlLink:
    """A DEALER of one thread, and whatever else that thread wants to be woken by."""

    def __init__(self, ctx: zmq.Context[zmq.Socket[bytes]], address: str, identity: bytes, stop: StopRequest) -> None:
        """Connect to ``tcp://HOST:PORT``; ZeroMQ keeps trying in the background."""
        self._socket = sockets.connect_control(ctx, address, identity)
        self._stop = stop
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._losses = sockets.watch_disconnects(self._socket)
        self._poller.register(self._losses, zmq.POLLIN)
        self._arrived: deque[Arrival] = deque()
        self.heard_at = time.monotonic()
        """When the learner was last heard, on the monotonic clock."""

    def also_wake_for(self, socket: zmq.Socket[bytes]) -> None:
        """End waits when ``socket`` has something to read."""
        self._poller.register(socket, zmq.POLLIN)

    def send(self, message: Message) -> None:
        """Queue a message. When a vanished learner's queue is full it is dropped: silence ends the session."""
        try:
            self._socket.send(pack(message), zmq.NOBLOCK)
        except zmq.Again:
            logger.debug("%s not sent", message.kind)

    def poll(self, wait_s: float) -> None:
        """Read what has arrived, waiting at most ``wait_s`` for anything.

        Raises:
            RunEnded: STOP, or a signal.
            SessionLost: REJOIN, or the connection was lost, and with it perhaps a message nobody will repeat.
            RefusedError: REJECT, or a learner that speaks another protocol version.
        """
        self._poller.poll(int(wait_s * 1000))
        if self._stop.reason is not None:
            raise RunEnded(self._stop.reason)
        lost = self._losses.poll(0)
        self._read()  # after the look at the connection: its last words may explain its end
        if lost:
            raise SessionLost("the connection to the learner was lost")

    def _read(self) -> None:
        while True:
            try:
                first, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self.heard_at = time.monotonic()
            try:
                message = unpack(first.buffer)
            except ProtocolError as error:
                if error.reason == OTHER_VERSION:
                    raise RefusedError(str(error)) from None
                logger.warning("dropped a message of the learner: %s", error)
                continue
            _obey(message)
            self._arrived.append((message, [frame.buffer for frame in frames]))

    def take(self) -> Arrival | None:
        """Return the oldest message that was read and not taken yet."""
        return self._arrived.popleft() if self._arrived else None

    def wait_for(self, kind: type[M], timeout_s: float) -> tuple[M, list[Any]] | None:
        """Return the next message of ``kind``, or None after ``timeout_s``. Others stay for :meth:`take`."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            self.poll(min(left, POLL_SLICE_S))
            for place, (message, frames) in enumerate(self._arrived):
                if isinstance(message, kind):
                    del self._arrived[place]
                    return message, frames
        return None

    def close(self, linger_ms: int) -> None:
        """Close the socket; what was sent may still be delivered for ``linger_ms``. Does nothing the second time."""
        if self._socket.closed:
            return
        self._socket.disable_monitor()
        self._losses.close(linger=0)
        self._socket.close(linger=linger_ms)


def _obey(message: Message) -> None:
    """Act on the messages that end a session, whenever they come."""
    if isinstance(message, Stop):
        raise RunEnded(message.reason)
    if isinstance(message, Rejoin):
        raise SessionLost(message.reason)
    if isinstance(message, Reject):
        raise RefusedError(message.reason)
