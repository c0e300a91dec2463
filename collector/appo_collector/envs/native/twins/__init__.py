"""Twins of Gymnasium's MuJoCo environments, simulated in a batch: same scene, numbers, options and episodes.

What a subclass of :class:`~appo_collector.envs.native.twins.twin.Twin` states, Gymnasium's source states too; the tests
hold them against each other step by step.
"""

from __future__ import annotations

_HERE = "appo_collector.envs.native.twins"

TWINS = {
    "mujoco:HalfCheetah-v5": (f"{_HERE}.runners", "HalfCheetah", "Gymnasium's two-legged cheetah runs; it cannot fall"),
    "mujoco:Hopper-v5": (f"{_HERE}.runners", "Hopper", "Gymnasium's one leg hops forward and must not fall"),
    "mujoco:Walker2d-v5": (f"{_HERE}.runners", "Walker2d", "Gymnasium's two legs walk forward and must not fall"),
    "mujoco:Swimmer-v5": (f"{_HERE}.runners", "Swimmer", "Gymnasium's three links swim forward"),
    "mujoco:Ant-v4": (f"{_HERE}.ant", "AntV4", "Gymnasium's four legs run forward; no contact forces in it"),
    "mujoco:Ant-v5": (f"{_HERE}.ant", "AntV5", "Gymnasium's four legs run forward and feel the ground"),
    "mujoco:InvertedPendulum-v5": (f"{_HERE}.pendulums", "InvertedPendulum", "Gymnasium's pole on a cart stays up"),
    "mujoco:InvertedDoublePendulum-v5": (
        f"{_HERE}.pendulums",
        "InvertedDoublePendulum",
        "Gymnasium's two poles, one upon the other, stay up on a cart",
    ),
    "mujoco:Reacher-v5": (f"{_HERE}.reacher", "Reacher", "Gymnasium's arm of two links touches a target"),
}
"""Name → module, class, and a one-line description."""
