"""Named arrays in one block of bytes, and the frames that carry such a block.

A layout is pure arithmetic: it touches no socket and owns no memory. The same ``views`` read a shared-memory
slot and a block that arrived over TCP.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from appo_common.errors import ProtocolError
from appo_common.spec import EnvSpec

ALIGNMENT = 64
"""Bytes; a cache line, so that neighbouring fields never share one."""
FRAME_BYTES = 1 << 20
"""Largest frame on the wire: one frame per block was measured at half the speed of 1 MiB frames."""

Buffer: TypeAlias = Any
"""Anything with the buffer interface (mmap, bytearray, memoryview, ndarray)."""


@dataclass(frozen=True)
class Field:
    """One array of a block."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    counted: bool = False
    """Only the first ``count`` rows are in use; the rest is neither sent nor read."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row along the first dimension."""
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Layout:
    """Fields in a fixed order, each aligned to 64 bytes."""

    def __init__(self, fields: Iterable[Field]) -> None:
        """Place the fields one after the other."""
        self.fields = tuple(fields)
        self.offsets: dict[str, int] = {}
        end = 0
        for field in self.fields:
            self.offsets[field.name] = end
            end += -(-field.nbytes // ALIGNMENT) * ALIGNMENT
        self.nbytes = end

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits that differ between any two layouts."""
        text = ";".join(f"{f.name}:{f.dtype}:{','.join(map(str, f.shape))}:{int(f.counted)}" for f in self.fields)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def views(self, buffer: Buffer) -> dict[str, np.ndarray]:
        """Return one array per field that reads and writes ``buffer`` in place."""
        return {
            f.name: np.ndarray(f.shape, dtype=f.dtype, buffer=buffer, offset=self.offsets[f.name]) for f in self.fields
        }

    def used_ranges(self, count: int) -> list[tuple[int, int]]:
        """Byte ranges ``(start, stop)`` in use when counted fields hold ``count`` rows; none is empty."""
        ranges: list[tuple[int, int]] = []
        for field in self.fields:
            start = self.offsets[field.name]
            stop = start + (count * field.row_bytes if field.counted else field.nbytes)
            if start == stop:
                continue
            if ranges and start - ranges[-1][1] < ALIGNMENT:  # only padding between them: one range
                ranges[-1] = (ranges[-1][0], stop)
            else:
                ranges.append((start, stop))
        return ranges

    def frames(self, buffer: Buffer, count: int = 0) -> list[memoryview]:
        """Cut the used part of ``buffer`` into frames of at most 1 MiB; nothing is copied."""
        view = memoryview(buffer).cast("B")
        return [view[start:stop] for start, stop in self._frame_ranges(count)]

    def join(self, frames: Sequence[Buffer], into: np.ndarray, count: int = 0) -> None:
        """Copy received ``frames`` to their places in ``into`` (``[nbytes]`` uint8).

        Raises:
            ProtocolError: the number or the sizes of the frames are not those of this layout.
        """
        ranges = self._frame_ranges(count)
        sizes = [memoryview(frame).nbytes for frame in frames]
        if sizes != [stop - start for start, stop in ranges]:
            wanted = sum(stop - start for start, stop in ranges)
            raise ProtocolError(
                "wrong size", f"{sum(sizes)} bytes in {len(sizes)} frames, wanted {wanted} in {len(ranges)}"
            )
        for frame, (start, stop) in zip(frames, ranges, strict=True):
            # np.copyto releases the GIL for large blocks; slice assignment of a memoryview does not.
            np.copyto(into[start:stop], np.frombuffer(frame, dtype=np.uint8))

    def _frame_ranges(self, count: int) -> list[tuple[int, int]]:
        return [
            (at, min(at + FRAME_BYTES, stop))
            for start, stop in self.used_ranges(count)
            for at in range(start, stop, FRAME_BYTES)
        ]


def observation_groups(obs_groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the groups that any observation set reads, in a fixed order."""
    return sorted({group for groups in obs_groups.values() for group in groups})


def rollout_layout(spec: EnvSpec, num_steps: int, obs_groups: Mapping[str, Sequence[str]]) -> Layout:
    """Lay out a rollout of T steps of N environments, time-major (see docs/protocol.md for the table).

    ``obs_groups`` maps the sets ``actor`` and ``critic`` to the groups they read. Groups that nobody reads are
    left out; ``last_obs`` and ``final_obs`` hold the critic's groups only.
    """
    steps, envs = num_steps, spec.num_envs
    rows = final_rows(spec, num_steps)
    fields = [
        Field(f"obs/{name}", spec.observations[name].dtype, (steps, envs, *spec.observations[name].shape))
        for name in observation_groups(obs_groups)
    ]
    fields += [
        Field("actions", "float32", (steps, envs, spec.num_actions)),
        Field("log_probs", "float32", (steps, envs)),
        Field("rewards", "float32", (steps, envs)),
        Field("terminated", "bool", (steps, envs)),
        Field("truncated", "bool", (steps, envs)),
    ]
    if spec.skips_steps:
        fields += [Field("valid", "bool", (steps, envs))]
    critic = [(name, spec.observations[name]) for name in sorted(set(obs_groups["critic"]))]
    fields += [Field(f"last_obs/{name}", group.dtype, (envs, *group.shape)) for name, group in critic]
    fields += [Field("final_index", "int32", (rows, 2), counted=True)]
    fields += [Field(f"final_obs/{name}", group.dtype, (rows, *group.shape), counted=True) for name, group in critic]
    return Layout(fields)


def env_steps(views: Mapping[str, np.ndarray]) -> int:
    """Count the environment steps of a rollout; those that only reset an environment are none."""
    return int(views["valid"].sum()) if "valid" in views else views["rewards"].size


def final_rows(spec: EnvSpec, num_steps: int) -> int:
    """Rows that always suffice for the truncated episodes of one rollout.

    An environment whose episodes are never truncated before ``episode_limit`` steps can be truncated once at
    any step of the rollout and again every ``episode_limit`` steps after that.
    """
    if spec.episode_limit is None:
        return num_steps * spec.num_envs
    return spec.num_envs * (1 + (num_steps - 1) // spec.episode_limit)
