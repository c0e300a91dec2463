"""``metrics.jsonl``: one JSON object per update, whole lines only, continued by a resume."""

from __future__ import annotations

import json
import math
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from appo_learner.metrics import UpdateMetrics

_FIELDS = tuple(f.name for f in fields(UpdateMetrics) if f.name != "fleet")


def finite(value: Any) -> Any:
    """``value`` with NaN and infinities replaced by None, also inside maps and lists: JSON lacks them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def record(metrics: UpdateMetrics) -> dict[str, Any]:
    """The object that stands for one update: every field but the fleet."""
    return {name: finite(getattr(metrics, name)) for name in _FIELDS}


class JsonLines:
    """Appends one line per update. One ``write`` a line, so a killed process leaves only whole lines."""

    def __init__(self, path: Path, start_iteration: int) -> None:
        """Open ``path`` to continue after ``start_iteration``.

        Lines of later iterations, which a resume repeats, and a torn last line are dropped. A run that starts
        from the beginning keeps an earlier run's file as ``<name>.old``.

        Raises:
            OSError: the file cannot be read, rewritten or opened.
        """
        self.path = path
        if path.is_file() and path.stat().st_size > 0:
            if start_iteration > 0:
                _keep_until(path, start_iteration)
            else:
                os.replace(path, path.with_name(path.name + ".old"))
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - lives as long as this object

    def write(self, metrics: UpdateMetrics) -> None:
        """Append one line; it is in the file when this returns.

        Raises:
            OSError: the disk is full or the file is gone; no part of the line is left behind.
        """
        line = json.dumps(record(metrics), separators=(",", ":"), default=float).encode() + b"\n"
        written = 0
        try:
            # One call as a rule; a disk that is nearly full takes a part and refuses the rest.
            while written < len(line):
                written += self._file.write(line[written:]) or 0
        except OSError:
            if written:
                self._file.truncate(os.fstat(self._file.fileno()).st_size - written)
            raise

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()


def write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: either the old content or all of the new is there, also after a crash."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _keep_until(path: Path, iteration: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if _iteration_of(line) <= iteration]
    if len(kept) < len(lines):
        write_atomically(path, b"".join(kept))


def _iteration_of(line: bytes) -> float:
    """The iteration a line tells of; infinity for one that is torn or foreign, so that it is dropped."""
    try:
        return float(json.loads(line)["iteration"]) if line.endswith(b"\n") else math.inf
    except (ValueError, TypeError, KeyError):
        return math.inf
