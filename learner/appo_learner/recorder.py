"""Everything about an update that people want to see, gathered while it happens."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from appo_learner.appo import APPO
from appo_learner.checkpoint import Progress
from appo_learner.member import Rollout
from appo_learner.metrics import CollectorView, UpdateMetrics
from appo_learner.statistics import EpisodeWindow, Rate, mean

COLLECTOR_TIMERS = ("infer", "env_step", "send", "credit_wait")


class Recorder:
    """Timers, lags, rates and episodes of the training thread."""

    def __init__(self) -> None:
        """Start the clock."""
        self._started = time.monotonic()
        self._timers: dict[str, float] = {}
        self._lags: list[int] = []
        self._collector_timers: dict[str, float] = {}
        self._trained, self._collected = Rate(), Rate()
        self.episodes = EpisodeWindow()

    @property
    def elapsed_s(self) -> float:
        """Wall time since the run began in this process."""
        return time.monotonic() - self._started

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measure a phase of the update; ``name`` is a field of :class:`UpdateMetrics`."""
        start = time.perf_counter()
        yield
        self._timers[name] = time.perf_counter() - start

    def note_arrivals(self, rollouts: Sequence[Rollout]) -> None:
        """Count the episodes of rollouts that were taken from the inbox, trained on or not."""
        for rollout in rollouts:
            self.episodes.add(rollout.header.episodes)

    def note_batch(self, rollouts: Sequence[Rollout], version: int) -> None:
        """Take the lags behind ``version`` and the collectors' timers of the rollouts that were trained on."""
        self._lags = [version - rollout.header.policy_version for rollout in rollouts]
        self._collector_timers = {
            f"{name}_ms": mean(rollout.header.timers_ms.get(name, 0.0) for rollout in rollouts) or 0.0
            for name in COLLECTOR_TIMERS
        }

    def metrics(
        self, progress: Progress, fleet: Sequence[CollectorView], losses: dict[str, float], algorithm: APPO
    ) -> UpdateMetrics:
        """Return the record of the update that has just been published."""
        return UpdateMetrics(
            iteration=progress.iteration,
            time_s=self.elapsed_s,
            env_steps=progress.env_steps,
            env_steps_collected=progress.env_steps_collected,
            fps=self._trained.note(progress.env_steps),
            fps_collected=self._collected.note(progress.env_steps_collected),
            return_mean=self.episodes.return_mean(),
            length_mean=self.episodes.length_mean(),
            timeout_rate=self.episodes.timeout_rate(),
            reward_terms=self.episodes.terms(),
            lag_mean=mean(self._lags) or 0.0,
            lag_max=max(self._lags),
            rollouts_trained=progress.rollouts_trained,
            rollouts_discarded=progress.rollouts_discarded,
            collectors=sum(view.path != "" for view in fleet),
            learning_rate=algorithm.learning_rate,
            losses=losses,
            action_std=algorithm.get_policy().output_std.mean().item(),
            **self._timers,
            **self._collector_timers,
            fleet=tuple(fleet),
        )
