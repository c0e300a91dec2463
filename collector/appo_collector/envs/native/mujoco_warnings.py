"""MuJoCo's own warnings: kept for the caller's log instead of a file in the working directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mujoco


@contextmanager
def warnings_kept() -> Iterator[list[str]]:
    """Collect the texts of MuJoCo's warnings while the block runs (about 2 µs).

    Without a handler MuJoCo prints them and appends them to MUJOCO_LOG.TXT in the working directory. The handler
    is one for the whole process, so it is put back at the end; one that the user has installed stays in charge.
    """
    texts: list[str] = []
    if mujoco.get_mju_user_warning() is not None:
        yield texts
        return
    mujoco.set_mju_user_warning(texts.append)
    try:
        yield texts
    finally:
        mujoco.set_mju_user_warning(None)
