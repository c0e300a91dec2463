"""The fleet without a socket: messages in, messages out."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from pathlib import Path

import numpy as np
import pytest
from helpers_fleet import FIRST, SPEC, TERMS, Peer, make_fleet, refused
from helpers_unit import ENDPOINTS, contract, env_spec, heartbeat, hello, learner_run, weights

from appo_common.errors import ProtocolError
from appo_common.messages import (
    Admit,
    Alive,
    Attached,
    Bye,
    Credit,
    Message,
    Ready,
    Reject,
    Rejoin,
    Stop,
    WantWeights,
    WeightsHeader,
    Welcome,
)
from appo_common.models import checksum
from appo_learner import fleet as fleet_module
from appo_learner.fleet import Fleet

# ------------------------------------------------------------------------------------------------ joining


def test_the_conversation_of_the_first_collector_of_a_run(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, opened=False, env={"num_envs": 16, "overrides": {"episode_s": 3}})
    peer = Peer(fleet, shm=True)
    (welcome,) = peer.say(hello("a", num_envs=None))
    assert isinstance(welcome, Welcome)
    assert (welcome.run_id, welcome.incarnation, welcome.collector) == ("run", "now", 0)
    assert welcome.seed == [7, 0, 0]
    assert welcome.env == {
        **{"name": "mujoco:cartpole-swingup", "num_envs": 16},
        **{"overrides": {"episode_s": 3}, "action_scaling": None},
    }
    assert welcome.train.keys() == {"num_steps_per_env", "obs_groups", "actor"}
    assert (welcome.rollout_port, welcome.weights_port) == (5556, 5557)
    assert fleet.members[0].num_envs == 16
    assert fleet.first_spec is None

    assert peer.say(Ready(spec=SPEC)) == []
    assert fleet.first_spec == SPEC
    assert fleet.collecting == []
    (outgoing,) = fleet.open(TERMS, FIRST)
    admit = outgoing.message
    assert isinstance(admit, Admit)
    assert admit.fingerprint == peer.layout.fingerprint
    assert admit.obs_groups == TERMS.obs_groups
    assert admit.weights == WeightsHeader(
        incarnation="now", version=0, crc32=checksum(FIRST.block), nbytes=FIRST.block.nbytes, slot=None
    )
    block = np.zeros_like(FIRST.block)
    TERMS.actor.join(outgoing.frames, into=block)
    assert np.array_equal(block, FIRST.block)

    assert len(list(tmp_path.iterdir())) == 1
    peer.index = 0
    peer.attach(admit)
    assert peer.credits == [0, 1]
    assert list(tmp_path.iterdir()) == [], "mapped by both, its name is of no use any more"
    assert [member.index for member in fleet.collecting] == [0]


def test_a_second_collector_may_be_ready_before_the_run_is_open(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, opened=False)
    for uid, spec in (("a", SPEC), ("b", env_spec(9))):
        peer = Peer(fleet, uid, spec)
        peer.say(hello(uid))
        peer.say(Ready(spec=spec))
    assert fleet.first_spec == SPEC
    admitted = {letter.identity: letter.message for letter in fleet.open(TERMS, FIRST)}
    assert {type(message) for message in admitted.values()} == {Admit}
    assert admitted[b"a"].fingerprint != admitted[b"b"].fingerprint
    assert fleet.members[1].num_envs == 9


def test_a_collector_whose_spec_does_not_fit_is_told_both_values(tmp_path: Path) -> None:
    fleet = Fleet(learner_run(tmp_path), ENDPOINTS)
    wide = env_spec(observations={"policy": {"shape": [48]}, "privileged": {"shape": [2]}})
    fleet.open(*contract(wide))
    narrow = env_spec(observations={"policy": {"shape": [45]}, "privileged": {"shape": [2]}})
    peer = Peer(fleet, spec=narrow)
    peer.say(hello("a"))
    assert peer.say(Ready(spec=narrow)) == [
        Reject(reason="observation group 'policy': this run has (48,) float32, the collector offers (45,) float32")
    ]
    assert fleet.members == []
    assert list(tmp_path.iterdir()) == []


def test_a_repeated_hello_is_answered_alike(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path)
    peer = Peer(fleet)
    assert peer.say(hello("a")) == peer.say(hello("a"))
    assert len(fleet.members) == 1


def test_a_run_that_is_full_says_which_key_to_change(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, network={"max_collectors": 1})
    Peer(fleet, "a").join()
    assert Peer(fleet, "b").say(hello("b")) == [Reject(reason="the run is full: network.max_collectors = 1")]
    fleet.retire(fleet.members[0], "left")
    Peer(fleet, "b").join()


def test_every_collector_has_its_own_index_and_seed_and_gets_them_again(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path)
    a, b, c = (Peer(fleet, uid).join() for uid in "abc")
    assert [peer.index for peer in (a, b, c)] == [0, 1, 2]
    fleet.retire(b.member, "was silent")
    assert Peer(fleet, "d").join().index == 1, "the lowest free index"
    fleet.retire(a.member, "was silent")
    fleet.retire(c.member, "was silent")
    (welcome,) = Peer(fleet, "c").say(hello("c"))
    assert isinstance(welcome, Welcome)
    assert (welcome.collector, welcome.seed) == (2, [7, 2, 0]), "its own, although 0 is free"
    assert Peer(fleet, "b").join().index == 0, "its own is taken"


@pytest.mark.parametrize("answer", [b"\0" * 16, None])
def test_a_collector_that_cannot_prove_the_nonce_is_on_tcp(
    tmp_path: Path, answer: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = make_fleet(tmp_path)
    peer = Peer(fleet)
    peer.say(hello("a"))
    peer.say(Ready(spec=SPEC))
    reason = "" if answer else "cannot open /x: No such file or directory"
    with caplog.at_level("INFO", "appo_learner"):
        (credit,) = peer.say(Attached(nonce=answer, reason=reason))
    assert isinstance(credit, Credit)
    assert credit.path == "tcp"
    assert list(tmp_path.iterdir()) == []
    why = reason or "the nonce it read is not the one written here"
    assert f"joined over tcp, because: {why}" in caplog.text


def test_without_room_for_shared_memory_the_collector_is_told_why_and_joins_over_tcp(tmp_path: Path) -> None:
    peer = Peer(make_fleet(tmp_path / "missing"))
    peer.say(hello("a"))
    (admit,) = peer.say(Ready(spec=SPEC))
    assert isinstance(admit, Admit)
    assert admit.offer is None
    assert re.fullmatch(r"cannot create .*/missing/appo-\S+: No such file or directory", admit.offer_reason)
    assert peer.attach(admit).credits == [0, 1]


def test_ready_twice_leaves_no_file_behind(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path)
    peer = Peer(fleet)
    peer.say(hello("a"))
    peer.say(Ready(spec=SPEC))
    with contextlib.suppress(ProtocolError):  # to refuse it is as good
        peer.say(Ready(spec=SPEC))
    fleet.retire(peer.member, "left")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("num_envs", "directory"), [(2**60, "."), (2**40, "missing")])
def test_a_collector_beyond_all_memory_does_not_end_the_run(tmp_path: Path, num_envs: int, directory: str) -> None:
    """Whatever the learner answers, nothing but ProtocolError may be raised by what a peer says."""
    peer = Peer(make_fleet(tmp_path / directory), spec=env_spec(num_envs))
    peer.say(hello("a"))
    with contextlib.suppress(ProtocolError):
        (answer,) = peer.say(Ready(spec=peer.spec))
        if isinstance(answer, Admit):
            peer.index = 0
            peer.attach(answer)
            peer.fleet.on_rollout(peer.next_header(), [])


@pytest.mark.parametrize(
    "message", [Ready(spec=SPEC), Attached(nonce=None, reason=""), heartbeat(), WantWeights(version=1)]
)
def test_a_stranger_is_asked_to_join(tmp_path: Path, message: Message) -> None:
    (answer,) = Peer(make_fleet(tmp_path)).say(message)
    assert isinstance(answer, Rejoin)


def test_a_strangers_bye_needs_no_answer(tmp_path: Path) -> None:
    assert Peer(make_fleet(tmp_path)).say(Bye(reason="", rollouts_sent=3)) == []


def test_messages_out_of_turn_are_refused(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path)
    peer = Peer(fleet)
    peer.say(hello("a"))
    assert refused(peer.say, Attached(nonce=None, reason="")) == "unexpected kind"
    assert refused(peer.say, WantWeights(version=0)) == "unexpected kind"
    assert refused(peer.say, Alive(version=1)) == "unexpected kind"
    peer.index = 0
    assert refused(fleet.on_rollout, peer.header(), []) == "no such collector"
    (admit,) = peer.say(Ready(spec=SPEC))
    assert isinstance(admit, Admit)
    peer.attach(admit)
    assert refused(peer.say, Attached(nonce=None, reason="")) == "unexpected kind"


# ---------------------------------------------------------------------------------- beats, weights, leaving


def test_a_heartbeat_is_answered_with_the_newest_version_and_shown(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path)
    peer = Peer(fleet).join()
    fleet.publish(weights(4, FIRST))
    assert peer.say(heartbeat(2, policy_version=3, env_steps=640, state="waiting")) == [Alive(version=4)]
    (view,) = fleet.views()
    assert (view.index, view.path, view.state, view.policy_version) == (0, "tcp", "waiting", 3)
    assert (view.env_steps, view.rollouts_sent, view.rollouts_in_flight) == (640, 2, 2)


def test_weights_can_be_asked_for(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path)
    Peer(fleet).join()
    newest = weights(6, FIRST)
    fleet.publish(newest)
    (letter,) = fleet.on_message(b"a", WantWeights(version=5))
    assert letter.message == newest.header()
    assert b"".join(bytes(frame) for frame in letter.frames) == newest.block.tobytes()[: sum(map(len, letter.frames))]


def test_published_weights_lie_in_the_slot_of_their_version(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path)
    peer = Peer(fleet, shm=True).join()
    Peer(fleet, "b").join()
    assert peer.segment is not None
    for version in range(1, 5):
        newest = weights(version, FIRST)
        fleet.publish(newest)
        assert newest.slot == version % 3
        assert (peer.segment[1].weights(peer.segment[0], newest.slot) == version).all()
        if version > 1:
            before = peer.segment[1].weights(peer.segment[0], (version - 1) % 3)
            assert (before == version - 1).all(), "the version before must stay for a slow reader"


def test_stop_reaches_everybody(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path)
    for uid in "ab":
        Peer(fleet, uid).join()
    assert {letter.identity: letter.message for letter in fleet.stop("over")} == {
        b"a": Stop(reason="over"),
        b"b": Stop(reason="over"),
    }


def test_silence_ends_a_membership_and_reclaims_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = make_fleet(tmp_path)
    peer, other = Peer(fleet, "a").join(), Peer(fleet, "b").join()
    waiting = peer.deliver()
    peer.say(heartbeat(2))
    clock = time.monotonic()
    monkeypatch.setattr(fleet_module.time, "monotonic", lambda: clock + 9.0)
    other.say(heartbeat(0))
    fleet.expire()
    assert len(fleet.members) == 2
    monkeypatch.setattr(fleet_module.time, "monotonic", lambda: clock + 10.5)
    fleet.expire()
    assert [member.index for member in fleet.members] == [1]
    assert fleet.books["a"].as_dict() == {"sent": 2, "trained": 0, "discarded": 0, "in_flight": 1, "lost": 1}
    assert fleet.settle([waiting]) == [], "nobody is there to take the credit"
    assert fleet.books["a"].as_dict() == {"sent": 2, "trained": 1, "discarded": 0, "in_flight": 0, "lost": 1}
    assert isinstance(peer.say(heartbeat(2))[0], Rejoin)


def test_a_collector_whose_rollouts_were_all_lost_is_not_left_without_credits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection was reset with everything in its buffers: no later rollout can show the gap."""
    fleet = make_fleet(tmp_path)
    peer = Peer(fleet).join()
    for _ in range(2):
        peer.next_header()
    clock = time.monotonic()
    answers: set[type[Message]] = set()
    for second in range(60):  # six times network.heartbeat_timeout_s
        monkeypatch.setattr(fleet_module.time, "monotonic", lambda now=clock + second: now)
        answers |= {type(message) for message in peer.say(heartbeat(2))}
        answers |= {type(letter.message) for letter in fleet.expire() or ()}
    assert answers & {Credit, Rejoin}


def test_a_collector_that_cannot_be_reached_may_still_have_said_goodbye(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = make_fleet(tmp_path)
    leaver, vanished = Peer(fleet, "leaver").join(), Peer(fleet, "vanished").join()
    with caplog.at_level(logging.INFO):
        for peer in (leaver, vanished):
            fleet.cannot_reach(peer.uid.encode(), "is out of reach of ALIVE (No route)")
        assert leaver.say(Bye(reason="its environment broke", rollouts_sent=0)) == []  # was on its way
        fleet.retire_unreachable()
    assert fleet.members == []
    assert "left: its environment broke" in caplog.text
    assert caplog.text.count("is out of reach of ALIVE (No route)") == 1


def test_a_collector_that_joins_again_is_within_reach(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path)
    peer = Peer(fleet).join()
    fleet.cannot_reach(peer.uid.encode(), "is out of reach")
    peer.join()
    fleet.retire_unreachable()
    assert [member.identity for member in fleet.members] == [b"a"]
