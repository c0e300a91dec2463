"""An environment that does as it is told, so that every number of a rollout can be worked out by hand."""

from __future__ import annotations

import numpy as np
from helpers_unit import env_spec

from appo_collector.envs.contract import Observations, Step, VectorEnv

KINDS = {".": (False, False), "T": (True, False), "U": (False, True), "B": (True, True)}
"""Goes on; terminated; truncated; both."""


def observation(env: int, episode: int, age: int, since_reset: int) -> tuple[list[float], list[float]]:
    """What environment ``env`` shows at this age of this episode: the groups ``policy`` and ``privileged``."""
    return [env, episode, age], [100 + env, since_reset]


def reward(env: int, episode: int, age: int) -> float:
    """Exact in float32."""
    return 10.0 * env + episode + age / 8


class CountingEnv(VectorEnv):
    """Its episodes end as ``script`` says: one string per environment, one letter of :data:`KINDS` per step."""

    def __init__(self, script: list[str], episode_limit: int | None = None) -> None:
        self.script = script
        self.spec = env_spec(len(script), episode_limit=episode_limit, reward_terms=["most", "rest"])
        self.actions: list[np.ndarray] = []
        self.returns: list[float] = []
        """The environment's own sums, in the order in which its episodes ended."""
        self.lengths: list[int] = []

    def reset(self, seed: int) -> Observations:
        self.seed = seed
        self._episode, self._age = [0] * len(self.script), [0] * len(self.script)
        self._sum = [0.0] * len(self.script)
        self._step = 0
        return self._observe(range(len(self.script)))

    def step(self, actions: np.ndarray) -> Step:
        self.actions.append(actions.copy())
        kinds = [KINDS[line[self._step]] for line in self.script]
        rewards = [reward(env, self._episode[env], self._age[env]) for env in range(len(kinds))]
        self._step += 1
        self._age = [age + 1 for age in self._age]
        self._sum = [total + now for total, now in zip(self._sum, rewards, strict=True)]
        ended = [env for env, kind in enumerate(kinds) if any(kind)]
        final = self._observe(ended)
        for env in ended:
            self.returns.append(self._sum[env])
            self.lengths.append(self._age[env])
            self._episode[env], self._age[env], self._sum[env] = self._episode[env] + 1, 0, 0.0
        terminated, truncated = (np.array(flags) for flags in zip(*kinds, strict=True))
        total = np.array(rewards, dtype=np.float32)
        terms = {"most": 0.75 * total, "rest": 0.25 * total}
        return Step(self._observe(range(len(kinds))), total, terminated, truncated, final, {"terms": terms})

    def _observe(self, envs: range | list[int]) -> Observations:
        rows = [observation(env, self._episode[env], self._age[env], self._step) for env in envs]
        return {
            "policy": np.array([row[0] for row in rows], dtype=np.float32).reshape(-1, 3),
            "privileged": np.array([row[1] for row in rows], dtype=np.float32).reshape(-1, 2),
        }
