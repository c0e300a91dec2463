"""The slots that rollouts are written into, and how a full one reaches the learner."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import zmq

from appo_common.layout import Layout
from appo_common.messages import RolloutHeader, pack
from appo_common.shared_memory import Segment, SlotPlan


class RolloutSender:
    """Owns the slots this collector holds credits for.

    A slot belongs to the environment loop from :meth:`slot` to :meth:`send`, and to the learner from then until
    its credit comes back. Over TCP a slot is private memory that ZeroMQ reads from while it sends.
    """

    def __init__(self, socket: zmq.Socket[bytes], layout: Layout) -> None:
        """Send through ``socket`` (a PUSH of this thread)."""
        self._socket = socket
        self._layout = layout
        self._segment: tuple[Segment, SlotPlan] | None = None
        self._views: dict[int, dict[str, np.ndarray]] = {}
        self._buffers: dict[int, np.ndarray] = {}
        self._trackers: dict[int, list[zmq.MessageTracker]] = {}
        self.sent = 0
        """Rollouts handed over; also the next sequence number."""

    def attach(self, segment: Segment, plan: SlotPlan) -> None:
        """Use the slots of a shared-memory segment instead of private memory."""
        self._segment = (segment, plan)
        self._views.clear()
        self._buffers.clear()

    def slot(self, slot: int, idle: Callable[[], None]) -> dict[str, np.ndarray]:
        """Return the arrays of ``slot``, free to be written. ``idle`` is called while ZeroMQ still reads it."""
        for tracker in self._trackers.pop(slot, []):
            while not tracker.done:
                idle()
        if slot not in self._views:
            self._buffers[slot] = self._memory(slot)
            self._views[slot] = self._layout.views(self._buffers[slot])
        return self._views[slot]

    def send(self, header: RolloutHeader, idle: Callable[[], None]) -> None:
        """Hand the slot that ``header`` names to the learner. ``idle`` is called while no connection takes it."""
        frames = [] if self._segment else self._layout.frames(self._buffers[header.slot], header.final_count)
        first, flags = pack(header), zmq.NOBLOCK | (zmq.SNDMORE if frames else 0)
        while True:
            try:
                self._socket.send(first, flags)
                break
            except zmq.Again:  # no learner is connected, or it does not read
                idle()
        trackers = []
        for frame in frames:
            more = zmq.SNDMORE if frame is not frames[-1] else 0
            # The frame points into the slot: it is not written again before its tracker is done, see slot().
            trackers.append(self._socket.send(frame, more, copy=False, track=True))
        self._trackers[header.slot] = [tracker for tracker in trackers if tracker is not None]
        self.sent += 1

    def _memory(self, slot: int) -> np.ndarray:
        if self._segment is None:
            return np.zeros(self._layout.nbytes, dtype=np.uint8)
        segment, plan = self._segment
        return plan.rollout(segment, slot)
