"""The only place that creates ZeroMQ sockets. All options are set before the first bind or connect.

A socket belongs to the thread that uses it; nothing here is shared between threads but the context.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from socket import AF_INET6, getaddrinfo
from urllib.parse import urlsplit

import zmq

from appo_common.errors import ConfigError
from appo_common.layout import FRAME_BYTES

MAX_FRAME_BYTES = FRAME_BYTES + (1 << 16)
"""``MAXMSGSIZE`` of every receiving socket: libzmq drops the connection of a peer that announces more."""
ROLLOUT_HIGH_WATER = 4
"""Rollouts (not bytes) queued per peer and side. Credits keep the number below this anyway."""
WEIGHTS_HIGH_WATER = 4
"""Weight versions queued per subscriber. PUB drops the newest beyond it; subscribers drain to the newest."""
CONTROL_HIGH_WATER = 1000
LINGER_MS = 1000
"""How long a closing socket may still deliver; infinite is libzmq's default and hangs the exit."""

TCP_TOPIC = b"tcp"
"""Weights with their bytes."""
SHM_TOPIC = b"shm"
"""Notices that name a shared-memory slot."""


@dataclass(frozen=True)
class Endpoints:
    """Where a learner listens."""

    host: str
    control_port: int
    rollout_port: int
    weights_port: int

    @property
    def control(self) -> str:
        """Return the address that collectors are given."""
        return f"tcp://{self.host}:{self.control_port}"


def split_address(address: str, place: str) -> tuple[str, int]:
    """Split ``tcp://HOST:PORT``; ``place`` (an option's or key's name) is for the error."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{place} = {address!r}: {error}; write tcp://HOST:PORT") from None
    if parts.scheme != "tcp" or not parts.hostname or port is None or parts.path not in ("", "/"):
        raise ConfigError(f"{place} = {address!r}: not an address; write tcp://HOST:PORT, e.g. tcp://127.0.0.1:5555")
    return (f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname), port


def context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return a new context whose sockets never hold up the exit."""
    _keep_freed_blocks()
    ctx: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    ctx.setsockopt(zmq.LINGER, LINGER_MS)
    return ctx


def bind_learner(
    ctx: zmq.Context[zmq.Socket[bytes]], host: str, port: int
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes], zmq.Socket[bytes], Endpoints]:
    """Bind the three sockets of a learner: control ROUTER, rollouts PULL, weights XPUB.

    ``port`` 0 takes three free ports; otherwise ``port`` and the next two.

    Raises:
        ConfigError: an address is in use or is not one of this host.
    """
    control = ctx.socket(zmq.ROUTER)
    control.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a peer that is gone is an error here, not silence
    control.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a reconnecting collector takes its identity over
    control.set_hwm(CONTROL_HIGH_WATER)
    rollouts = ctx.socket(zmq.PULL)
    rollouts.set_hwm(ROLLOUT_HIGH_WATER)
    weights = ctx.socket(zmq.XPUB)
    weights.set_hwm(WEIGHTS_HIGH_WATER)
    sockets = (control, rollouts, weights)
    ports = []
    try:
        for offset, socket in enumerate(sockets):
            socket.setsockopt(zmq.IPV6, int(":" in host))
            socket.setsockopt(zmq.TCP_KEEPALIVE, 1)  # gives up the connections of hosts that vanished
            socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 60)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
            ports.append(_bind(socket, host, port + offset if port else 0))
    except ConfigError:
        for socket in sockets:
            socket.close(linger=0)
        raise
    return (*sockets, Endpoints(host, *ports))


def _bind(socket: zmq.Socket[bytes], host: str, port: int) -> int:
    address = f"tcp://{host}:{port or '*'}"
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        raise ConfigError(
            f"network.bind: cannot listen on {address}: {error.strerror}; another learner may be running there. "
            "Choose another --bind, or port 0 for three free ports"
        ) from None
    endpoint: str = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return int(endpoint.rsplit(":", 1)[1])


def connect_control(ctx: zmq.Context[zmq.Socket[bytes]], address: str, identity: bytes) -> zmq.Socket[bytes]:
    """Connect a collector's DEALER. ZeroMQ reconnects by itself, with back-off up to 2 s."""
    socket = ctx.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, identity)
    socket.set_hwm(CONTROL_HIGH_WATER)
    return _connect(socket, address)


def watch_disconnects(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """Return a socket that becomes readable each time an established connection of ``socket`` is lost."""
    return socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)


def connect_rollouts(ctx: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    """Connect a collector's PUSH. It queues nothing while no learner is connected."""
    socket = ctx.socket(zmq.PUSH)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.set_hwm(ROLLOUT_HIGH_WATER)
    return _connect(socket, address)


def connect_weights(ctx: zmq.Context[zmq.Socket[bytes]], address: str, topic: bytes) -> zmq.Socket[bytes]:
    """Connect a collector's SUB to one topic."""
    socket = ctx.socket(zmq.SUB)
    socket.set_hwm(WEIGHTS_HIGH_WATER)
    socket.setsockopt(zmq.SUBSCRIBE, topic)
    return _connect(socket, address)


def _connect(socket: zmq.Socket[bytes], address: str) -> zmq.Socket[bytes]:
    socket.setsockopt(zmq.IPV6, int(_only_ipv6(split_address(address, "address")[0])))
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)  # notices a host that vanished without closing its connections
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30000)  # a transfer longer than this would be cut (libzmq #2709)
    socket.connect(address)
    return socket


def _only_ipv6(host: str) -> bool:
    """Whether ``host`` has no IPv4 address. ZeroMQ tries one family only, and learners mostly listen on IPv4."""
    try:
        found = getaddrinfo(host.strip("[]"), None)
    except OSError:
        return ":" in host  # not known yet: ZeroMQ resolves it again at every attempt
    return all(family == AF_INET6 for family, *_ in found)


def _keep_freed_blocks() -> None:
    """Let glibc keep freed 1 MiB blocks: mapping each received frame anew was measured to cost 40 % of the rate."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # not glibc
    mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD of <malloc.h>
    mallopt(mmap_threshold, 32 << 20)
    mallopt(trim_threshold, 256 << 20)
