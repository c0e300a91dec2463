"""A small environment with discrete actions, as users' collectors would find it: ``discrete_envs:Match``."""

from __future__ import annotations

import numpy as np

from appo_collector.envs.contract import Observations, Step, VectorEnv
from appo_common.spec import EnvSpec, ObservationGroup

NVEC = [3, 2, 4]
LENGTH = 16
"""Environment steps of an episode, after which it is truncated."""


class Match(VectorEnv):
    """Press, on each of three panels, the button that is lit: MultiDiscrete([3, 2, 4]).

    Group ``policy`` [9] float32: 1 for the button that is lit on each panel. The reward is the share of the panels
    that were right; other buttons light up afterwards. Guessing earns (1/3 + 1/2 + 1/4) / 3 = 0.361 per step.
    """

    def __init__(self, num_envs: int) -> None:
        self.spec = EnvSpec(
            name="discrete_envs:Match",
            observations={"policy": ObservationGroup(shape=[sum(NVEC)])},
            num_actions=len(NVEC),
            action_nvec=NVEC,
            num_envs=num_envs,
            episode_limit=LENGTH,
        )

    def reset(self, seed: int) -> Observations:
        self._rng = np.random.default_rng(seed)
        self._age = 0
        return self._light()

    def step(self, actions: np.ndarray) -> Step:
        assert actions.dtype == np.float32
        assert np.array_equal(actions, np.clip(np.round(actions), 0, np.array(NVEC) - 1))
        reward = (actions == self._lit).mean(axis=1).astype(np.float32)
        self._age = (self._age + 1) % LENGTH
        over = np.full(self.spec.num_envs, self._age == 0)
        obs = self._light()
        return Step(obs, reward, np.zeros_like(over), over, {"policy": obs["policy"][over]}, {})

    def _light(self) -> Observations:
        """Light other buttons; return the observation."""
        self._lit = self._rng.integers(0, NVEC, (self.spec.num_envs, len(NVEC)))
        panels = [np.eye(n, dtype=np.float32)[self._lit[:, a]] for a, n in enumerate(NVEC)]
        return {"policy": np.concatenate(panels, axis=1)}
