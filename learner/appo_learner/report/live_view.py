"""On a terminal: a live view that is redrawn in place, with log lines scrolling above it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import perf_counter

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from appo_learner.report.panels import compose
from appo_learner.report.progress import Snapshot

_MIN_INTERVAL_S = 0.5
_MAX_INTERVAL_S = 5.0
_BUDGET = 0.008
"""Share of wall time that drawing may take; a slow terminal or a busy CPU is redrawn less often."""


class _Frame:
    """Lines rendered once. A log line makes rich repaint what is below it; that must not cost a layout."""

    def __init__(self, lines: Iterable[list[Segment]] = ()) -> None:
        self._lines = list(lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # After the window has shrunk, and until the next frame, cut rather than wrap: a wrapped line
        # would put the cursor arithmetic of Live out by one.
        for line in self._lines[: max(1, options.size.height - 1)]:
            yield from Segment.adjust_line_length(line, options.max_width, pad=False)
            yield Segment.line()


class LiveView:
    """Draws snapshots at most twice a second, and less often where that would cost more than its budget.

    There is no refresh thread: drawing happens inside :meth:`draw`. Safe to call from several threads.
    """

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console = console
        self._clock = clock
        self._live: Live | None = None
        self._lock = threading.RLock()
        self._next_s = clock()
        self._last: Snapshot | None = None
        self._closed = False
        self._renders = 0
        self._render_s = 0.0

    def wants(self, *, updated: bool) -> bool:
        """Whether the next frame is due."""
        return self._clock() >= self._next_s

    def draw(self, snapshot: Snapshot) -> None:
        """Draw one frame now and plan the next; starts the live display at the first call.

        Raises:
            OSError: the terminal is gone.
        """
        with self._lock:
            if self._closed:
                return
            begin = perf_counter()
            self._last = snapshot
            frame = self._render(snapshot)
            if self._live is None:
                self._start(frame)
            else:
                self._live.update(frame, refresh=True)
            cost = perf_counter() - begin
            self._renders += 1
            self._render_s += cost
            self._next_s = self._clock() + min(_MAX_INTERVAL_S, max(_MIN_INTERVAL_S, cost / _BUDGET))

    def note(self, text: str, style: str | None = None) -> None:
        """Print ``text`` above the view in a rich style; long lines wrap as the terminal wraps them."""
        with self._lock:
            self._console.print(Text(text, style=style or ""), soft_wrap=True)

    def close(self) -> None:
        """Leave the last frame on the screen and give the cursor and the streams back; idempotent."""
        with self._lock:
            self._closed = True
            live, self._live = self._live, None
            if live is not None:
                live.stop()

    def stats(self) -> dict[str, float]:
        """Frames drawn, and the wall time in s that drawing took."""
        return {"renders": self._renders, "render_s": self._render_s}

    def _start(self, frame: _Frame) -> None:
        # sys.stdout and sys.stderr go through the console while the view is up, so a stray print (or a
        # warning) of a library appears above the view too.
        live = Live(frame, console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._live = live
        live.start(refresh=True)

    def _render(self, snapshot: Snapshot) -> _Frame:
        size = self._console.size
        ascii_only = self._console.options.ascii_only
        lines = compose(snapshot, size.width, size.height - 1, ascii_only=ascii_only)
        options = self._console.options.update(width=size.width, no_wrap=True, overflow="ellipsis")
        return _Frame(self._console.render_lines(line, options, pad=False)[0] for line in lines)
