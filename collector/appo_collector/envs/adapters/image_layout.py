"""Which images have their channels first, and turning them: ours have them last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_LEADING_CHANNELS = 16
MAX_TRAILING_CHANNELS = 4


def channels_first(shape: Sequence[int]) -> bool:
    """Guess from the three sizes of an image whether they are channels, height and width.

    They are taken to be where the first is smaller than both others and at most 16 while the last is more than 4.
    """
    first, *others = shape
    return first <= MAX_LEADING_CHANNELS and first < min(others) and others[-1] > MAX_TRAILING_CHANNELS


def channels_last(images: np.ndarray) -> np.ndarray:
    """Return ``[N, C, H, W]`` as a fresh, contiguous ``[N, H, W, C]``."""
    return np.array(np.moveaxis(images, 1, -1), order="C")
