"""What the checked process is doing, kept where its parent can read it however the process ends."""

from __future__ import annotations

import os

_BYTES = 120
FINISHED = "finished "
"""Begins the last entry; the exit code follows."""


class Activity:
    """One line of text in a file; it outlives a crash, and a line that stays the same shows a call that hangs."""

    def __init__(self, fd: int | None = None) -> None:
        """``fd``: an open file; without it nothing is kept."""
        self._fd = fd
        self._phase = ""

    def phase(self, name: str) -> None:
        """Name what the following calls are for."""
        self._phase = name

    def calls(self, what: str) -> None:
        """Note that ``what`` is about to be called, e.g. ``"step() 12"``."""
        self._write(f"{what} ({self._phase})")

    def finished(self, exit_code: int) -> None:
        """Note that the check has come to its own end."""
        self._write(f"{FINISHED}{exit_code}")

    def _write(self, text: str) -> None:
        if self._fd is not None:
            os.pwrite(self._fd, text.encode()[:_BYTES].ljust(_BYTES), 0)

    def read(self) -> str:
        """Return the line that was written last."""
        return "" if self._fd is None else os.pread(self._fd, _BYTES, 0).decode(errors="replace").strip()
