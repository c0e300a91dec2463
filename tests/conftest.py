"""Fixtures of the end-to-end tests: real processes, which are gone when the test is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers_e2e import Launcher, Learner, launching, sync_run


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    """Start programs for one test."""
    with launching(tmp_path) as launcher:
        yield launcher


@pytest.fixture(scope="module")
def shared_launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Start programs that several tests of a file look at."""
    with launching(tmp_path_factory.mktemp("shared")) as launcher:
        yield launcher


@pytest.fixture(scope="session")
def sync_reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Learner]:
    """A synchronous run with seed 1 that has ended; both collectors used shared memory."""
    with launching(tmp_path_factory.mktemp("reference")) as launch:
        learner = sync_run(launch, seed=1)
        for _ in range(2):
            launch.collector(learner.address)
        assert learner.exit_code(55.0) == 0, learner.text
        yield learner
