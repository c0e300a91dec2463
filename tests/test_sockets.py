from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zmq
from helpers_unit import receive, until

from appo_common import sockets
from appo_common.errors import ConfigError
from appo_common.layout import FRAME_BYTES


class Wire:
    """Makes sockets through the module under test, and keeps them until the end."""

    def __init__(self) -> None:
        self.ctx = sockets.context()
        self._kept: list[Any] = []

    def bind(self, port: int = 0, host: str = "127.0.0.1") -> tuple[Any, Any, Any, sockets.Endpoints]:
        control, rollouts, weights, ends = sockets.bind_learner(self.ctx, host, port)
        self._kept += (control, rollouts, weights)
        return control, rollouts, weights, ends

    def keep(self, made: Any) -> Any:
        self._kept.append(made)
        return made

    def push(self, port: int, host: str = "127.0.0.1") -> Any:
        return self.keep(sockets.connect_rollouts(self.ctx, f"tcp://{host}:{port}"))

    def close(self) -> None:
        while self._kept:
            self._kept.pop().close(linger=0)

    def bind_soon(self, port: int) -> sockets.Endpoints:
        """Bind as soon as the ports are free: ZeroMQ closes in the background."""

        def attempt() -> sockets.Endpoints | None:
            try:
                return self.bind(port)[3]
            except ConfigError:
                return None

        return until(attempt, lambda: None, "the ports to be free")


def three_free_ports() -> int:
    """A base port whose two successors are free as well, below those that connections are given."""
    for port in np.random.default_rng().integers(15_000, 30_000, size=100):
        probes = [socket.socket() for _ in range(3)]
        try:
            for offset, probe in enumerate(probes):
                probe.bind(("127.0.0.1", int(port) + offset))
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
        return int(port)
    raise AssertionError("no three consecutive ports are free on this host")


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()
    made.ctx.term()


def test_a_port_stands_for_itself_and_the_next_two(wire: Wire) -> None:
    port = three_free_ports()
    *bound, ends = wire.bind(port)
    assert (ends.control_port, ends.rollout_port, ends.weights_port) == (port, port + 1, port + 2)
    assert ends.control == f"tcp://127.0.0.1:{port}"
    assert [each.type for each in bound] == [zmq.ROUTER, zmq.PULL, zmq.XPUB]


def test_port_zero_takes_three_free_ports(wire: Wire) -> None:
    first, second = wire.bind()[3], wire.bind()[3]
    ports = [port for ends in (first, second) for port in (ends.control_port, ends.rollout_port, ends.weights_port)]
    assert len(set(ports)) == 6
    assert min(ports) > 0


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_port_in_use_is_a_configuration_error_and_frees_the_others(wire: Wire, taken: int) -> None:
    port = three_free_ports()
    blocker = wire.keep(wire.ctx.socket(zmq.PULL))
    blocker.bind(f"tcp://127.0.0.1:{port + taken}")
    with pytest.raises(ConfigError) as caught:
        wire.bind(port)
    text = str(caught.value)
    assert f"cannot listen on tcp://127.0.0.1:{port + taken}: Address already in use" in text
    assert "network.bind" in text
    assert "--bind" in text
    blocker.close(linger=0)
    assert wire.bind_soon(port).control_port == port


def test_an_address_of_another_host_is_a_configuration_error(wire: Wire) -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on tcp://192\.0\.2\.1"):  # TEST-NET-1: nobody has it
        wire.bind(0, "192.0.2.1")


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("tcp://127.0.0.1:5555", ("127.0.0.1", 5555)),
        ("tcp://learner-host:1", ("learner-host", 1)),
        ("tcp://[::1]:5555", ("[::1]", 5555)),
        ("tcp://0.0.0.0:0", ("0.0.0.0", 0)),
        ("tcp://host:65535/", ("host", 65535)),
    ],
)
def test_an_address_is_split_into_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert sockets.split_address(address, "--connect") == parts


@pytest.mark.parametrize(
    "address",
    [
        *("", "host", "host:5555", "tcp://host", "tcp://host:", "tcp://:5555", "tcp://host:port", "tcp://host:65536"),
        *("tcp://host:-1", "udp://host:5555", "ipc:///tmp/x", "tcp://host:5555/path", "tcp://[::1:5555", "5555"),
    ],
)
def test_anything_else_is_refused_with_the_place_the_value_and_an_example(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sockets.split_address(address, "--connect")
    text = str(caught.value)
    assert text.startswith(f"--connect = {address!r}: ")
    assert "tcp://HOST:PORT" in text


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_learner_is_heard_on_all_three_sockets(wire: Wire, host: str) -> None:
    control, rollouts, weights, ends = wire.bind(0, host)
    dealer = wire.keep(sockets.connect_control(wire.ctx, ends.control, b"me"))
    push = wire.push(ends.rollout_port, host)
    sub = wire.keep(sockets.connect_weights(wire.ctx, f"tcp://{host}:{ends.weights_port}", sockets.TCP_TOPIC))
    dealer.send(b"hello")
    assert receive(control) == [b"me", b"hello"]
    control.send_multipart([b"me", b"welcome"])
    assert receive(dealer) == [b"welcome"]
    assert receive(weights) == [b"\x01" + sockets.TCP_TOPIC]
    weights.send_multipart([sockets.SHM_TOPIC, b"not for it"])
    weights.send_multipart([sockets.TCP_TOPIC, b"for it"])
    assert receive(sub) == [sockets.TCP_TOPIC, b"for it"]
    assert push.poll(10_000, zmq.POLLOUT)  # IMMEDIATE: nothing can be queued before the connection stands
    push.send_multipart([b"header", bytes(FRAME_BYTES)])
    assert [len(frame) for frame in receive(rollouts)] == [6, FRAME_BYTES]


def test_a_push_without_a_learner_queues_nothing(wire: Wire) -> None:
    push = wire.push(three_free_ports())
    with pytest.raises(zmq.Again):
        push.send(b"rollout", zmq.NOBLOCK)


def test_an_oversized_frame_does_not_arrive_and_the_next_collector_is_heard(wire: Wire) -> None:
    _, rollouts, _, ends = wire.bind()
    hostile, honest = wire.push(ends.rollout_port), wire.push(ends.rollout_port)
    assert hostile.poll(10_000, zmq.POLLOUT)
    hostile.send(bytes(sockets.MAX_FRAME_BYTES + 1))
    assert honest.poll(10_000, zmq.POLLOUT)
    honest.send(b"fits")
    assert receive(rollouts) == [b"fits"]


def test_a_socket_that_cannot_deliver_holds_up_the_exit_for_a_second_at_most(wire: Wire) -> None:
    nowhere = three_free_ports()
    dealer = wire.keep(sockets.connect_control(wire.ctx, f"tcp://127.0.0.1:{nowhere}", b"me"))
    dealer.send(b"last words")
    started = time.monotonic()
    dealer.close()
    wire.ctx.term()
    assert time.monotonic() - started < 3.0
