"""Shared memory between a learner and a collector on one host: a file that is mapped by both and has no name.

The learner creates the file, the collector maps it and proves that by the nonce inside, the learner removes
the name. From then on the kernel frees the memory when both are gone, however they ended.
``multiprocessing.shared_memory`` is not used: its resource tracker unlinks segments that others still use.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
from dataclasses import dataclass

import numpy as np

from appo_common.errors import SharedMemoryError

HEAD_BYTES = 4096
"""In front of the slots: magic and nonce, on a page of their own."""
_MAGIC = b"APPO-SHM"
NONCE_BYTES = 16


@dataclass(frozen=True)
class SlotPlan:
    """Where the slots of one segment lie: rollouts first, then weights; each starts on a page of its own."""

    rollout_nbytes: int
    rollout_slots: int
    weights_nbytes: int
    weight_slots: int

    @property
    def nbytes(self) -> int:
        """Size of the whole file."""
        return self._weights_at(self.weight_slots)

    def rollout(self, segment: Segment, slot: int) -> np.ndarray:
        """Return rollout slot ``slot`` as ``[rollout_nbytes]`` uint8."""
        if not 0 <= slot < self.rollout_slots:
            raise IndexError(f"rollout slot {slot} of {self.rollout_slots}")
        start = HEAD_BYTES + slot * _pages(self.rollout_nbytes)
        return segment.bytes[start : start + self.rollout_nbytes]

    def weights(self, segment: Segment, slot: int) -> np.ndarray:
        """Return weight slot ``slot`` as ``[weights_nbytes]`` uint8."""
        if not 0 <= slot < self.weight_slots:
            raise IndexError(f"weight slot {slot} of {self.weight_slots}")
        start = self._weights_at(slot)
        return segment.bytes[start : start + self.weights_nbytes]

    def _weights_at(self, slot: int) -> int:
        rollouts = self.rollout_slots * _pages(self.rollout_nbytes)
        return HEAD_BYTES + rollouts + slot * _pages(self.weights_nbytes)


class Segment:
    """One mapped file. The mapping lives as long as any array made from it."""

    def __init__(self, path: str, mapping: mmap.mmap) -> None:
        """Wrap a mapping; use :meth:`create` or :meth:`attach`."""
        self.path = path
        self.bytes = np.frombuffer(mapping, dtype=np.uint8)
        """``[nbytes]`` uint8 over the whole file."""

    @classmethod
    def create(cls, directory: str, nbytes: int) -> Segment:
        """Make a file of ``nbytes`` in ``directory`` (mode 0600) with a fresh nonce.

        Raises:
            SharedMemoryError: no such directory, no permission, or not enough room; says how much is needed.
        """
        path = os.path.join(directory, f"appo-{os.getpid()}-{secrets.token_hex(6)}")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SharedMemoryError(f"cannot create {path}: {error.strerror}") from None
        try:
            os.posix_fallocate(fd, 0, nbytes)  # a full tmpfs is an error here, not a SIGBUS at some later write
            segment = cls(path, mmap.mmap(fd, nbytes))
        except (OSError, OverflowError, ValueError) as error:
            os.unlink(path)
            raise SharedMemoryError(_no_room(directory, nbytes, error)) from None
        finally:
            os.close(fd)
        segment.bytes[: len(_MAGIC) + NONCE_BYTES] = np.frombuffer(
            _MAGIC + secrets.token_bytes(NONCE_BYTES), dtype=np.uint8
        )
        return segment

    @classmethod
    def attach(cls, path: str, nbytes: int) -> Segment:
        """Map an existing file of exactly ``nbytes``.

        Raises:
            SharedMemoryError: it is not here (another host, another container), or it is something else.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise SharedMemoryError(f"cannot open {path}: {error.strerror}") from None
        try:
            size = os.fstat(fd).st_size
            if size != nbytes:
                raise SharedMemoryError(f"{path} has {size} bytes where {nbytes} were offered")
            segment = cls(path, mmap.mmap(fd, nbytes))
        except OSError as error:
            raise SharedMemoryError(f"cannot map {path}: {error.strerror}") from None
        finally:
            os.close(fd)
        if segment.bytes[: len(_MAGIC)].tobytes() != _MAGIC:
            raise SharedMemoryError(f"{path} is not a segment of a learner")
        return segment

    @property
    def nonce(self) -> bytes:
        """Sixteen random bytes that only somebody who has this very file mapped can know."""
        return self.bytes[len(_MAGIC) : len(_MAGIC) + NONCE_BYTES].tobytes()

    def unlink(self) -> None:
        """Remove the name; the mapping stays. Does nothing the second time."""
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            return


def _pages(nbytes: int) -> int:
    return -(-nbytes // HEAD_BYTES) * HEAD_BYTES


def _no_room(directory: str, nbytes: int, error: Exception) -> str:
    if getattr(error, "errno", None) != errno.ENOSPC:
        return f"cannot reserve {nbytes} bytes in {directory}: {error}"
    stat = os.statvfs(directory)
    free = stat.f_bavail * stat.f_frsize
    return (
        f"{directory} has {free / 1e6:.1f} MB free and this collector needs {nbytes / 1e6:.1f} MB; "
        "enlarge it (`shm_size` in compose.yaml, `--shm-size` of docker run) or set network.shm_dir"
    )
