"""Which of the two backends of physics the installed MuJoCo has."""

from __future__ import annotations

import importlib.util

from appo_collector.envs.native.physics import Physics


def best_physics() -> type[Physics]:
    """Return the backend for the installed MuJoCo."""
    if importlib.util.find_spec("mujoco.batch") is not None:
        from appo_collector.envs.native.physics_batch import BatchPhysics

        return BatchPhysics
    from appo_collector.envs.native.physics_rollout import RolloutPhysics

    return RolloutPhysics
