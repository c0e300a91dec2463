"""Which of the console's views a run gets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

from rich.console import Console

from appo_learner.report.live_view import LiveView
from appo_learner.report.plain import PlainView
from appo_learner.report.progress import Snapshot


class View(Protocol):
    """What the report asks of a view; :class:`LiveView` and :class:`PlainView` say what each means there."""

    def wants(self, *, updated: bool) -> bool:
        """Whether a snapshot is of use now; ``updated`` says that there is a new update to show."""

    def draw(self, snapshot: Snapshot) -> None:
        """Show ``snapshot``."""

    def note(self, text: str, style: str | None = None) -> None:
        """Print ``text`` apart from the snapshots."""

    def close(self) -> None:
        """Give the terminal back; idempotent."""

    def stats(self) -> dict[str, float]:
        """What was shown, and what it cost."""


class Nowhere:
    """The view of a run whose terminal has gone: training matters more than watching it."""

    def wants(self, *, updated: bool) -> bool:
        """Never."""
        return False

    def draw(self, snapshot: Snapshot) -> None:
        """Nothing."""

    def note(self, text: str, style: str | None = None) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""

    def stats(self) -> dict[str, float]:
        """Nothing."""
        return {}


def make_view(console: Console | None, plain: bool, interval_s: float, clock: Callable[[], float]) -> View:
    """The live view on a terminal that can move its cursor, else plain lines every ``interval_s`` seconds."""
    # Without a console of the caller's, ask the stream: FORCE_COLOR makes rich call any pipe a terminal.
    terminal = console.is_terminal if console else sys.stdout.isatty()
    console = console or Console(highlight=False)
    if plain or not terminal or console.is_dumb_terminal:
        return PlainView(console.file, clock, interval_s)
    return LiveView(console, clock)
