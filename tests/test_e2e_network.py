"""Learner and collectors on network namespaces of their own, and shared memory that is there or is not."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers_e2e import START_S, SYNC_UPDATES, Launcher, Learner, assert_books_balance, make_config, sha256, sync_run

ANYWHERE = "tcp://0.0.0.0:0"
PRIVATE_SHM = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")
"""Runs a program with a /dev/shm that nobody else sees, as a container has it."""


def command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=10)


def permitted() -> bool:
    """Whether this user may make namespaces."""
    try:
        name = f"e2e-{uuid.uuid4().hex[:6]}"
        command("ip", "netns", "add", name)
        command("ip", "netns", "delete", name)
        command("unshare", "--mount", "true")
    except (OSError, subprocess.SubprocessError):
        return False
    return True


pytestmark = pytest.mark.skipif(not permitted(), reason="needs the right to make network and mount namespaces")


class Hosts:
    """A learner's namespace with a cable (a veth pair, no bridge) to each of its collectors' namespaces."""

    def __init__(self, cleanup: ExitStack) -> None:
        self._cleanup = cleanup
        self._tag = uuid.uuid4().hex[:5]
        self._count = 0
        self.learner = self._namespace("l")

    def collector(self) -> tuple[tuple[str, ...], str]:
        """Make another host; return the prefix that runs a program there, and the learner's address seen from it."""
        self._count += 1
        name = self._namespace(f"c{self._count}")
        here, there = f"v{self._tag}l{self._count}", f"v{self._tag}c{self._count}"
        command("ip", "link", "add", here, "netns", self.learner, "type", "veth", "peer", "name", there, "netns", name)
        for space, link, last in ((self.learner, here, 1), (name, there, 2)):
            command("ip", "-n", space, "address", "add", f"10.203.{self._count}.{last}/24", "dev", link)
            command("ip", "-n", space, "link", "set", link, "up")
        return self.on(name), f"10.203.{self._count}.1"

    def on(self, name: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", name)

    def _namespace(self, role: str) -> str:
        name = f"e2e-{self._tag}-{role}"
        command("ip", "netns", "add", name)
        self._cleanup.callback(command, "ip", "netns", "delete", name)
        command("ip", "-n", name, "link", "set", "lo", "up")
        return name


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with ExitStack() as cleanup:
        yield Hosts(cleanup)


def joined(learner: Learner, name: str) -> str:
    return learner.says(rf"\({name}, \d+ envs\) joined over")


def test_collectors_on_two_other_hosts_give_the_same_result_over_tcp(
    hosts: Hosts, launch: Launcher, sync_reference: Learner
) -> None:
    """One is told to use TCP, the other finds out that the learner's shared memory is not its own."""
    learner = sync_run(launch, 1, "--insecure", bind=ANYWHERE, prefix=hosts.on(hosts.learner))
    port = learner.endpoint()["control_port"]
    (one, one_address), (two, two_address) = hosts.collector(), hosts.collector()
    assert one_address != two_address
    told = launch.collector(f"tcp://{one_address}:{port}", "--transport", "tcp", prefix=one)
    found = launch.collector(f"tcp://{two_address}:{port}", prefix=(*two, *PRIVATE_SHM))
    assert learner.exit_code() == 0, learner.text
    assert (told.exit_code(5.0), found.exit_code(5.0)) == (0, 0)
    line = joined(learner, told.name)
    assert "over tcp" in line
    assert "--transport tcp" in line
    line = joined(learner, found.name)
    assert "over tcp" in line
    assert "cannot open /dev/shm/appo-" in line
    assert "No such file" in line
    assert sha256(learner.checkpoint(SYNC_UPDATES)) == sha256(sync_reference.checkpoint(SYNC_UPDATES))
    assert [book["trained"] for book in assert_books_balance(learner).values()] == [SYNC_UPDATES] * 2


def test_the_nonce_decides_and_not_the_host_name_or_the_address(hosts: Hosts, launch: Launcher) -> None:
    """Across two network namespaces that share /dev/shm, rollouts go through it."""
    learner = launch.learner(
        make_config(), "--insecure", "--max-iterations", "5", bind=ANYWHERE, prefix=hosts.on(hosts.learner)
    )
    there, address = hosts.collector()
    collector = launch.collector(f"tcp://{address}:{learner.endpoint()['control_port']}", prefix=there)
    assert learner.exit_code() == 0, learner.text
    assert "over shm" in joined(learner, collector.name)
    assert collector.exit_code(5.0) == 0


def test_told_to_use_shared_memory_that_is_not_there_a_collector_refuses(launch: Launcher) -> None:
    learner = launch.learner(make_config(), "--max-iterations", "100")
    strict = launch.collector(learner.address, "--transport", "shm", prefix=PRIVATE_SHM)
    assert strict.exit_code() == 3, strict.text
    assert "--transport shm" in strict.text
    assert "use auto or tcp" in strict.text


def test_shared_memory_that_is_too_small_gives_tcp_and_says_what_to_enlarge(launch: Launcher, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    command("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small))
    try:
        # 3 slots of 16 steps x 8 environments x 1024 floats do not fit into 1 MB; training must go on all the same.
        config = make_config(
            env={"num_envs": 8, "overrides": {"width": 1024}},
            train={"num_steps_per_env": 16},
            learner={"max_in_flight": 3},
            network={"shm_dir": str(small)},
        )
        learner = launch.learner(config, "--local-collectors", "1", "--max-iterations", "5")
        assert learner.exit_code(START_S) == 0, learner.text
        line = joined(learner, "local-0")
        assert "over tcp, because" in line
        assert str(small) in line
        assert "MB free" in line
        assert "needs" in line
        assert "shm_size" in line
        assert os.listdir(small) == []
    finally:
        command("umount", "--lazy", str(small))
