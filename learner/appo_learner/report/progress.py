"""How far the run is, when it will end, and which side holds it back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from appo_learner.metrics import CollectorView, RunPlan, UpdateMetrics
from appo_learner.report import words

TIMERS = ("wait", "stage", "update", "publish")
"""The four timers of the training loop, in the order of the loop."""

_MARK_EVERY_S = 1.0
_MARKS = 30
_CURVE_POINTS = 512


@dataclass(frozen=True)
class Snapshot:
    """What the console shows at one moment."""

    plan: RunPlan
    metrics: UpdateMetrics | None
    """None before the first update."""
    fleet: Sequence[CollectorView]
    elapsed_s: float
    eta_s: float | None
    done: float | None
    """Share of the run that is done, 0 to 1; None for a run without an end."""
    shares: dict[str, float]
    """Share of wall time by timer name (see :data:`TIMERS`), over about the last half minute."""
    pace: str
    """Which side holds the run back, in words."""
    returns: Sequence[float]
    """The curve of mean returns since this process began, thinned out."""
    status: str | None = None
    """What the trainer waits for, when it has been waiting for long."""


@dataclass(frozen=True)
class _Mark:
    time_s: float
    iteration: int
    env_steps: int
    timers_s: tuple[float, ...]


@dataclass
class Curve:
    """A curve of bounded length: when it is full, neighbouring points are averaged in pairs."""

    limit: int = _CURVE_POINTS
    points: list[float] = field(default_factory=list)
    _stride: int = 1
    _pending: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        """Append ``value``, which becomes a point once as many values are there as a point stands for."""
        self._pending.append(value)
        if len(self._pending) < self._stride:
            return
        self.points.append(sum(self._pending) / len(self._pending))
        self._pending.clear()
        if len(self.points) >= self.limit:
            self.points = [(a + b) / 2 for a, b in zip(self.points[::2], self.points[1::2], strict=False)]
            self._stride *= 2


class Progress:
    """Rates over about the last half minute, and what follows from them.

    ``plan.max_iterations`` and ``plan.max_env_steps`` count over the whole run, resumes included, as
    ``iteration`` and ``env_steps`` do.
    """

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._curve = Curve()
        origin = _Mark(0.0, plan.start_iteration, plan.start_env_steps, (0.0,) * len(TIMERS))
        self._latest = origin
        self._marks: deque[_Mark] = deque([origin], maxlen=_MARKS)
        self._origin_kept = True

    @property
    def returns(self) -> Sequence[float]:
        """The curve of mean returns, at most a few hundred points."""
        return self._curve.points

    def add(self, metrics: UpdateMetrics) -> None:
        """Take one update into account; constant time."""
        now = (metrics.wait_s, metrics.stage_s, metrics.update_s, metrics.publish_s)
        timers = tuple(a + b for a, b in zip(self._latest.timers_s, now, strict=True))
        self._latest = _Mark(metrics.time_s, metrics.iteration, metrics.env_steps, timers)
        if metrics.time_s - self._marks[-1].time_s >= _MARK_EVERY_S:
            self._marks.append(self._latest)
        if self._origin_kept and len(self._marks) > 2:
            # Joining and warming up lie before the first update; they would spoil the rate.
            self._marks.popleft()
            self._origin_kept = False
        if metrics.return_mean is not None:
            self._curve.add(metrics.return_mean)

    def eta_s(self, since_update_s: float = 0.0) -> float | None:
        """Seconds to the end by iterations or environment steps, whichever ends first; None if unknown."""
        base, now = self._marks[0], self._latest
        window = now.time_s - base.time_s
        targets = (
            (self._plan.max_iterations, now.iteration, now.iteration - base.iteration),
            (self._plan.max_env_steps, now.env_steps, now.env_steps - base.env_steps),
        )
        times = [
            max(0.0, (target - at) * window / moved - since_update_s)
            for target, at, moved in targets
            if target is not None and moved > 0 and window > 0
        ]
        return min(times, default=None)

    def done(self) -> float | None:
        """Share of the run that is done, 0 to 1; None for a run without an end."""
        plan, now = self._plan, self._latest
        pairs = ((now.iteration, plan.max_iterations), (now.env_steps, plan.max_env_steps))
        shares = [min(1.0, at / total) for at, total in pairs if total]
        return max(shares, default=None)

    def shares(self) -> dict[str, float]:
        """Share of wall time by timer; what none of them covers is missing from the sum."""
        base, now = self._marks[0], self._latest
        spent = [b - a for a, b in zip(base.timers_s, now.timers_s, strict=True)]
        wall = max(now.time_s - base.time_s, sum(spent))
        return dict(zip(TIMERS, (s / wall for s in spent), strict=True)) if wall > 0 else {}


def pace(shares: dict[str, float]) -> str:
    """Which side holds the run back, in words; empty before the first update."""
    if not shares:
        return ""
    wait = shares["wait"]
    if wait >= 0.5:
        return f"collectors set the pace: the learner waits {words.percent(wait)} of the time; add collectors"
    if wait > 0.15:
        return f"balanced: the learner waits for rollouts {words.percent(wait)} of the time"
    slowest = max(TIMERS[1:], key=lambda name: shares[name])
    if shares[slowest] <= 0.0:
        return ""
    return f"the learner sets the pace: {slowest} takes {words.percent(shares[slowest])} of the time"


def why_waiting(fleet: Sequence[CollectorView]) -> str:
    """A reason for a missing update that can be read off the fleet alone."""
    if not fleet:
        return "no collector is connected"
    silent = sum(view.state == "silent" for view in fleet)
    if silent == len(fleet):
        return "the only collector is silent" if silent == 1 else f"all {silent} collectors are silent"
    return "no complete batch has arrived" + (f" ({silent} of {len(fleet)} collectors silent)" if silent else "")
