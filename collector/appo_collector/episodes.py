"""Episode statistics: plain sums of what the environment returned."""

from __future__ import annotations

import numpy as np

from appo_collector.envs.contract import Step
from appo_common.errors import EnvironmentFault
from appo_common.messages import MAX_EPISODES, Episodes


class EpisodeTracker:
    """Sums rewards and reward terms per environment, and hands out the episodes that ended.

    The sums are float64 and hold nothing but the environment's own rewards: no bootstrap, no scaling.
    """

    def __init__(self, num_envs: int, reward_terms: list[str], ages: np.ndarray | None = None) -> None:
        """Start with a fresh episode in each of ``num_envs`` environments.

        ``ages`` (``[N]``, see :meth:`VectorEnv.ages`) marks first episodes that are not whole: they are left out.
        """
        self._whole = np.ones(num_envs, dtype=bool) if ages is None else ages == 0
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._terms = {name: np.zeros(num_envs) for name in reward_terms}
        self._clear()

    def step(self, step: Step) -> None:
        """Add one environment step of all environments."""
        self._returns += step.reward
        self._lengths += 1 if step.valid is None else step.valid
        reported = step.info.get("terms", {})
        for name, sums in self._terms.items():
            if name not in reported:
                raise EnvironmentFault(f"info['terms'] lacks {name!r}, which the spec's reward_terms promise")
            sums += reported[name]
        ended = np.flatnonzero(step.terminated | step.truncated)
        if ended.size:
            self._close(ended, step.terminated)

    def drain(self) -> Episodes:
        """Return the episodes that ended since the last call, at most the newest 100."""
        newest = slice(-MAX_EPISODES, None)
        episodes = Episodes(
            returns=self._ended_returns[newest],
            lengths=self._ended_lengths[newest],
            timeouts=self._ended_timeouts[newest],
            terms={name: sums[newest] for name, sums in self._ended_terms.items()},
        )
        self._clear()
        return episodes

    def _close(self, ended: np.ndarray, terminated: np.ndarray) -> None:
        shown = ended[self._whole[ended]]
        self._ended_returns += self._returns[shown].tolist()
        self._ended_lengths += self._lengths[shown].tolist()
        # An episode that is both terminated and truncated has no future value: it counts as terminated.
        self._ended_timeouts += (~terminated[shown]).tolist()
        for name, sums in self._terms.items():
            self._ended_terms[name] += sums[shown].tolist()
            sums[ended] = 0.0
        self._whole[ended] = True
        self._returns[ended] = 0.0
        self._lengths[ended] = 0

    def _clear(self) -> None:
        self._ended_returns: list[float] = []
        self._ended_lengths: list[int] = []
        self._ended_timeouts: list[bool] = []
        self._ended_terms: dict[str, list[float]] = {name: [] for name in self._terms}
