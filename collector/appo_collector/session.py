"""One membership in a run: joining, heartbeats, credits, leaving. All its sockets belong to one thread."""

from __future__ import annotations

import logging
import os
import platform
import socket as host_socket
import time
import uuid
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import psutil
import zmq

import appo_common
from appo_collector.control import POLL_SLICE_S, ControlLink, SessionLost
from appo_collector.sender import RolloutSender
from appo_collector.weights import WeightsInbox
from appo_common import sockets
from appo_common.errors import AppoError, RefusedError, SharedMemoryError
from appo_common.layout import Layout
from appo_common.messages import (
    Admit,
    Attached,
    Bye,
    Credit,
    Episodes,
    Heartbeat,
    Hello,
    Ready,
    RolloutHeader,
    SharedMemoryOffer,
    WantWeights,
    WeightsHeader,
    Welcome,
)
from appo_common.process import StopRequest
from appo_common.shared_memory import Segment, SlotPlan
from appo_common.spec import EnvSpec

logger = logging.getLogger(__name__)

SERVICE_INTERVAL_S = 0.005
"""The hot loop looks at its sockets at most this often."""
HELLO_RETRY_S = 2.0
WANT_WEIGHTS_AFTER_S = 1.0
"""A credit is in hand and PUB/SUB has not delivered weights new enough for it: ask for them."""


@dataclass
class Identity:
    """Who this collector is; the same in all its sessions."""

    name: str
    num_envs: int | None
    transport: str
    """``auto``, ``shm`` or ``tcp``."""
    uid: str = field(default_factory=lambda: uuid.uuid4().hex)

    def hello(self) -> Hello:
        """Return the first message of a session."""
        return Hello(
            uid=self.uid,
            name=self.name,
            host=host_socket.gethostname(),
            pid=os.getpid(),
            software={"appo": appo_common.__version__, "python": platform.python_version()},
            num_envs=self.num_envs,
        )


class Session:
    """A collector's side of the conversation with one learner process."""

    welcome: Welcome
    weights: WeightsInbox
    sender: RolloutSender

    def __init__(
        self, ctx: zmq.Context[zmq.Socket[bytes]], address: str, identity: Identity, stop: StopRequest
    ) -> None:
        """Connect the control socket to ``tcp://HOST:PORT``; nothing is said yet."""
        self._ctx = ctx
        self._address = address
        self._host = sockets.split_address(address, "--connect")[0]
        self._identity = identity
        self._control = ControlLink(ctx, address, identity.uid.encode(), stop)
        self._data_sockets: list[zmq.Socket[bytes]] = []
        self._credits: deque[tuple[int, int]] = deque()
        self._next_beat = 0.0
        self._next_service = 0.0
        self._process = psutil.Process()
        self._offered: tuple[Segment, SlotPlan] | None = None
        self.path = ""
        """``shm`` or ``tcp``; empty until the learner has decided."""
        self.env_steps = 0
        self.timers_ms: dict[str, float] = {}

    # ------------------------------------------------------------------------------------------- joining

    def hello(self) -> Welcome:
        """Introduce this collector; wait for as long as it takes for a learner to answer."""
        started, tell_after = time.monotonic(), HELLO_RETRY_S
        while True:
            self._control.send(self._identity.hello())
            if arrival := self._control.wait_for(Welcome, HELLO_RETRY_S):
                self.welcome = arrival[0]
                return self.welcome
            waited = time.monotonic() - started
            if waited >= tell_after:
                logger.info("waiting for a learner at %s (%.0f s)", self._address, waited)
                tell_after *= 2

    def subscribe(self, actor: Layout) -> None:
        """Subscribe to weights laid out like ``actor``. Done before READY, so that no version is missed."""
        address = f"tcp://{self._host}:{self.welcome.weights_port}"
        self._subscription = sockets.connect_weights(self._ctx, address, sockets.TCP_TOPIC)
        self._data_sockets.append(self._subscription)
        self._control.also_wake_for(self._subscription)
        self.weights = WeightsInbox(self._subscription, self.welcome.incarnation, actor)

    def offer(self, spec: EnvSpec) -> None:
        """Show the learner an environment that cannot be used, and give it time to say so in its own words."""
        self._control.send(Ready(spec=spec))
        self._control.wait_for(Admit, self.welcome.heartbeat_timeout_s)

    def ready(self, spec: EnvSpec, rollout: Layout) -> None:
        """Offer the environment and return once the learner has admitted this collector.

        Raises:
            RefusedError: the learner rejects the spec, in its own words.
        """
        push = sockets.connect_rollouts(self._ctx, f"tcp://{self._host}:{self.welcome.rollout_port}")
        self._data_sockets.append(push)
        self.sender = RolloutSender(push, rollout)
        self._control.send(Ready(spec=spec))
        self._control.heard_at = time.monotonic()  # building the environment took its time
        while (arrival := self._control.wait_for(Admit, POLL_SLICE_S)) is None:
            self._beat_if_due("joining")  # the learner may still be waiting for its first collectors
            self.weights.drain()
        admit, frames = arrival
        if admit.fingerprint != rollout.fingerprint:
            raise AppoError(
                f"rollout layouts differ ({rollout.fingerprint} here, {admit.fingerprint} at the learner); "
                "install the same release on both sides"
            )
        self.weights.offer(admit.weights, frames)
        self._control.send(self._attach(admit.offer, admit.offer_reason, rollout))

    def _attach(self, offer: SharedMemoryOffer | None, why_not: str, rollout: Layout) -> Attached:
        if self._identity.transport == "tcp":
            return Attached(nonce=None, reason="the collector was told --transport tcp")
        if offer is None:
            return Attached(nonce=None, reason=why_not)
        plan = SlotPlan(rollout.nbytes, offer.rollout_slots, self.weights.layout.nbytes, offer.weight_slots)
        if plan.nbytes != offer.nbytes:
            return Attached(nonce=None, reason=f"{offer.nbytes} bytes offered, {plan.nbytes} needed")
        try:
            segment = Segment.attach(offer.path, offer.nbytes)
        except SharedMemoryError as error:
            return Attached(nonce=None, reason=str(error))
        self._offered = (segment, plan)
        return Attached(nonce=segment.nonce, reason="")

    def _use(self, path: str) -> None:
        """Take the path that the learner has decided on; it comes with the first credit."""
        self.path = path
        if path == "shm" and self._offered:
            self.sender.attach(*self._offered)
            self.weights.attach(*self._offered)
            self._subscription.setsockopt(zmq.SUBSCRIBE, sockets.SHM_TOPIC)
            self._subscription.setsockopt(zmq.UNSUBSCRIBE, sockets.TCP_TOPIC)
        elif self._identity.transport == "shm":
            raise RefusedError("--transport shm: this process cannot map the learner's shared memory; use auto or tcp")
        logger.info("joined run %s as collector %d over %s", self.welcome.run_id, self.welcome.collector, path)

    # ---------------------------------------------------------------------------------------- collecting

    def next_slot(self) -> tuple[int, np.ndarray | None]:
        """Wait for a credit, and for weights that are new enough for it.

        Returns the credit's slot, and the block of a policy version newer than the last one given out (or None).
        """
        asked_at = 0.0
        if not self._credits:
            self._next_beat = 0.0  # while it waits, the learner's books should know of all that was sent
        while True:
            if self._credits:
                needed = self._credits[0][1]
                block = self.weights.take()
                if self.weights.version >= needed:
                    return self._credits.popleft()[0], block
                asked_at = asked_at or time.monotonic()
                if time.monotonic() - asked_at > WANT_WEIGHTS_AFTER_S:
                    self._control.send(WantWeights(version=needed))
                    asked_at = time.monotonic()
            self.service(POLL_SLICE_S)

    def views(self, slot: int) -> dict[str, np.ndarray]:
        """Return the arrays of ``slot`` for writing."""
        return self.sender.slot(slot, self._idle)

    def send(self, slot: int, version: int, final_count: int, episodes: Episodes, timers_ms: dict[str, float]) -> None:
        """Hand a full slot, made by policy ``version``, to the learner."""
        header = RolloutHeader(
            incarnation=self.welcome.incarnation,
            collector=self.welcome.collector,
            session=self.welcome.session,
            seq=self.sender.sent,
            policy_version=version,
            slot=slot,
            final_count=final_count,
            episodes=episodes,
            timers_ms=timers_ms,
        )
        self.timers_ms = timers_ms
        self.sender.send(header, self._idle)

    def service(self, wait_s: float = 0.0) -> None:
        """Beat, and read what has arrived, waiting at most ``wait_s`` for anything.

        Raises:
            RunEnded: this process was asked to stop, or the learner said STOP.
            SessionLost: the learner has been silent for too long, or wants this collector to rejoin.
        """
        now = time.monotonic()
        if wait_s == 0.0 and now < self._next_service:
            return
        if wait_s == 0.0:
            self._tell_if_late(now - self._next_service)
        self._next_service = now + SERVICE_INTERVAL_S
        self._control.poll(wait_s)
        self.weights.drain()
        while arrival := self._control.take():
            message, frames = arrival
            if isinstance(message, Credit):
                if not self.path:
                    self._use(message.path)
                self._credits.extend((slot, message.min_version) for slot in message.slots)
            elif isinstance(message, WeightsHeader):
                self.weights.offer(message, frames)
        self._beat_if_due("waiting" if wait_s else "collecting")

    def _tell_if_late(self, late_s: float) -> None:
        """Say what to change where the learner must have taken this collector for silent, and given it up."""
        limit_s = self.welcome.heartbeat_timeout_s
        if late_s > limit_s:
            logger.warning(
                "nothing was heard or said for %.0f s, longer than network.heartbeat_timeout_s = %.0f s; if the "
                "environments take that long for a step, raise it, or step fewer of them (--num-envs)",
                *(late_s, limit_s),
            )

    def _idle(self) -> None:
        self.service(0.01)

    def _beat_if_due(self, state: str) -> None:
        now = time.monotonic()
        silent_s = now - self._control.heard_at
        if silent_s > self.welcome.heartbeat_timeout_s:
            raise SessionLost(f"no sign of the learner for {silent_s:.0f} s")
        if now < self._next_beat:
            return
        self._next_beat = now + self.welcome.heartbeat_interval_s
        self._control.send(
            Heartbeat(
                policy_version=self.weights.version,
                rollouts_sent=self.sender.sent,
                env_steps=self.env_steps,
                state=state,
                timers_ms=self.timers_ms,
                cpu_percent=self._process.cpu_percent(),
                memory_mb=self._process.memory_info().rss / 1e6,
            )
        )

    # ------------------------------------------------------------------------------------------- leaving

    def bye(self, reason: str) -> None:
        """Tell the learner that this collector leaves, and how much it has sent."""
        sent = self.sender.sent if hasattr(self, "sender") else 0
        self._control.send(Bye(reason=reason, rollouts_sent=sent))

    def close(self, linger_ms: int = sockets.LINGER_MS) -> None:
        """Close every socket; what was sent may still be delivered for ``linger_ms``."""
        self._control.close(linger_ms)
        for socket in self._data_sockets:
            socket.close(linger=linger_ms)
        self._data_sockets.clear()
