from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from helpers_unit import GROUPS, env_spec

from appo_common.errors import ProtocolError
from appo_common.layout import ALIGNMENT, FRAME_BYTES, Field, Layout, final_rows, observation_groups, rollout_layout

# Sizes in bytes: a 12, b 3, c 8 a row of at most 20, d 16 a row of at most 20.
SMALL = Layout(
    [
        Field("a", "float32", (3,)),
        Field("b", "bool", (3, 1)),
        Field("c", "int32", (20, 2), counted=True),
        Field("d", "float32", (20, 4), counted=True),
    ]
)


def noise(nbytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def test_fields_follow_each_other_on_64_byte_boundaries() -> None:
    assert SMALL.offsets == {"a": 0, "b": 64, "c": 128, "d": 128 + 192}
    assert SMALL.nbytes == 128 + 192 + 320
    assert ALIGNMENT == 64


def test_views_read_and_write_the_buffer_in_place() -> None:
    buffer = bytearray(SMALL.nbytes)
    views = SMALL.views(buffer)
    views["a"][1] = 2.5
    views["c"][19] = (7, -9)
    assert np.frombuffer(buffer, np.float32, 1, offset=4) == 2.5
    assert np.frombuffer(buffer, np.int32, 2, offset=128 + 19 * 8).tolist() == [7, -9]
    buffer[64] = 1
    assert views["b"][0, 0]
    assert {name: (view.shape, str(view.dtype)) for name, view in views.items()} == {
        "a": ((3,), "float32"),
        "b": ((3, 1), "bool"),
        "c": ((20, 2), "int32"),
        "d": ((20, 4), "float32"),
    }


def test_views_of_two_buffers_are_apart() -> None:
    first, second = SMALL.views(bytearray(SMALL.nbytes)), SMALL.views(bytearray(SMALL.nbytes))
    first["d"][...] = 1.0
    assert not second["d"].any()


@pytest.mark.parametrize(
    ("count", "ranges"),
    [
        (0, [(0, 67)]),  # a and b, with the padding between them
        (1, [(0, 136), (320, 336)]),
        (15, [(0, 248), (320, 560)]),  # 40 unused bytes of c and 32 of padding: a gap
        (17, [(0, 592)]),  # 24 and 32: less than one alignment, so the gap is sent too
        (20, [(0, 640)]),
    ],
)
def test_only_the_used_rows_are_sent(count: int, ranges: list[tuple[int, int]]) -> None:
    assert SMALL.used_ranges(count) == ranges


def test_a_whole_rollout_is_in_use_when_every_row_is() -> None:
    layout = rollout_layout(env_spec(4), 5, GROUPS)
    covered = np.zeros(layout.nbytes, dtype=bool)
    for start, stop in layout.used_ranges(20):
        covered[start:stop] = True
    for field in layout.fields:
        start = layout.offsets[field.name]
        assert covered[start : start + field.nbytes].all(), field.name


@pytest.mark.parametrize(
    ("nbytes", "frames"),
    [(1, 1), (FRAME_BYTES, 1), (FRAME_BYTES + 1, 2), (3 * FRAME_BYTES - 7, 3), (10 * FRAME_BYTES, 10)],
)
def test_a_block_is_cut_into_frames_of_at_most_one_mebibyte(nbytes: int, frames: int) -> None:
    layout = Layout([Field("x", "uint8", (nbytes,))])
    cut = layout.frames(np.zeros(layout.nbytes, dtype=np.uint8))
    assert FRAME_BYTES == 1024 * 1024
    assert len(cut) == frames
    assert all(frame.nbytes == FRAME_BYTES for frame in cut[:-1])
    assert sum(frame.nbytes for frame in cut) == nbytes


def test_frames_are_not_copies() -> None:
    block = noise(SMALL.nbytes)
    frames = SMALL.frames(block, 1)
    block[0] ^= 0xFF
    assert frames[0][0] == block[0]


@pytest.mark.parametrize("count", [0, 1, 7, 20])
def test_joined_frames_are_the_block(count: int) -> None:
    block, target = noise(SMALL.nbytes), np.zeros(SMALL.nbytes, dtype=np.uint8)
    SMALL.join([bytes(frame) for frame in SMALL.frames(block, count)], into=target, count=count)
    sent, received = SMALL.views(block), SMALL.views(target)
    for field in SMALL.fields:
        rows = count if field.counted else None
        assert sent[field.name][:rows].tobytes() == received[field.name][:rows].tobytes()
    if count == 0:
        assert not received["c"].any(), "a row that was not counted was sent"


def test_a_large_rollout_survives_the_wire() -> None:
    spec = env_spec(300, observations={"policy": {"shape": [50]}, "privileged": {"shape": [1]}})
    layout = rollout_layout(spec, 32, GROUPS)
    block, target = noise(layout.nbytes), np.zeros(layout.nbytes, dtype=np.uint8)
    frames = layout.frames(block, 4321)
    layout.join(frames, into=target, count=4321)
    assert max(frame.nbytes for frame in frames) == FRAME_BYTES
    for name, view in layout.views(target).items():
        rows = 4321 if name.startswith("final_") else None
        assert view[:rows].tobytes() == layout.views(block)[name][:rows].tobytes(), name


@pytest.mark.parametrize("case", ["missing", "more", "shorter", "longer", "another count", "none", "swapped"])
def test_frames_of_another_size_are_refused_and_nothing_is_written(case: str) -> None:
    frames = [bytes(frame) for frame in SMALL.frames(noise(SMALL.nbytes), 3)]
    wrong = {
        "missing": frames[:-1],
        "more": [*frames, b""],
        "shorter": [*frames[:-1], frames[-1][:-1]],
        "longer": [*frames[:-1], frames[-1] + b"x"],
        "another count": [bytes(frame) for frame in SMALL.frames(noise(SMALL.nbytes), 4)],
        "none": [],
        "swapped": frames[::-1],
    }[case]
    target = np.zeros(SMALL.nbytes, dtype=np.uint8)
    with pytest.raises(ProtocolError) as caught:
        SMALL.join(wrong, into=target, count=3)
    assert caught.value.reason == "wrong size"
    assert not target.any()


def test_layouts_that_differ_have_different_fingerprints() -> None:
    field = Field("x", "float32", (4, 2))
    variants = [
        [field],
        [Field("y", "float32", (4, 2))],
        [Field("x", "int32", (4, 2))],
        [Field("x", "float32", (2, 4))],
        [Field("x", "float32", (4, 2), counted=True)],
        [field, Field("y", "bool", (1,))],
        [Field("y", "bool", (1,)), field],
    ]
    prints = [Layout(fields).fingerprint for fields in variants]
    assert len(set(prints)) == len(variants)
    assert Layout([field]).fingerprint == prints[0]
    assert all(len(text) == 16 and int(text, 16) >= 0 for text in prints)


def test_a_rollout_holds_the_fields_of_the_table() -> None:
    layout = rollout_layout(env_spec(4), 5, GROUPS)
    assert [(field.name, field.dtype, field.shape, field.counted) for field in layout.fields] == [
        ("obs/policy", "float32", (5, 4, 3), False),
        ("obs/privileged", "float32", (5, 4, 2), False),
        ("actions", "float32", (5, 4, 2), False),
        ("log_probs", "float32", (5, 4), False),
        ("rewards", "float32", (5, 4), False),
        ("terminated", "bool", (5, 4), False),
        ("truncated", "bool", (5, 4), False),
        ("last_obs/policy", "float32", (4, 3), False),
        ("last_obs/privileged", "float32", (4, 2), False),
        ("final_index", "int32", (20, 2), True),
        ("final_obs/policy", "float32", (20, 3), True),
        ("final_obs/privileged", "float32", (20, 2), True),
    ]
    starts = [layout.offsets[field.name] for field in layout.fields]
    assert all(start % ALIGNMENT == 0 for start in starts)
    for (start, following), field in zip(pairwise([*starts, layout.nbytes]), layout.fields, strict=True):
        assert start + field.nbytes <= following < start + field.nbytes + ALIGNMENT


def test_groups_that_nobody_reads_are_left_out() -> None:
    pixels = {"shape": [8, 8, 3], "dtype": "uint8"}
    spec = env_spec(observations={"policy": {"shape": [3]}, "pixels": pixels, "spare": {"shape": [9]}})
    layout = rollout_layout(spec, 5, {"actor": ["pixels"], "critic": ["policy"]})
    names = [field.name for field in layout.fields]
    assert [name for name in names if name.startswith("obs/")] == ["obs/pixels", "obs/policy"]
    assert [name for name in names if "spare" in name] == []
    assert [name for name in names if name.startswith(("last_obs/", "final_obs/"))] == [
        "last_obs/policy",
        "final_obs/policy",
    ]
    assert {field.name: field.dtype for field in layout.fields}["obs/pixels"] == "uint8"


def test_groups_are_listed_once_in_a_fixed_order() -> None:
    assert observation_groups({"actor": ["b", "a"], "critic": ["c", "a"]}) == ["a", "b", "c"]
    one = rollout_layout(env_spec(), 5, {"actor": ["privileged", "policy"], "critic": ["policy"]})
    other = rollout_layout(env_spec(), 5, {"critic": ["policy"], "actor": ["policy", "privileged"]})
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize(
    ("limit", "steps", "rows_per_env"),
    [
        (None, 8, 8),  # anything may happen
        (1, 8, 8),  # one-step episodes: truncated at every step
        (2, 8, 4),  # steps 0 2 4 6
        (3, 8, 3),  # steps 0 3 6
        (7, 8, 2),  # steps 0 7
        (8, 8, 1),  # step 0, and next at 8, which is the following rollout
        (500, 8, 1),
        (5, 1, 1),
    ],
)
def test_rows_suffice_for_the_truncations_that_a_limit_allows(limit: int | None, steps: int, rows_per_env: int) -> None:
    assert final_rows(env_spec(3, episode_limit=limit), steps) == 3 * rows_per_env
