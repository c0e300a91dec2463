"""What an environment looks like from outside: the part of it that both services must agree on."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

PositiveInt = Annotated[int, Field(gt=0)]
ActionScaling = Literal["none", "clip", "rescale"]
"""What stands between policy and environment: nothing, a clip to the bounds, or [-1, 1] mapped to them."""


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
    action_nvec: list[PositiveInt] = []
    """Number of choices of each action component where actions are discrete; empty where they are continuous.
    An action then holds the whole numbers 0 to n - 1."""
    action_low: list[float] = []
    """Lowest value the environment accepts, per action component; empty where it has no bounds or they are unknown."""
    action_high: list[float] = []
    """Highest value the environment accepts, per action component; empty with ``action_low``."""
    action_scaling: ActionScaling = "none"
    """How the policy's actions become the environment's."""
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
    skips_steps: bool = False
    """Some steps only reset an environment, as in Gymnasium's NEXT_STEP mode; ``Step.valid`` marks the others."""

    @model_validator(mode="after")
    def _one_entry_per_action(self) -> EnvSpec:
        for key in ("action_nvec", "action_low", "action_high"):
            given = len(getattr(self, key))
            if given not in (0, self.num_actions):
                raise ValueError(f"{key} has {given} entries for num_actions = {self.num_actions}")
        if len(self.action_low) != len(self.action_high):
            raise ValueError("action_low and action_high must be given together")
        return self

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
        for key in _SHARED:
            here_value, there_value = getattr(self, key), getattr(other, key)
            if here_value != there_value:
                return f"{key}: this run has {here_value!r}, the collector offers {there_value!r}"
        return None


_SHARED = (
    *("num_actions", "action_nvec", "action_low", "action_high", "action_scaling"),
    *("episode_limit", "step_dt", "reward_terms", "skips_steps"),
)


def _words(group: ObservationGroup | None) -> str:
    return "none" if group is None else f"{tuple(group.shape)} {group.dtype}"
