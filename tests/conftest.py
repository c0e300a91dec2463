"""Fixtures: real processes, which are gone when the test is over, and a module as a user would write one."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture
def user_module(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a module ``users_robot`` with the given attributes where an import finds it."""

    def install(**attributes: Any) -> None:
        module = types.ModuleType("users_robot")
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, "users_robot", module)

    return install
