"""The seeds of one collector, derived from what WELCOME says."""

from __future__ import annotations

import numpy as np


def seeds_of(entropy: list[int]) -> tuple[int, int]:
    """Derive the seeds of the environment and of the policy's noise.

    ``entropy`` is WELCOME's ``seed``: the run's, the collector's index, and the iteration the learner began with.
    """
    sequence = np.random.SeedSequence(entropy[0], spawn_key=tuple(entropy[1:]))
    env_seed, policy_seed = sequence.generate_state(2, np.uint64)
    return int(env_seed >> np.uint64(1)), int(policy_seed >> np.uint64(1))
