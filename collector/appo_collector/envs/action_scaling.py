"""Between a policy, whose Gaussian knows no bounds, and an environment that has some."""

from __future__ import annotations

import logging

import numpy as np

from appo_collector.envs.contract import Observations, Step, VectorEnv
from appo_common.errors import ConfigError
from appo_common.spec import ActionScaling, EnvSpec

logger = logging.getLogger(__name__)


def scale_actions(env: VectorEnv, mode: ActionScaling | None) -> VectorEnv:
    """Return ``env`` with ``env.action_scaling`` = ``mode`` applied; None takes the default for its bounds.

    Raises ConfigError where the environment lacks the bounds that ``mode`` needs.
    """
    chosen = _default(env.spec) if mode is None else mode
    if problem := _problem(env.spec, chosen):
        raise ConfigError(f"env.action_scaling: {chosen!r} is not possible: {env.spec.name} {problem}")
    if chosen != "none":
        env = ScaledActions(env, chosen)
    if env.spec.action_low:
        logger.info("%s: %s (env.action_scaling: %s)", env.spec.name, _WORDS[chosen], chosen)
    return env


class ScaledActions(VectorEnv):
    """Clips actions to the bounds of ``env``; with ``rescale``, [-1, 1] is mapped to the bounds first."""

    def __init__(self, env: VectorEnv, mode: ActionScaling) -> None:
        """Take the bounds from the spec of ``env``."""
        self.spec = env.spec.model_copy(update={"action_scaling": mode})
        self._env = env
        self._mode = mode
        with np.errstate(over="ignore"):  # a bound beyond float32 is none
            self._low = np.array(env.spec.action_low, dtype=np.float32)
            self._high = np.array(env.spec.action_high, dtype=np.float32)

    def step(self, actions: np.ndarray) -> Step:
        """Apply ``[N, A]`` float32 actions after scaling; the array itself is left as it is."""
        return self._env.step(self._scaled(actions))

    def _scaled(self, actions: np.ndarray) -> np.ndarray:
        if self._mode == "clip":
            return np.clip(actions, self._low, self._high)
        # Centre and half width: exact where the bounds are -1 and 1.
        centre, half = (self._high + self._low) / 2, (self._high - self._low) / 2
        return centre + half * np.clip(actions, -1.0, 1.0)

    def reset(self, seed: int) -> Observations:
        """Start new episodes; see :class:`VectorEnv`."""
        return self._env.reset(seed)

    def ages(self) -> np.ndarray:
        """Return ``[N]`` int; see :class:`VectorEnv`."""
        return self._env.ages()

    def render(self, env: int = 0, width: int = 640, height: int = 480) -> np.ndarray:
        """Return a ``[height, width, 3]`` uint8 picture; see :class:`VectorEnv`."""
        return self._env.render(env, width, height)

    def close(self) -> None:
        """Close the environment itself."""
        self._env.close()


_WORDS = {
    "none": "actions go to the environment as sampled, whatever its bounds",
    "clip": "actions are clipped to the environment's bounds",
    "rescale": "actions from -1 to 1 are mapped to the environment's bounds, others clipped",
}


def _default(spec: EnvSpec) -> ActionScaling:
    return "rescale" if spec.action_low and _has_a_middle(spec) else "none"


def _has_a_middle(spec: EnvSpec) -> bool:
    """Whether the bounds are finite, and so small that their sum and difference are finite in float32, too."""
    low, high = (np.array(bound, dtype=np.float64).clip(-1e39, 1e39) for bound in (spec.action_low, spec.action_high))
    return bool(max(np.abs(high - low).max(), np.abs(high + low).max()) <= np.finfo(np.float32).max)


def _problem(spec: EnvSpec, mode: ActionScaling) -> str:
    if mode == "none":
        return ""
    if spec.action_nvec:
        return "has discrete actions; use none"
    if not spec.action_low:
        return "names no bounds of its actions; use none"
    if mode == "rescale" and not _has_a_middle(spec):
        bounds = f"action_low = {spec.action_low}, action_high = {spec.action_high}"
        return f"has infinite bounds, or as good as ({bounds}); use clip or none"
    return ""
