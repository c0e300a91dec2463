"""Numbers and short curves as text: pure functions, no terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=+*%#"
_NONE = "-"


def count(value: float) -> str:
    """A large number in three digits: ``950``, ``28.1k``, ``983k``, ``1.01M``."""
    if not math.isfinite(value):
        return _NONE
    if abs(value) < 999.5:
        return f"{value:.0f}"
    for unit in ("k", "M", "G", "T"):
        value /= 1000.0
        if abs(value) < 999.5 or unit == "T":
            break
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}{unit}"


def number(value: float | None) -> str:
    """A return, a length or a loss with about four digits; a dash for None and NaN."""
    if value is None or not math.isfinite(value):
        return _NONE
    size = abs(value)
    if size >= 99_999.5:
        return f"{value:.3g}"
    if size >= 999.5:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.1 or size == 0.0:
        return f"{value:.2f}"
    return f"{value:.4f}" if size >= 0.001 else f"{value:.1e}"


def percent(share: float | None) -> str:
    """A share of one as whole percent: ``12%``; a dash for None and NaN."""
    return _NONE if share is None or not math.isfinite(share) else f"{100.0 * share:.0f}%"


def duration(seconds: float | None) -> str:
    """Seconds as ``0:41``, ``12:05``, ``3:07:20`` or ``2d 03:07``; a dash for None and infinity."""
    if seconds is None or not math.isfinite(seconds):
        return _NONE
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{hours // 24}d {hours % 24:02d}:{minutes:02d}"


def clean(text: str) -> str:
    """``text`` without terminal control characters: names and hosts come from other machines."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def resample(values: Sequence[float], width: int) -> list[float]:
    """Means of ``values`` in ``width`` equal bins; ``values`` itself where it is not longer than that."""
    if len(values) <= width:
        return list(values)
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def chart(values: Sequence[float], width: int, rows: int = 1, *, ascii_only: bool = False) -> list[str]:
    """``values`` as ``rows`` lines of block characters, top line first, at most ``width`` wide.

    The lowest value is one eighth of a line high and the highest fills all lines.
    """
    points = resample([v for v in values if math.isfinite(v)], max(1, width))
    if not points:
        return [""] * rows
    blocks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    low, span = min(points), max(points) - min(points)
    levels = [1 + round((v - low) / span * (8 * rows - 1)) if span > 0 else 4 * rows for v in points]
    lines = []
    for row in reversed(range(rows)):
        fill = (min(8, level - 8 * row) for level in levels)
        lines.append("".join(blocks[n - 1] if n > 0 else " " for n in fill))
    return lines


def bar(share: float, width: int, *, ascii_only: bool = False) -> tuple[str, str]:
    """The filled and the empty part of a progress bar of ``width`` characters."""
    filled = round(min(1.0, max(0.0, share)) * width)
    return ("#" if ascii_only else "━") * filled, ("-" if ascii_only else "━") * (width - filled)
