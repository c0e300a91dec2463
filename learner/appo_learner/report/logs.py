"""Log records above the live view instead of across it."""

from __future__ import annotations

import logging
from collections.abc import Callable


class NoteHandler(logging.Handler):
    """Passes each formatted record to ``note(text, style)``; may be called from any thread."""

    def __init__(self, note: Callable[[str, str | None], None]) -> None:
        super().__init__()
        self._note = note
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """Format and pass on; errors go to ``handleError`` as in every handler."""
        try:
            level = record.levelno
            style = "red" if level >= logging.ERROR else "yellow" if level >= logging.WARNING else None
            self._note(self.format(record), style)
        except Exception:
            self.handleError(record)
