"""What once hung a run, or cost it its last good checkpoint."""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgpack
import pytest
import torch
import zmq
from helpers_e2e import Launcher, make_config, poll

from appo_learner.checkpoint import find, load


class Relay:
    """Forwards TCP connections to a port, until they are cut."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._closed = False
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Reset every connection; what is on the way is lost. New ones are accepted."""
        for ends in self._pairs:
            for end in ends:
                with suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closed:
            try:
                ends = (self._listener.accept()[0], socket.create_connection(self._target))
            except OSError:
                return
            self._pairs.append(ends)
            threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, left: socket.socket, right: socket.socket) -> None:
        with left, right, suppress(OSError, ValueError):
            while True:
                for source in select.select([left, right], [], [])[0]:
                    data = source.recv(65536)
                    if not data:
                        return
                    (right if source is left else left).sendall(data)


@contextmanager
def relayed(address: str) -> Iterator[Relay]:
    relay = Relay(("127.0.0.1", int(address.rsplit(":", 1)[1])))
    try:
        yield relay
    finally:
        relay.close()


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_cut_of_the_control_connection_alone_does_not_stop_the_run(launch: Launcher, mode: str) -> None:
    """A credit may be on the way when the connection is reset; nobody would ever repeat it."""
    learner = launch.learner(make_config(learner={"mode": mode, "max_in_flight": 1}))
    with relayed(learner.address) as relay:
        collector = launch.collector(relay.address)
        for cut in range(1, 6):
            learner.reaches(5 * cut)
            relay.cut()
            learner.advances(5)
        assert collector.running
        assert "joining again" in collector.text


def test_rewards_that_overflow_do_not_spoil_the_newest_checkpoint(launch: Launcher) -> None:
    train = {"save_interval": 2, "algorithm": {"num_mini_batches": 2}}
    learner = launch.learner(make_config(env={"overrides": {"huge_at": 60}}, train=train))
    launch.collector(learner.address)
    assert learner.exit_code() == 1
    assert "failed" in learner.text
    assert "Last good checkpoint" in learner.text
    newest = load(find(learner.run_dir))
    assert all(torch.isfinite(value).all() for value in newest.state["actor_state_dict"].values())


def test_a_reset_that_takes_longer_than_the_heartbeat_timeout_is_waited_for(launch: Launcher) -> None:
    network = {"heartbeat_interval_s": 0.2, "heartbeat_timeout_s": 1.0}
    learner = launch.learner(make_config(env={"overrides": {"reset_s": 3.0}}, network=network))
    collector = launch.collector(learner.address)
    learner.reaches(3)
    assert "joining again" not in collector.text


def test_a_message_nested_without_end_is_dropped(launch: Launcher) -> None:
    learner = launch.learner(make_config(), "--local-collectors", "1")
    learner.reaches(1)
    nested: list[object] = []
    for _ in range(400):
        nested = [nested]
    with zmq.Context() as ctx, ctx.socket(zmq.DEALER) as stranger:
        stranger.connect(learner.address)
        for field in ("kind", "protocol"):
            stranger.send(msgpack.packb({"magic": "APPO", "protocol": 1, "kind": "HELLO", field: nested}))
        stranger.send(b"\x91" * 1000)
        poll(lambda: "not msgpack" in learner.text or "unknown kind" in learner.text, 20.0)
    learner.advances(3)


def test_a_run_continued_from_an_older_checkpoint_keeps_its_own_and_sets_the_newer_aside(launch: Launcher) -> None:
    train = {"save_interval": 2, "max_iterations": 10}
    first = launch.learner(make_config(train=train), "--local-collectors", "1")
    assert first.exit_code() == 0, first.text
    options = ("--resume", str(first.checkpoint(2)), "--max-iterations", "5", "--local-collectors", "1")
    second = launch.learner(None, *options, run_dir=first.run_dir)
    assert second.exit_code() == 0, second.text
    assert find(first.run_dir) == first.checkpoint(5)
    assert (first.run_dir / "checkpoints" / "model_10.pt.old").exists()


def test_a_step_that_outlasts_the_heartbeats_says_which_key_to_raise(launch: Launcher) -> None:
    network = {"heartbeat_interval_s": 0.3, "heartbeat_timeout_s": 1.0}
    learner = launch.learner(make_config(env={"overrides": {"step_s": 2.0}}, network=network))
    collector = launch.collector(learner.address)
    collector.says(r"WARNING .* for 2 s, longer than network\.heartbeat_timeout_s = 1 s; .* raise it", 30.0)
