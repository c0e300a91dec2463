"""The environment contract: NumPy, batched, the ended environments reset within the same step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from appo_common.errors import EnvironmentFault
from appo_common.spec import EnvSpec

Observations = dict[str, np.ndarray]
"""Observation groups by name, each ``[N, *group shape]`` in the dtype of the spec."""


class Step(NamedTuple):
    """What one call of :meth:`VectorEnv.step` returns, for N environments."""

    obs: Observations
    """``[N, *group]`` each. For an environment that ended, the first observation of its next episode.

    Where ``spec.skips_steps``, an environment that ended shows its last observation, as in ``final_obs``; the next
    step, which is not valid for it, returns the first one of its next episode.
    """
    reward: np.ndarray
    """``[N]`` float32."""
    terminated: np.ndarray
    """``[N]`` bool: the task itself ended the episode (a fall, a goal). Its value is zero from here on."""
    truncated: np.ndarray
    """``[N]`` bool: the time limit ended the episode. The learner bootstraps from ``final_obs``."""
    final_obs: Observations
    """``[E, *group]`` each: the last observation of every environment that ended in this step, in the order
    of ``np.flatnonzero(terminated | truncated)``. E is 0 when none ended."""
    info: dict[str, Any]
    """``info["terms"]``: dict of ``[N]`` float arrays, this step's weighted reward terms: every name in
    ``spec.reward_terms``. May be absent where the spec names none."""
    valid: np.ndarray | None = None
    """``[N]`` bool where ``spec.skips_steps``: False where this step only reset the environment. Such a step has
    reward 0 and no end, its action was ignored, and it is never trained on."""


class VectorEnv(ABC):
    """N environments stepped together.

    Arrays that were returned are never written again by the environment: every call returns fresh ones.
    """

    spec: EnvSpec

    @abstractmethod
    def reset(self, seed: int) -> Observations:
        """Start a new episode in every environment; the same seed gives the same trajectories."""

    @abstractmethod
    def step(self, actions: np.ndarray) -> Step:
        """Apply ``actions`` (``[N, A]`` float32) for one environment step."""

    def ages(self) -> np.ndarray:
        """Return ``[N]`` int: environment steps that the current episodes had behind them when they began.

        Not zero where the first episodes start at a random age, so that time-outs are spread. Such an episode is
        trained on like any other, but its return says nothing about a whole episode.
        """
        return np.zeros(self.spec.num_envs, dtype=np.int64)

    def render(self, env: int = 0, width: int = 640, height: int = 480) -> np.ndarray:
        """Return a ``[height, width, 3]`` uint8 RGB picture of environment ``env``."""
        raise EnvironmentFault(f"{self.spec.name} cannot render")

    def close(self) -> None:  # noqa: B027 - most environments hold nothing that needs closing
        """Release threads, windows and files."""
