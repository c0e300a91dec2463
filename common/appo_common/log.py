"""Logging as both programs set it up: one line per record on standard error."""

from __future__ import annotations

import logging
import sys
import time

LEVELS = ("debug", "info", "warning", "error")


def set_up(level: str, handler: logging.Handler | None = None) -> None:
    """Send records of ``level`` and above to ``handler``, or to standard error."""
    if handler is None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # other libraries: only what matters
    for package in ("appo_common", "appo_collector", "appo_learner"):
        logging.getLogger(package).setLevel(level.upper())


class RateLimited:
    """Logs a kind of event at most once per interval, and says how many it left out."""

    def __init__(self, logger: logging.Logger, interval_s: float = 10.0) -> None:
        """Share one instance between all the kinds of one object."""
        self._logger = logger
        self._interval_s = interval_s
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warning(self, kind: str, text: str) -> None:
        """Log ``text`` unless a record of this ``kind`` was logged within the interval."""
        now = time.monotonic()
        if now - self._last.get(kind, -self._interval_s) < self._interval_s:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._last[kind] = now
        left_out = self._left_out.pop(kind, 0)
        self._logger.warning("%s%s", text, f" (and {left_out} more of this kind)" if left_out else "")
