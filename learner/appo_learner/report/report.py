"""One object that the training loop talks to; it feeds the console and every file."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from appo_common.errors import AppoError
from appo_learner.metrics import CollectorView, RunPlan, RunSummary, UpdateMetrics
from appo_learner.report import summary as closing
from appo_learner.report import words
from appo_learner.report.console import Nowhere, View, make_view
from appo_learner.report.jsonl import JsonLines
from appo_learner.report.logs import NoteHandler
from appo_learner.report.plain import PlainView
from appo_learner.report.progress import Progress, Snapshot, pace, why_waiting
from appo_learner.report.tensorboard import TensorBoard

_log = logging.getLogger(__name__)

_STALL_S = 20.0
"""So long without an update, and the run says once what it waits for."""

_SHOW_WAIT_S = 3.0
"""So long without an update, and the live view shows what it waits for."""


class Report:
    """Shows and records a run. Use it as a context manager, or call :meth:`close` in a ``finally``.

    ``update``, ``tick``, ``finish`` and ``close`` belong to the training thread; ``note`` and the log handler
    may be used from any thread. Metrics come second to training: once the run is under way, a full disk or a
    terminal that has gone is logged once per place, counted in :meth:`stats`, and never raised.
    """

    def __init__(
        self,
        plan: RunPlan,
        *,
        plain: bool,
        log_interval_s: float,
        train_cfg: dict[str, Any],
        env_cfg: dict[str, Any],
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the files of ``plan.run_dir``, which must exist; nothing is drawn yet.

        Args:
            plan: names the run and its end; its limits count over the whole run, resumes included.
            plain: one line per ``log_interval_s`` even on a terminal.
            log_interval_s: seconds between two plain lines.
            train_cfg: rsl_rl's training section; ``logger`` may name a further writer. Not changed.
            env_cfg: the environment section, for writers that store configurations.
            console: where to show; standard output by default.
            clock: seconds, for rate limits and elapsed time.

        Raises:
            ConfigError: ``train_cfg["logger"]`` cannot be used.
            AppoError: the run directory cannot be written.
        """
        self._plan, self._clock = plan, clock
        self._progress = Progress(plan)
        self._metrics: UpdateMetrics | None = None
        self._fleet: Sequence[CollectorView] = ()
        self._started_s = self._updated_s = clock()
        self._stall_told = False
        self._updates = 0
        self._errors: dict[str, int] = {}
        self._run_dir = Path(plan.run_dir)
        try:
            self._jsonl = JsonLines(self._run_dir / "metrics.jsonl", plan.start_iteration)
            try:
                self._tensorboard = TensorBoard(self._run_dir, plan.start_iteration, train_cfg, env_cfg)
            except BaseException:
                self._jsonl.close()
                raise
        except OSError as error:
            raise AppoError(f"cannot write metrics to {error.filename or plan.run_dir}: {_reason(error)}") from error
        self._log_interval_s = log_interval_s
        self._view: View = make_view(console, plain, log_interval_s, clock)
        self.log_handler: logging.Handler = NoteHandler(self.note)
        """Give this to the root logger in place of a stream handler, so that records do not tear the view."""
        self._closed = False
        # A program that dies without close() must not leave the user without a cursor.
        atexit.register(self.close)

    def update(self, metrics: UpdateMetrics) -> None:
        """Record one update everywhere and show it where that is due."""
        self._metrics = metrics
        self._fleet = metrics.fleet or self._fleet
        self._updated_s, self._stall_told = self._clock(), False
        self._updates += 1
        self._progress.add(metrics)
        self._guard("metrics.jsonl", self._jsonl.path, lambda: self._jsonl.write(metrics))
        self._guard("tensorboard", self._tensorboard.path, lambda: self._tensorboard.write(metrics))
        self._show(updated=True)

    def tick(self, fleet: Sequence[CollectorView], *, waiting_for: str | None = None) -> None:
        """Keep the view fresh while the trainer waits; cheap enough for hundreds of calls a second.

        ``waiting_for`` is the reason, in words, why there is no update yet. Once per stall it is said aloud.
        """
        self._fleet = fleet
        waited_s = self._clock() - self._updated_s
        if waited_s >= _STALL_S and not self._stall_told:
            self._stall_told = True
            why = waiting_for or why_waiting(fleet)
            self.note(f"no update for {waited_s:.0f} s, because {why}", "yellow")
        self._show(updated=False, waiting_for=waiting_for)

    def note(self, text: str, style: str | None = None) -> None:
        """Print ``text`` above the live view, or as a line of its own; ``style`` is a rich style."""
        self._guard("console", "standard output", lambda: self._view.note(words.clean(text), style))

    def checkpoint_saved(self, path: str, iteration: int) -> None:
        """Tell the writer named by ``train.logger`` about a checkpoint, as rsl_rl does; W&B uploads it."""
        save = self._tensorboard.save_model
        self._guard("tensorboard", path, lambda: save(path, iteration))

    def finish(self, summary: RunSummary) -> None:
        """Show the last state, close everything, print the summary and write ``summary.json``."""
        if not self._closed and self._metrics is not None:
            self._guard("console", "standard output", lambda: self._view.draw(self._snapshot(None)))
        self.close()
        path = self._run_dir / "summary.json"
        self._guard("summary.json", path, lambda: closing.write(path, self._plan, summary))
        self.note("\n".join(closing.lines(self._plan, summary)))

    def close(self) -> None:
        """Give the terminal back and close the files; idempotent."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        # The terminal first: nothing that a file does can keep it from being restored.
        self._guard("console", "standard output", self._view.close)
        self._guard("metrics.jsonl", self._jsonl.path, self._jsonl.close)
        self._guard("tensorboard", self._tensorboard.path, self._tensorboard.close)

    def stats(self) -> dict[str, Any]:
        """Updates seen, frames or lines shown and their cost in s, and errors by place."""
        return {"updates": self._updates, **self._view.stats(), "errors": dict(self._errors)}

    def __enter__(self) -> Report:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _show(self, *, updated: bool, waiting_for: str | None = None) -> None:
        if self._view.wants(updated=updated):
            self._guard("console", "standard output", lambda: self._view.draw(self._snapshot(waiting_for)))

    def _snapshot(self, waiting_for: str | None) -> Snapshot:
        since_s = self._clock() - self._updated_s
        status = None
        if since_s >= _SHOW_WAIT_S or self._metrics is None:
            status = waiting_for or why_waiting(self._fleet)
            if since_s >= 1.0:
                status += f" ({words.duration(since_s)})"
        before_s = self._metrics.time_s if self._metrics else self._updated_s - self._started_s
        shares = self._progress.shares()
        return Snapshot(
            plan=self._plan,
            metrics=self._metrics,
            fleet=self._fleet,
            elapsed_s=before_s + since_s,
            eta_s=self._progress.eta_s(since_s),
            done=self._progress.done(),
            shares=shares if self._metrics else {},
            pace=pace(shares),
            returns=self._progress.returns,
            status=status,
        )

    def _guard(self, place: str, path: str | Path, action: Callable[[], object]) -> None:
        """Run ``action``; what goes wrong with a disk, a terminal or a writer is told once and counted."""
        try:
            action()
        except Exception as error:
            first = place not in self._errors
            self._errors[place] = self._errors.get(place, 0) + 1
            if place == "console":
                self._console_failed(error)
            if first:
                # An OSError explains itself; anything else is a defect that needs its traceback.
                trace = None if isinstance(error, OSError) else error
                _log.error("%s: cannot write %s: %s; training goes on", place, path, _reason(error), exc_info=trace)

    def _console_failed(self, error: Exception) -> None:
        view, self._view = self._view, Nowhere()
        if not isinstance(error, OSError):
            # The stream is sound, the view is not: a defect of ours must not leave the user blind.
            self._view = PlainView(sys.stderr, self._clock, self._log_interval_s)
        with suppress(Exception):
            view.close()
        if isinstance(error, BrokenPipeError):
            # Else Python flushes the rest into the closed pipe at exit, and fails.
            with suppress(Exception):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return f"errno {error.errno} ({os.strerror(error.errno)})"
    return f"{type(error).__name__}: {error}"
