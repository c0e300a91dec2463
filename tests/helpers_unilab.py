"""A small task in UniLab's own registry: its managers, its MuJoCo, and ends of episodes as ``SCRIPT`` says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from helpers_counting import counters
from unilab.base import registry
from unilab.base.config_materialization import apply_cfg_overrides
from unilab.envs import ManagerBasedRlEnvCfg, make_manager_based_rl_env

TASK = "AppoCounting"
STEP_DT = 2.0**-5  # s; a power of two, so that UniLab's scaling of rewards is exact
SCENE = """
<mujoco>
  <worldbody>
    <body name="cart">
      <joint name="slide" type="slide" axis="1 0 0" damping="1"/>
      <geom name="box" type="box" size=".1 .1 .1" mass="1"/>
    </body>
  </worldbody>
  <actuator><position name="push" joint="slide" kp="50"/></actuator>
</mujoco>
"""


def counting(env: Any) -> Any:
    """What has been counted in this environment, made when a term first asks for it."""
    if not hasattr(env, "counting"):
        lines = counters()
        zeros = [torch.zeros(len(lines)) for _ in range(2)]
        ends = [torch.zeros(len(lines), dtype=torch.bool) for _ in range(2)]
        env.counting = SimpleNamespace(lines=lines, seen=torch.zeros(len(lines), 2), earned=zeros, ends=ends)
    return env.counting


def begin(env: Any, env_ids: torch.Tensor) -> None:
    """An event of mode ``reset``."""
    for row in env_ids.tolist():
        counting(env).seen[row] = torch.tensor(counting(env).lines[row].reset())


def fell(env: Any) -> torch.Tensor:
    """The first termination of a step: counts it."""
    count = counting(env)
    for row, line in enumerate(count.lines):
        seen, earned, terminated, truncated = line.step()
        count.seen[row] = torch.tensor(seen)
        count.earned[0][row], count.earned[1][row] = earned // 100 * 100, earned % 100
        count.ends[0][row], count.ends[1][row] = terminated, truncated
    return count.ends[0].clone()


def out_of_time(env: Any) -> torch.Tensor:
    return counting(env).ends[1].clone()


def seen(env: Any) -> torch.Tensor:
    return counting(env).seen.clone()


def share(env: Any, part: int) -> torch.Tensor:
    """A reward term: the hundreds, or what is below them."""
    return counting(env).earned[part].clone()


def drawn(env: Any) -> torch.Tensor:
    """Noise from UniLab's generator."""
    return env.rng.uniform(0.0, 1.0, (env.num_envs, 1)).float()


def configuration() -> ManagerBasedRlEnvCfg:
    """The task's declaration, without its ``scene.model_file``."""
    observed = {"count": {"func": f"{__name__}.seen"}}
    cfg = ManagerBasedRlEnvCfg()
    apply_cfg_overrides(
        cfg,
        {
            "scene": {
                "model_file": "cart.xml",
                "entities": {
                    "robot": {"root_body_name": "cart", "joint_names": ["slide"], "actuator_names": ["push"]},
                },
            },
            "sim_dt": STEP_DT / 2,
            "ctrl_dt": STEP_DT,
            "max_episode_seconds": 1000 * STEP_DT,
            "observations": {
                "policy": {"terms": observed},
                "critic": {
                    "terms": {
                        **observed,
                        "place": {"func": "unilab.envs.mdp.joint_pos_rel"},
                        "noise": {"func": f"{__name__}.drawn"},
                    }
                },
            },
            "actions": {
                "push": {
                    "_target_": "unilab.envs.mdp.JointPositionActionCfg",
                    "entity_name": "robot",
                    "actuator_names": [".*"],
                }
            },
            "events": {
                "default": {"func": "unilab.envs.mdp.reset_scene_to_default", "mode": "reset"},
                "begin": {"func": f"{__name__}.begin", "mode": "reset"},
            },
            "rewards": {
                "hundreds": {"func": f"{__name__}.share", "weight": 1.0 / STEP_DT, "params": {"part": 0}},
                "rest": {"func": f"{__name__}.share", "weight": 1.0 / STEP_DT, "params": {"part": 1}},
            },
            "terminations": {
                "fell": {"func": f"{__name__}.fell"},
                "out_of_time": {"func": f"{__name__}.out_of_time", "time_out": True},
            },
            "policy_observation_group": "policy",
            "critic_observation_group": "critic",
        },
    )
    return cfg


if not registry.contains(TASK):
    registry.register_env_config(TASK, configuration)
    registry.register_env(TASK, make_manager_based_rl_env, sim_backend="mujoco")
