"""Without a terminal: one self-contained line per interval."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO

from appo_learner.report import words
from appo_learner.report.progress import Snapshot


def line(snapshot: Snapshot) -> str:
    """Everything about one update in one line; empty before the first update."""
    metrics, plan = snapshot.metrics, snapshot.plan
    if metrics is None:
        return ""
    total = f"/{plan.max_iterations}" if plan.max_iterations else ""
    steps = f"/{words.count(plan.max_env_steps)}" if plan.max_env_steps else ""
    shm = sum(view.path == "shm" for view in snapshot.fleet)
    paths = ", ".join(
        f"{n} {path}" for n, path in ((shm, "shm"), (sum(view.path == "tcp" for view in snapshot.fleet), "tcp")) if n
    )
    collectors = f"{metrics.collectors} collector{'' if metrics.collectors == 1 else 's'}"
    parts = [
        f"iter {metrics.iteration}{total}",
        f"steps {words.count(metrics.env_steps)}{steps}",
        f"return {words.number(metrics.return_mean)}",
        f"len {'-' if metrics.length_mean is None else f'{metrics.length_mean:.0f}'}",
        f"timeouts {words.percent(metrics.timeout_rate)}",
        f"fps {words.count(metrics.fps)} (collected {words.count(metrics.fps_collected)})",
        f"lag {metrics.lag_mean:.1f}/{metrics.lag_max}",
        *([f"discarded {metrics.rollouts_discarded}"] if metrics.rollouts_discarded else []),
        collectors + (f" ({paths})" if paths else ""),
        f"wait {words.percent(snapshot.shares.get('wait'))}",
        f"ETA {words.duration(snapshot.eta_s)}",
    ]
    return "  ".join(parts)


class PlainView:
    """Prints :func:`line` for the first update, then at most once per interval, and for the last update."""

    def __init__(self, out: IO[str], clock: Callable[[], float], interval_s: float) -> None:
        self._out = out
        self._clock = clock
        self._interval_s = interval_s
        self._next_s = clock()
        self._unprinted: Snapshot | None = None
        self._printed_iteration: int | None = None
        self._lines = 0

    def wants(self, *, updated: bool) -> bool:
        """Whether a snapshot is of use now: after every update, since any may turn out to be the last."""
        return updated

    def draw(self, snapshot: Snapshot) -> None:
        """Print the line of this update, or keep it in case it is the last one.

        Raises:
            OSError: standard output is gone.
        """
        metrics = snapshot.metrics
        if metrics is None or metrics.iteration == self._printed_iteration:
            return
        self._unprinted = snapshot
        now = self._clock()
        if now < self._next_s:
            return
        self._next_s = now + self._interval_s
        self._flush()

    def note(self, text: str, style: str | None = None) -> None:
        """Print ``text`` as it is; ``style`` is for terminals."""
        encoding = getattr(self._out, "encoding", None) or "utf-8"
        # A collector's name must not fail in a locale that cannot spell it.
        print(text.encode(encoding, "replace").decode(encoding), file=self._out, flush=True)

    def close(self) -> None:
        """Print the last line if the interval has held it back; idempotent."""
        self._flush()

    def stats(self) -> dict[str, float]:
        """How many lines were printed."""
        return {"lines": self._lines}

    def _flush(self) -> None:
        snapshot, self._unprinted = self._unprinted, None
        if snapshot is not None and snapshot.metrics is not None:
            self._printed_iteration = snapshot.metrics.iteration
            self._lines += 1
            self.note(line(snapshot))
