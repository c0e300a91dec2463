"""A few updates with real processes on an environment that a factory returns as rsl_rl's ``VecEnv``."""

from __future__ import annotations

from helpers_e2e import Launcher
from helpers_unit import TRAIN


def test_a_learner_and_its_collector_train_on_it(launch: Launcher) -> None:
    train = TRAIN | {"obs_groups": {"actor": ["policy"], "critic": ["policy"]}, "max_iterations": 3}
    env = {"name": "helpers_rsl_rl:make", "num_envs": 6}
    learner = launch.learner({"env": env, "train": train, "learner": {"local_collectors": 1}})
    assert learner.exit_code(55.0) == 0, learner.text
    rollouts = learner.metrics()[-1]
    assert rollouts["iteration"] == 3
    assert rollouts["env_steps"] == 3 * 6 * train["num_steps_per_env"]
