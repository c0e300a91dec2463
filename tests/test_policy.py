"""The noise of the actions is the policy's own, whatever an environment does to torch's generator."""

from __future__ import annotations

import numpy as np
import torch
from helpers_unit import GROUPS, TRAIN, env_spec

from appo_collector.policy import Policy

SPEC = env_spec(4)
OBS = {name: SPEC.zeros(name, 4) for name in SPEC.observations}


def policy(seed: int) -> Policy:
    torch.manual_seed(0)  # the same parameters
    made = Policy(SPEC, GROUPS, TRAIN["actor"])
    made.seed(seed)
    return made


def acted(made: Policy, steps: int = 3) -> np.ndarray:
    """``[steps, N, A]``, with an environment that seeds torch at every step."""
    actions = []
    for _ in range(steps):
        torch.manual_seed(7)
        actions.append(made.act(OBS)[0])
    return np.array(actions)


def test_an_environment_that_seeds_torch_does_not_decide_the_exploration() -> None:
    one, again, other = acted(policy(1)), acted(policy(1)), acted(policy(2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).all(), "two collectors explore alike"
    assert (one[0] != one[1]).all(), "the noise repeats"


def test_acting_leaves_the_environments_generator_alone() -> None:
    made = policy(1)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    made.act(OBS)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)
