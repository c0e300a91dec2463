"""The newest policy version that has arrived, whole and checked, by whichever path."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import zmq

from appo_common.errors import ProtocolError
from appo_common.layout import Layout
from appo_common.log import RateLimited
from appo_common.messages import WeightsHeader, expect
from appo_common.models import checksum
from appo_common.shared_memory import Segment, SlotPlan

logger = logging.getLogger(__name__)


class WeightsInbox:
    """Keeps the newest weights message and gives out its block once it has proved to be one version."""

    def __init__(self, socket: zmq.Socket[bytes], incarnation: str, layout: Layout) -> None:
        """Read notices and blocks from ``socket`` (a SUB of this thread)."""
        self._socket = socket
        self._incarnation = incarnation
        self.layout = layout
        self._segment: tuple[Segment, SlotPlan] | None = None
        self._newest: tuple[WeightsHeader, Sequence[Any]] | None = None
        self._block = np.zeros(layout.nbytes, dtype=np.uint8)
        self._log = RateLimited(logger)
        self.version = -1
        """The version that :meth:`take` gave out last."""
        self.rejected = 0
        """Weight messages that were not usable."""

    def attach(self, segment: Segment, plan: SlotPlan) -> None:
        """Read the slots that notices name from this segment."""
        self._segment = (segment, plan)

    @property
    def newest_version(self) -> int:
        """The newest version known, taken or not."""
        return max(self.version, self._newest[0].version if self._newest else -1)

    def drain(self) -> None:
        """Read everything that has arrived and keep the newest: PUB drops *new* messages when queues are full."""
        while True:
            try:
                _topic, header, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            except ValueError:
                self._reject("fewer than two frames")
                continue
            try:
                self.offer(expect(header.buffer, WeightsHeader), [frame.buffer for frame in frames])
            except ProtocolError as error:
                self._reject(str(error))

    def offer(self, header: WeightsHeader, frames: Sequence[Any]) -> None:
        """Consider one weights message, from PUB/SUB or from the control connection."""
        if header.incarnation != self._incarnation:
            self._reject("weights of another learner process")
        elif header.version > self.newest_version:
            self._newest = (header, frames)

    def take(self) -> np.ndarray | None:
        """Return the newest block if it is newer than the last one taken, else None.

        A shared-memory slot may be overwritten while it is copied: the checksum shows it, and then a newer
        notice is on its way, so nothing is lost by dropping this one.
        """
        if self._newest is None:
            return None
        header, frames = self._newest
        self._newest = None
        try:
            self._copy(header, frames)
        except ProtocolError as error:
            self._reject(str(error))
            return None
        if checksum(self._block) != header.crc32:
            self._reject(f"checksum of version {header.version} does not fit")
            return None
        self.version = header.version
        return self._block

    def _copy(self, header: WeightsHeader, frames: Sequence[Any]) -> None:
        if header.nbytes != self.layout.nbytes:
            raise ProtocolError("wrong size", f"weights of {header.nbytes} bytes, the actor has {self.layout.nbytes}")
        if header.slot is None:
            self.layout.join(frames, into=self._block)
            return
        if self._segment is None:
            raise ProtocolError("no segment", "a shared-memory notice for a collector on TCP")
        segment, plan = self._segment
        if header.slot >= plan.weight_slots:
            raise ProtocolError("wrong slot", f"{header.slot} of {plan.weight_slots}")
        np.copyto(self._block, plan.weights(segment, header.slot))

    def _reject(self, why: str) -> None:
        self.rejected += 1
        self._log.warning("weights", f"weights dropped: {why}")
