"""Programs of the end-to-end tests, built from the real parts: ``python -m e2e_programs <name> ...``.

``slow-learner``: appo-learner whose every update takes longer; notes the state of the fleet.
``stamp-learner``, ``stamp-collector``: a run without training, in which every block is filled with its own number.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from appo_collector.control import RunEnded
from appo_collector.session import Identity, Session
from appo_common import log, sockets
from appo_common.config import RunConfig
from appo_common.layout import Field, Layout, rollout_layout
from appo_common.messages import Episodes, RolloutHeader
from appo_common.process import StopRequest
from appo_common.spec import EnvSpec, ObservationGroup
from appo_learner.inbox import Selection
from appo_learner.mailroom import Mailroom
from appo_learner.member import Rollout
from appo_learner.terms import Contract, Run, Weights

GROUPS = {"actor": ["policy"], "critic": ["policy", "picture"]}
ACTOR = Layout([Field("weights", "int64", (200_000,)), Field("count", "int64", (3,))])
"""1.6 MB: two frames, and long enough to copy that a torn copy would happen."""
VERSIONS_PER_BATCH = 8
"""More than a segment has slots for: each is written again while collectors copy it."""


def spec() -> EnvSpec:
    """3.3 MB in a rollout of 16 steps, with truncated episodes and a group of bytes."""
    return EnvSpec(
        name="stamp",
        observations={
            "policy": ObservationGroup(shape=[1500]),
            "picture": ObservationGroup(shape=[16, 16], dtype="uint8"),
        },
        num_actions=4,
        num_envs=32,
        episode_limit=5,
    )


def number_of(collector: int, seq: int) -> int:
    """The stamp of a rollout; float32 holds it exactly."""
    return 1_000_000 * (collector + 1) + seq


def final_count_of(stamp: int, rows: int) -> int:
    return stamp % (rows + 1)


def expected(name: str, array: np.ndarray, stamp: int) -> Any:
    """What every entry of the field ``name`` is in the rollout with this stamp."""
    if name == "final_index":
        return stamp % 16
    if array.dtype == np.bool_:
        return bool(stamp % 2)
    return stamp % 251 if array.dtype == np.uint8 else stamp


def stamp_collector(address: str, transport: str, name: str) -> None:
    """Fill rollouts as fast as credits come, and check every block of weights."""
    log.set_up("info")
    ctx = sockets.context()
    session = Session(ctx, address, Identity(name, None, transport), StopRequest().install())
    taken = 0
    try:
        session.hello()
        session.subscribe(ACTOR)
        session.ready(spec(), rollout_layout(spec(), 16, GROUPS))
        while True:
            slot, block = session.next_slot()
            if block is not None:
                check_weights(block, session.weights.version)
                taken += 1
            stamp = number_of(session.welcome.collector, session.sender.sent)
            views = session.views(slot)
            # No look at the sockets in between: the notice of the newest weights grows old, as in a slow rollout,
            # so that its slot is often being written again when it is copied.
            for value in (0, stamp):
                for field, array in views.items():
                    array.fill(expected(field, array, value))
            session.service()
            count = final_count_of(stamp, len(views["final_index"]))
            episodes = Episodes(returns=[float(stamp)], lengths=[1], timeouts=[True], terms={})
            session.send(slot, session.weights.version, count, episodes, {})
    except RunEnded as ended:
        session.bye(str(ended))
        print(f"blocks={taken} torn={session.weights.rejected} path={session.path} sent={session.sender.sent}")
    finally:
        session.close()
        ctx.destroy(linger=0)


def check_weights(block: np.ndarray, version: int) -> None:
    """Fail unless every number of the block is its version."""
    for name, array in ACTOR.views(block).items():
        if not (array == version).all():
            raise AssertionError(f"version {version}: {name} holds {np.unique(array)[:5]}")


def stamp_weights(incarnation: str, version: int) -> Weights:
    block = np.zeros(ACTOR.nbytes, dtype=np.uint8)
    for array in ACTOR.views(block).values():
        array.fill(version)
    return Weights(incarnation, version, block)


def check_rollout(rollout: Rollout) -> None:
    """Fail unless every entry in use is the one that this collector's rollout of this number must hold."""
    header: RolloutHeader = rollout.header
    stamp = number_of(header.collector, header.seq)
    if header.final_count != final_count_of(stamp, len(rollout.views["final_index"])):
        raise AssertionError(f"rollout {stamp}: final_count {header.final_count}")
    if header.episodes.returns != [float(stamp)]:
        raise AssertionError(f"rollout {stamp}: episodes {header.episodes}")
    for name, array in rollout.views.items():
        used = array[: header.final_count] if name.startswith("final_") else array
        wrong = used != expected(name, array, stamp)
        if wrong.any():
            raise AssertionError(f"rollout {stamp}: {name} holds {np.unique(used)[:5]} ({wrong.sum()} of {used.size})")


def stamp_learner(config: str, folder: str, rollouts: int) -> None:
    """Check rollouts twice, some time apart, and publish several versions for every batch."""
    log.set_up("info")
    run = Run(RunConfig.model_validate(json.loads(config)), "stamp", secrets.token_hex(8))
    mailroom = Mailroom(run, "127.0.0.1", 0)
    (Path(folder) / "endpoint.json").write_text(json.dumps({"control": mailroom.endpoints.control}))
    mailroom.start()
    try:
        while mailroom.first_spec() is None:
            mailroom.wait(0.2)
        version = 0
        mailroom.open(Contract(spec(), GROUPS, ACTOR, 16), stamp_weights(run.incarnation, version))
        held: list[Rollout] = []
        checked = 0
        while checked < rollouts:
            batch = mailroom.take(lambda waiting, _members: Selection(batch=list(waiting))).batch
            if not batch and not held:
                mailroom.wait(0.2)
                continue
            for rollout in (*held, *batch):  # those held are read again while their collectors write on
                check_rollout(rollout)
            for number in range(VERSIONS_PER_BATCH):
                version += 1
                mailroom.publish(stamp_weights(run.incarnation, version), [] if number else held)
            checked += len(held)
            held = batch
        mailroom.discard(held, "the test is over")
    finally:
        mailroom.close("the test is over")
    books = {f"{book.index} {book.name}": book.as_dict() for book in mailroom.books()}
    result = {"checked": checked, "version": version, "dropped": dict(mailroom.dropped()), "books": books}
    (Path(folder) / "summary.json").write_text(json.dumps(result))


def slow_learner(update_s: float, notes: str, arguments: list[str]) -> None:
    """appo-learner, with updates that take ``update_s`` seconds longer."""
    from appo_learner import cli, trainer

    quick = trainer.Trainer._update
    process = psutil.Process()

    def slow(self: Any, rollouts: Any) -> Any:
        threading.Event().wait(update_s)
        fleet = [
            {"state": view.state, "in_flight": view.rollouts_in_flight, "memory_mb": view.memory_mb}
            for view in self._mailroom.views()
        ]
        with Path(notes).open("a") as file:
            file.write(json.dumps({"memory_mb": process.memory_info().rss / 1e6, "fleet": fleet}) + "\n")
        return quick(self, rollouts)

    trainer.Trainer._update = slow  # type: ignore[method-assign]
    cli.main(arguments)


if __name__ == "__main__":
    name, *words = sys.argv[1:]
    if name == "slow-learner":
        slow_learner(float(words[0]), words[1], words[2:])
    elif name == "stamp-learner":
        stamp_learner(words[0], words[1], int(words[2]))
    else:
        stamp_collector(*words)
