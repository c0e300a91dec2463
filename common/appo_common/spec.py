"""What an environment looks like from outside: the part of it that both services must agree on."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

PositiveInt = Annotated[int, Field(gt=0)]


class ObservationGroup(BaseModel):
    """One named observation array, without its batch dimension."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    shape: list[PositiveInt]
    """Shape for one environment, e.g. ``[48]``."""
    dtype: str = "float32"
    """NumPy dtype name: ``float32``, ``float16`` or ``uint8``."""

    @field_validator("dtype")
    @classmethod
    def _known_dtype(cls, value: str) -> str:
        if value not in ("float32", "float16", "uint8"):
            raise ValueError(f"dtype must be float32, float16 or uint8, not {value!r}")
        return value


class EnvSpec(BaseModel):
    """The contract of a batch of environments; a collector offers it in READY.

    Two collectors of one run must agree on everything but ``num_envs``.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    """The environment's name in the configuration, e.g. ``mujoco:cartpole-swingup``."""
    observations: Annotated[dict[str, ObservationGroup], Field(min_length=1)]
    """Observation groups by name, e.g. ``policy`` and ``privileged``."""
    num_actions: PositiveInt
    """A: length of one environment's action vector (float32)."""
    num_envs: PositiveInt
    """N: environments stepped together by this collector."""
    episode_limit: PositiveInt | None = None
    """Environment steps after which an episode is truncated, and before which none is; None if unknown."""
    step_dt: Annotated[float, Field(gt=0)] = 1.0
    """Seconds of simulated time per environment step."""
    reward_terms: list[str] = []
    """Names of the reward terms that ``info["terms"]`` reports, already weighted; they sum to the reward."""
    action_names: list[str] = []
    """Joint or actuator names in action order, for export; may be empty."""

    def zeros(self, group: str, *batch: int) -> np.ndarray:
        """Return zeros of shape ``[*batch, *group shape]`` in the group's dtype."""
        description = self.observations[group]
        return np.zeros((*batch, *description.shape), dtype=description.dtype)

    def mismatch(self, other: EnvSpec) -> str | None:
        """Say in words how ``other`` (a collector's offer) differs from this run's spec; None if it fits."""
        mine, theirs = self.observations, other.observations
        for group in sorted(mine.keys() | theirs.keys()):
            here, there = mine.get(group), theirs.get(group)
            if here is None or there is None:
                return f"observation group {group!r}: this run has {_words(here)}, the collector offers {_words(there)}"
            if here != there:
                return f"observation group {group!r}: this run has {_words(here)}, the collector offers {_words(there)}"
        for key in ("num_actions", "episode_limit", "step_dt", "reward_terms"):
            here_value, there_value = getattr(self, key), getattr(other, key)
            if here_value != there_value:
                return f"{key}: this run has {here_value!r}, the collector offers {there_value!r}"
        return None


def _words(group: ObservationGroup | None) -> str:
    return "none" if group is None else f"{tuple(group.shape)} {group.dtype}"
