"""Small environments with images, as users' collectors would find them: ``image_envs:<factory>``."""

from __future__ import annotations

import numpy as np

from appo_collector.envs.contract import Observations, Step, VectorEnv
from appo_common.spec import EnvSpec, ObservationGroup

SIDE = 12
"""Pixels."""
LENGTH = SIDE - 2
"""Environment steps of an episode: one for each row that the ball falls, down to the paddle's."""


class Catch(VectorEnv):
    """A ball falls straight down from a random column; a paddle of three pixels on the bottom row has to be there.

    Group ``image`` [12, 12, 1] uint8: ball and paddle are 255. With ``state``, a group ``state`` [1] float32, too: the
    paddle's column, -1 to 1. Action (Discrete(3)): left, stay, right; with ``box``, one number instead, whose sign is
    the direction beyond ±1/3. The reward at the end is 1 for a catch and 0 for a miss.
    """

    def __init__(self, num_envs: int, *, state: bool = False, box: bool = False, as_float: bool = False) -> None:
        dtype = "float32" if as_float else "uint8"
        groups = {"image": ObservationGroup(shape=[SIDE, SIDE, 1], dtype=dtype)}
        if state:
            groups["state"] = ObservationGroup(shape=[1])
        self.spec = EnvSpec(
            name="image_envs:Catch",
            observations=groups,
            num_actions=1,
            action_nvec=[] if box else [3],
            num_envs=num_envs,
        )
        self._rows = np.arange(num_envs)
        self._box, self._bright = box, 1.0 if as_float else 255

    def reset(self, seed: int) -> Observations:
        self._rng = np.random.default_rng(seed)
        self._ball = np.zeros((self.spec.num_envs, 2), dtype=np.int64)  # row and column
        self._paddle = np.zeros(self.spec.num_envs, dtype=np.int64)  # column of its middle
        self._begin(self._rows)
        return self._observe()

    def step(self, actions: np.ndarray) -> Step:
        move = np.sign(np.trunc(actions[:, 0] * 3)) if self._box else actions[:, 0] - 1
        self._paddle = np.clip(self._paddle + move.astype(np.int64), 1, SIDE - 2)
        self._ball[:, 0] += 1
        landed = self._ball[:, 0] == SIDE - 1
        caught = landed & (np.abs(self._ball[:, 1] - self._paddle) <= 1)
        obs = self._observe()
        ended = np.flatnonzero(landed)
        final_obs = {name: array[ended] for name, array in obs.items()}
        self._begin(ended)
        none = np.zeros(self.spec.num_envs, dtype=bool)
        return Step(self._observe(), caught.astype(np.float32), landed, none, final_obs, {})

    def _begin(self, rows: np.ndarray) -> None:
        self._ball[rows, 0] = SIDE - 1 - LENGTH
        self._ball[rows, 1] = self._rng.integers(0, SIDE, rows.size)
        self._paddle[rows] = self._rng.integers(1, SIDE - 1, rows.size)

    def _observe(self) -> Observations:
        image = np.zeros((self.spec.num_envs, SIDE, SIDE, 1), dtype=self.spec.observations["image"].dtype)
        image[self._rows, self._ball[:, 0], self._ball[:, 1], 0] = self._bright
        for offset in (-1, 0, 1):
            image[self._rows, SIDE - 1, self._paddle + offset, 0] = self._bright
        obs: Observations = {"image": image}
        if "state" in self.spec.observations:
            obs["state"] = (self._paddle[:, None] * (2 / (SIDE - 1)) - 1).astype(np.float32)
        return obs
