from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import numpy as np
import pytest
from helpers_unit import small_tmpfs

from appo_common.errors import SharedMemoryError
from appo_common.shared_memory import HEAD_BYTES, Segment, SlotPlan

PLAN = SlotPlan(rollout_nbytes=10_000, rollout_slots=3, weights_nbytes=500, weight_slots=2)


def test_a_created_segment_is_a_private_file_with_a_fresh_nonce(tmp_path: Path) -> None:
    first, second = Segment.create(str(tmp_path), PLAN.nbytes), Segment.create(str(tmp_path), PLAN.nbytes)
    status = os.stat(first.path)
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_size == PLAN.nbytes == first.bytes.size
    assert status.st_blocks * 512 >= PLAN.nbytes, "its room was not reserved"
    assert Path(first.path).parent == tmp_path
    assert len(first.nonce) == 16
    assert first.nonce != second.nonce
    assert first.path != second.path


def test_both_sides_see_the_same_bytes(tmp_path: Path) -> None:
    mine = Segment.create(str(tmp_path), PLAN.nbytes)
    theirs = Segment.attach(mine.path, PLAN.nbytes)
    assert theirs.nonce == mine.nonce
    PLAN.rollout(theirs, 2)[:] = 7
    assert (PLAN.rollout(mine, 2) == 7).all()
    PLAN.weights(mine, 1)[-1] = 9
    assert PLAN.weights(theirs, 1)[-1] == 9


def test_the_mapping_outlives_the_name_and_the_segment(tmp_path: Path) -> None:
    mine = Segment.create(str(tmp_path), PLAN.nbytes)
    theirs = Segment.attach(mine.path, PLAN.nbytes)
    mine.unlink()
    assert list(tmp_path.iterdir()) == []
    slot = PLAN.rollout(mine, 0)
    del mine
    slot[:] = 5
    assert (PLAN.rollout(theirs, 0) == 5).all()
    theirs.unlink()  # somebody else has done it: no error


def test_a_name_that_is_gone_cannot_be_attached(tmp_path: Path) -> None:
    mine = Segment.create(str(tmp_path), PLAN.nbytes)
    mine.unlink()
    with pytest.raises(SharedMemoryError, match=f"cannot open {re.escape(mine.path)}: No such file"):
        Segment.attach(mine.path, PLAN.nbytes)


@pytest.mark.parametrize("change", [-1, +1, -PLAN.nbytes])
def test_a_file_of_another_size_is_refused_with_both_sizes(tmp_path: Path, change: int) -> None:
    path = tmp_path / "other"
    path.write_bytes(bytes(PLAN.nbytes + change))
    with pytest.raises(SharedMemoryError, match=f"has {PLAN.nbytes + change} bytes where {PLAN.nbytes} were offered"):
        Segment.attach(str(path), PLAN.nbytes)


def test_a_foreign_file_of_the_right_size_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    content = b"x" * PLAN.nbytes
    path.write_bytes(content)
    with pytest.raises(SharedMemoryError, match="is not a segment of a learner"):
        Segment.attach(str(path), PLAN.nbytes)
    assert path.read_bytes() == content


def test_neither_a_link_nor_a_directory_is_attached(tmp_path: Path) -> None:
    mine = Segment.create(str(tmp_path), PLAN.nbytes)
    link = tmp_path / "link"
    link.symlink_to(mine.path)
    for path in (link, tmp_path):
        with pytest.raises(SharedMemoryError, match=f"cannot open {re.escape(str(path))}"):
            Segment.attach(str(path), PLAN.nbytes)


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    segment = Segment.create(str(tmp_path), PLAN.nbytes)
    Segment.attach(segment.path, PLAN.nbytes)
    with pytest.raises(SharedMemoryError):
        Segment.attach(segment.path, 1)
    del segment
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SharedMemoryError, match=r"cannot create .*: No such file or directory"):
        Segment.create(str(tmp_path / "none"), PLAN.nbytes)


def test_a_full_tmpfs_is_an_error_that_names_sizes_and_remedies_and_leaves_no_file(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "shm") as directory:
        with pytest.raises(SharedMemoryError) as caught:
            Segment.create(str(directory), 5_000_000)
        text = str(caught.value)
        assert list(directory.iterdir()) == []
        assert f"{directory} has 1.0 MB free and this collector needs 5.0 MB" in text
        for remedy in ("shm_size", "--shm-size", "network.shm_dir"):
            assert remedy in text
        fits = Segment.create(str(directory), 500_000)
        fits.bytes[:] = 1  # every page is there: no SIGBUS


@pytest.mark.parametrize("nbytes", [1 << 62, 1 << 64, 1 << 80])
def test_a_size_beyond_all_memory_is_the_same_kind_of_error(tmp_path: Path, nbytes: int) -> None:
    with pytest.raises(SharedMemoryError, match=str(nbytes) + "|needs"):
        Segment.create(str(tmp_path), nbytes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "plan",
    [PLAN, SlotPlan(1, 16, 1, 3), SlotPlan(4096, 2, 4096, 3), SlotPlan(4097, 1, 8191, 1), SlotPlan(64, 0, 64, 3)],
)
def test_slots_lie_apart_behind_the_head_and_inside_the_file(tmp_path: Path, plan: SlotPlan) -> None:
    segment = Segment.create(str(tmp_path), plan.nbytes)
    nonce = segment.nonce
    owner = np.zeros(plan.nbytes, dtype=np.int64)
    start = segment.bytes.ctypes.data
    slots = [plan.rollout(segment, slot) for slot in range(plan.rollout_slots)]
    slots += [plan.weights(segment, slot) for slot in range(plan.weight_slots)]
    sizes = [plan.rollout_nbytes] * plan.rollout_slots + [plan.weights_nbytes] * plan.weight_slots
    for slot, size in zip(slots, sizes, strict=True):
        assert slot.nbytes == size
        at = slot.ctypes.data - start
        assert at >= HEAD_BYTES
        assert at % HEAD_BYTES == 0
        owner[at : at + size] += 1
        slot[:] = 255
    assert owner.max() == 1
    assert owner.sum() == sum(sizes)
    assert segment.nonce == nonce


@pytest.mark.parametrize("slot", [-1, 3])
def test_a_slot_outside_the_plan_is_an_error(tmp_path: Path, slot: int) -> None:
    segment = Segment.create(str(tmp_path), PLAN.nbytes)
    with pytest.raises(IndexError, match=f"rollout slot {slot} of 3"):
        PLAN.rollout(segment, slot)
    with pytest.raises(IndexError, match=f"weight slot {slot} of 2"):
        PLAN.weights(segment, slot)
