"""What the learner tells of its own collectors."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from appo_learner.local_collectors import LocalCollectors
from appo_learner.metrics import CollectorView

VIEW = CollectorView(0, "local-0", "here", "shm", "collecting", 4, 1, 100, 10.0, 1, 1, 0, 0)
HANGS = "12:00:00 WARNING users:Env: step() has not returned for 10 s; it is at\n"


def test_what_a_collector_that_hangs_has_warned_of_is_repeated_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LocalCollectors(1, "tcp://127.0.0.1:9", tmp_path) as local:  # nobody listens there: it lives and waits
        local.check([])
        local.check([VIEW])
        (log,) = tmp_path.glob("*.log")
        local.check([])
        assert not caplog.records, "it has warned of nothing yet"
        with log.open("a") as file:
            file.write(HANGS)
        with caplog.at_level(logging.WARNING):
            local.check([VIEW])
            assert not caplog.records, "it is connected"
            local.check([])
            local.check([])
    assert [record.getMessage() for record in caplog.records] == [
        f"local collector 0 has warned: users:Env: step() has not returned for 10 s; it is at ({log})"
    ]
