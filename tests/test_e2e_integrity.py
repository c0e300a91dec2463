"""No rollout mixes two, and no block of weights mixes two versions, with everybody as fast as possible."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from helpers_e2e import Launcher, Learner, assert_books_balance, make_config, poll

PROGRAMS = (sys.executable, "-m", "e2e_programs")
COLLECTORS = 2


@pytest.mark.parametrize(("path", "rollouts"), [("shm", 2000), ("tcp", 500)])
def test_every_block_arrives_as_it_was_written(launch: Launcher, path: str, rollouts: int) -> None:
    config = json.dumps(make_config(learner={"max_in_flight": 4}, env={"name": "stamp"}))
    folder = launch.folder / "stamp"
    folder.mkdir()
    command = [*PROGRAMS, "stamp-learner", config, str(folder), str(rollouts)]
    learner = Learner("learner", command, launch.folder, launch.environment())
    learner.run_dir = folder
    launch.programs.append(learner)
    address = learner.address
    collectors = [
        launch.start(f"stamp-{number}", [*PROGRAMS, "stamp-collector", address, path, f"stamp-{number}"])
        for number in range(COLLECTORS)
    ]
    poll(lambda: not all(program.running for program in (learner, *collectors)), 50.0, "the end")
    assert all(program.running or program.exit_code() == 0 for program in collectors), learner.text + collectors[0].text
    assert learner.exit_code(10.0) == 0, learner.text
    assert [collector.exit_code(5.0) for collector in collectors] == [0] * COLLECTORS, "\n".join(
        collector.text for collector in collectors
    )

    result = learner.summary()
    assert result["checked"] >= rollouts
    assert result["dropped"] == {}
    books = assert_books_balance(learner)
    assert len(books) == COLLECTORS
    for book in books.values():
        assert book["trained"] > rollouts / 10, "one collector alone proves little"
        assert book["lost"] == 0
        assert book["discarded"] == book.get("discarded: the test is over", 0) + book.get("discarded: the run ended", 0)
    spoilt = 0
    for collector in collectors:
        said = re.search(r"blocks=(\d+) torn=(\d+) path=(\w+) sent=(\d+)", collector.text)
        assert said, collector.text
        blocks, torn, used, sent = said.groups()
        spoilt += int(torn)
        assert used == path
        assert int(sent) == books[_name(books, collector.name)]["sent"]
        assert int(blocks) > rollouts / 20, "weights were taken all along"
    assert path == "tcp" or spoilt > 0, "slots were overwritten while they were copied, or the test shows little"
    assert not list(Path("/dev/shm").glob(f"appo-{learner.pid}-*"))


def _name(books: dict[str, dict[str, int]], collector: str) -> str:
    return next(name for name in books if name.endswith(collector))
