"""Figures over a sliding window: episodes, rates."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from appo_common.messages import MAX_EPISODES, Episodes

RATE_WINDOW_S = 5.0


class Episode(NamedTuple):
    """One episode that ended."""

    total: float
    length: int
    timeout: bool
    terms: dict[str, float]


class EpisodeWindow:
    """The last 100 episodes over all collectors, in the order in which their rollouts were taken."""

    def __init__(self) -> None:
        """Start empty."""
        self._episodes: deque[Episode] = deque(maxlen=MAX_EPISODES)

    def add(self, episodes: Episodes) -> None:
        """Add the episodes of one rollout."""
        for place, total in enumerate(episodes.returns):
            terms = {name: values[place] for name, values in episodes.terms.items()}
            self._episodes.append(Episode(total, episodes.lengths[place], episodes.timeouts[place], terms))

    def return_mean(self) -> float | None:
        """Mean undiscounted return, None before the first episode has ended."""
        return mean(episode.total for episode in self._episodes)

    def length_mean(self) -> float | None:
        """Mean length in environment steps."""
        return mean(episode.length for episode in self._episodes)

    def timeout_rate(self) -> float | None:
        """Share of episodes that were truncated, 0 to 1."""
        return mean(episode.timeout for episode in self._episodes)

    def terms(self) -> dict[str, float]:
        """Mean per-episode sum of each reward term."""
        names = self._episodes[-1].terms if self._episodes else ()
        return {name: mean(episode.terms.get(name, 0.0) for episode in self._episodes) or 0.0 for name in names}


class Rate:
    """Growth per second of a counter over the last few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with no points."""
        self._clock = clock
        self._points: deque[tuple[float, int]] = deque()

    def note(self, count: int) -> float:
        """Add the counter's value now and return the rate."""
        now = self._clock()
        self._points.append((now, count))
        while len(self._points) > 2 and now - self._points[0][0] > RATE_WINDOW_S:
            self._points.popleft()
        (then, before), elapsed = self._points[0], now - self._points[0][0]
        return (count - before) / elapsed if elapsed > 0 and then < now else 0.0


def mean(values: Iterable[float]) -> float | None:
    """Arithmetic mean, None of nothing."""
    listed: Sequence[float] = list(values)
    return sum(listed) / len(listed) if listed else None
