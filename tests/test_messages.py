from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from helpers_unit import env_spec, heartbeat, hello, rollout_header

from appo_common.errors import ProtocolError
from appo_common.messages import (
    KINDS,
    MAGIC,
    PROTOCOL_VERSION,
    Admit,
    Alive,
    Attached,
    Bye,
    Credit,
    Episodes,
    Message,
    Ready,
    Reject,
    Rejoin,
    SharedMemoryOffer,
    Stop,
    WantWeights,
    WeightsHeader,
    Welcome,
    expect,
    pack,
    unpack,
)

WEIGHTS = WeightsHeader(incarnation="now", version=3, crc32=2**32 - 1, nbytes=640, slot=None)
EPISODES = Episodes(
    returns=[1.5, -2.25], lengths=[7, 500], timeouts=[False, True], terms={"track": [1.0, -2.0], "torque": [0.5, -0.25]}
)
ONE_OF_EACH: list[Message] = [
    hello(),
    hello(num_envs=None),
    Ready(spec=env_spec(episode_limit=500, step_dt=0.02, reward_terms=["track"], action_names=["a", "b"])),
    Attached(nonce=bytes(range(16)), reason=""),
    Attached(nonce=None, reason="another host"),
    heartbeat(7, policy_version=-1, timers_ms={"infer": 0.25}, cpu_percent=97.5),
    WantWeights(version=4),
    Bye(reason="stopped", rollouts_sent=9),
    Welcome(
        run_id="run",
        incarnation="now",
        collector=0,
        session="s",
        seed=[1, 0, 2],
        env={"name": "mujoco:cartpole-swingup", "num_envs": 64, "overrides": {"episode_s": 10, "rough": True}},
        train={"num_steps_per_env": 24, "actor": {"hidden_dims": [64, 64]}},
        rollout_port=5556,
        weights_port=5557,
        heartbeat_interval_s=1.0,
        heartbeat_timeout_s=10.0,
    ),
    Admit(
        fingerprint="0123456789abcdef",
        obs_groups={"actor": ["policy"], "critic": ["policy", "privileged"]},
        offer=SharedMemoryOffer(path="/dev/shm/x", nbytes=8192, rollout_slots=2, weight_slots=3),
        offer_reason="",
        weights=WEIGHTS,
    ),
    Admit(fingerprint="0", obs_groups={}, offer=None, offer_reason="full", weights=WEIGHTS),
    Credit(slots=[0, 1], min_version=5, path="shm"),
    Alive(version=8),
    Rejoin(reason="unknown"),
    Reject(reason="num_actions: this run has 2, the collector offers 3 – größer"),
    Stop(reason="reached max_iterations = 10"),
    WEIGHTS,
    rollout_header(seq=5, policy_version=4, slot=1, final_count=2, episodes=EPISODES, timers_ms={"infer": 0.5}),
]


def body(message: Message, **changes: Any) -> dict[str, Any]:
    """The map on the wire; a change to ``...`` removes the field."""
    fields = {**msgpack.unpackb(pack(message)), **changes}
    return {key: value for key, value in fields.items() if value is not ...}


def refusal(frame: Any) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        unpack(frame)
    return caught.value


@pytest.mark.parametrize("message", ONE_OF_EACH, ids=lambda message: message.kind)
def test_every_message_comes_out_as_it_went_in(message: Message) -> None:
    for frame in (pack(message), memoryview(pack(message)), bytearray(pack(message))):
        received = unpack(frame)
        assert type(received) is type(message)
        assert received == message


def test_no_kind_is_left_untested() -> None:
    assert {message.kind for message in ONE_OF_EACH} == KINDS.keys()


@pytest.mark.parametrize("message", ONE_OF_EACH, ids=lambda message: message.kind)
def test_a_field_that_nobody_knows_is_ignored(message: Message) -> None:
    frame = msgpack.packb(body(message, from_the_future={"x": [1, 2]}))
    assert unpack(frame) == message


@pytest.mark.parametrize("message", ONE_OF_EACH, ids=lambda message: message.kind)
def test_every_field_is_required(message: Message) -> None:
    for name in type(message).model_fields:
        error = refusal(msgpack.packb(body(message, **{name: ...})))
        assert error.reason == "malformed"
        assert f"{message.kind}.{name}" in str(error)


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (hello(), "pid", "1"),
        (hello(), "num_envs", 0),
        (hello(), "uid", b"bytes"),
        (Credit(slots=[0], min_version=0, path="shm"), "path", "udp"),
        (Credit(slots=[0], min_version=0, path="shm"), "slots", [-1]),
        (Credit(slots=[0], min_version=0, path="shm"), "slots", [1.0]),
        (rollout_header(), "seq", -1),
        (rollout_header(), "slot", None),
        (rollout_header(), "collector", 1 << 20),
        (rollout_header(), "final_count", "2"),
        (rollout_header(), "episodes", []),
        (rollout_header(), "timers_ms", {"infer": "fast"}),
        (Attached(nonce=b"1", reason=""), "nonce", "text"),
        (Ready(spec=env_spec()), "spec", {"name": "x"}),
        (WEIGHTS, "version", -1),
    ],
)
def test_a_field_of_the_wrong_type_or_range_is_refused(message: Message, field: str, value: Any) -> None:
    error = refusal(msgpack.packb(body(message, **{field: value})))
    assert error.reason == "malformed"
    assert f"{message.kind}.{field}" in str(error)


@pytest.mark.parametrize(
    "changes",
    [
        {"returns": [1.0]},
        {"lengths": [7, 500, 3]},
        {"timeouts": []},
        {"terms": {"track": [1.0], "torque": [0.5, -0.25]}},
    ],
)
def test_episode_lists_that_do_not_go_together_are_refused(changes: dict[str, Any]) -> None:
    message = rollout_header(episodes=EPISODES)
    frame = msgpack.packb(body(message, episodes={**EPISODES.model_dump(), **changes}))
    assert refusal(frame).reason == "malformed"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"magic": "OTHER"}, "foreign message"),
        ({"magic": ...}, "foreign message"),
        ({"protocol": PROTOCOL_VERSION + 1}, "protocol version"),
        ({"protocol": ...}, "protocol version"),
        ({"kind": "GOODBYE"}, "unknown kind"),
        ({"kind": ["HELLO"]}, "unknown kind"),
        ({"kind": None}, "unknown kind"),
        ({"kind": ...}, "unknown kind"),
    ],
)
def test_foreign_messages_are_refused_by_reason(fields: dict[str, Any], reason: str) -> None:
    assert refusal(msgpack.packb(body(hello(), **fields))).reason == reason


def test_another_protocol_version_is_named_with_ours_and_the_remedy() -> None:
    text = str(refusal(msgpack.packb({"magic": MAGIC, "protocol": 99, "kind": "HELLO"})))
    assert "99" in text
    assert str(PROTOCOL_VERSION) in text
    assert "install the same release" in text


@pytest.mark.parametrize("value", [None, 7, "text", [1, 2], {1: 2}, {}, b"\x00"])
def test_msgpack_that_is_no_message_is_refused(value: Any) -> None:
    assert refusal(msgpack.packb(value)).reason in ("foreign message", "not msgpack")


def test_nesting_without_end_is_refused() -> None:
    assert refusal(b"\x91" * 100_000 + b"\xc0").reason == "not msgpack"


def test_every_truncation_is_refused() -> None:
    for message in ONE_OF_EACH:
        frame = pack(message)
        for length in range(len(frame)):
            refusal(frame[:length])


def test_damaged_frames_raise_nothing_else() -> None:
    """Bytes are flipped, inserted and removed in real messages, and some frames are noise all through."""
    rng = np.random.default_rng(5)
    frames = [pack(message) for message in ONE_OF_EACH]
    refused = 0
    for _ in range(3000):
        damaged = bytearray(frames[rng.integers(len(frames))])
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(len(damaged)))
            damaged[at : at + int(rng.integers(0, 3))] = rng.bytes(int(rng.integers(0, 3)))
        frame = bytes(damaged) if rng.random() < 0.8 else rng.bytes(int(rng.integers(0, 200)))
        try:
            unpack(frame)
        except ProtocolError:
            refused += 1
    assert refused > 1500


def test_a_message_of_another_kind_is_not_expected() -> None:
    assert expect(pack(WEIGHTS), WeightsHeader) == WEIGHTS
    with pytest.raises(ProtocolError) as caught:
        expect(pack(hello()), WeightsHeader)
    assert caught.value.reason == "unexpected kind"
    assert "HELLO where WEIGHTS" in str(caught.value)
