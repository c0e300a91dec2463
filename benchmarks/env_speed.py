"""How fast does one process step 64 environments? Native twins beside EnvPool and Gymnasium, on this host.

    python benchmarks/env_speed.py
    python benchmarks/env_speed.py HalfCheetah-v5 --rounds 200 --json speed.json

Each has one thread, but AsyncVectorEnv, which starts a process per environment and uses all cores. The twin is
stepped through the contract, the others through their own interface, without an adapter. All play the same random
actions. The rounds are interleaved, so that a noisy minute hits all; the table has medians over rounds, ranges, and the
median of the rounds' ratios to SyncVectorEnv. Steps that only reset an environment, as EnvPool and Gymnasium do after
an episode, are not counted. CPU time is that of the process with all its threads; neighbours on the same machine
disturb it less than the time of the clock. Ant is Ant-v4: no contact forces in observation and reward.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

TASKS = ("HalfCheetah-v5", "Hopper-v5", "Ant-v4")
BASE = "SyncVectorEnv"


class Contender(NamedTuple):
    """Environments ready to be stepped."""

    step: Callable[[np.ndarray], Any]
    """Returns observations, rewards, terminated, truncated, and so on."""
    close: Callable[[], None]
    resets_within: bool = False
    """An environment that ended is reset in the same step, not in one of its own."""


class Timing(NamedTuple):
    """Env steps of one round of one contender, per second of wall and of CPU time."""

    wall: float
    cpu: float


@click.command()
@click.argument("tasks", nargs=-1)
@click.option("--num-envs", default=64, show_default=True)
@click.option("--rounds", default=60, show_default=True, help="Interleaved rounds.")
@click.option("--seconds", default=0.15, show_default=True, help="About the length of a round of each contender.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(tasks: tuple[str, ...], num_envs: int, rounds: int, seconds: float, json_path: Path | None) -> None:
    packages = {package: version(package) for package in ("mujoco", "gymnasium", "envpool", "numpy")}
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {packages}, {num_envs} environments")
    rows = {}
    for task in tasks or TASKS:
        rows[task] = figures(measure(task, num_envs, rounds, seconds))
        print_table(task, rows[task])
    if json_path:
        json_path.write_text(json.dumps({"command": sys.argv, "packages": packages, "tasks": rows}, indent=2) + "\n")


def measure(task: str, num_envs: int, rounds: int, seconds: float) -> dict[str, list[Timing]]:
    """Time every contender in every round."""
    makers = {"native twin": twin, "EnvPool": pool, BASE: gymnasium_sync, "AsyncVectorEnv": gymnasium_async}
    contenders = {name: make(task, num_envs) for name, make in makers.items()}
    actions = random_actions(task, num_envs)
    calls = {name: calibrated(contender, actions, seconds) for name, contender in contenders.items()}
    timings: dict[str, list[Timing]] = {name: [] for name in contenders}
    order, rng = list(contenders), random.Random(0)
    for _ in range(rounds):
        rng.shuffle(order)  # no one always follows the processes of AsyncVectorEnv
        for name in order:
            timed(contenders[name], actions, 3)  # back into the caches
            timings[name].append(timed(contenders[name], actions, calls[name]))
    for contender in contenders.values():
        contender.close()
    return timings


def random_actions(task: str, num_envs: int) -> np.ndarray:
    """Return ``[64, N, A]`` float32; every bound of these tasks is 1."""
    space = gymnasium_maker(task)().action_space
    return np.random.default_rng(0).uniform(-1.0, 1.0, (64, num_envs, *space.shape)).astype(np.float32)


def calibrated(contender: Contender, actions: np.ndarray, seconds: float) -> int:
    """Warm up, so that episodes have fallen out of step; return how many calls take ``seconds``."""
    timed(contender, actions, 200)
    begin = time.perf_counter()
    timed(contender, actions, 50)
    return max(1, round(50 * seconds / (time.perf_counter() - begin)))


def timed(contender: Contender, actions: np.ndarray, calls: int) -> Timing:
    steps = calls * actions.shape[1]
    wall, cpu = time.perf_counter(), time.process_time()
    for call in range(calls):
        terminated, truncated = contender.step(actions[call % len(actions)])[2:4]
        if not contender.resets_within:
            steps -= np.count_nonzero(terminated | truncated)
    return Timing(steps / (time.perf_counter() - wall), steps / (time.process_time() - cpu))


def twin(task: str, num_envs: int) -> Contender:
    from appo_collector.envs.registry import make_env

    env = make_env(f"mujoco:{task}", num_envs, {}, threads=1, action_scaling="none")
    env.reset(seed=0)
    return Contender(env.step, env.close, resets_within=True)


def pool(task: str, num_envs: int) -> Contender:
    import envpool

    env = envpool.make(task, env_type="gymnasium", num_envs=num_envs, num_threads=1, seed=0)
    env.reset()
    return Contender(env.step, env.close)


def gymnasium_sync(task: str, num_envs: int) -> Contender:
    from gymnasium.vector import SyncVectorEnv

    env = SyncVectorEnv([gymnasium_maker(task)] * num_envs)
    env.reset(seed=0)
    return Contender(env.step, env.close)


def gymnasium_async(task: str, num_envs: int) -> Contender:
    from gymnasium.vector import AsyncVectorEnv

    env = AsyncVectorEnv([gymnasium_maker(task)] * num_envs)
    env.reset(seed=0)
    return Contender(env.step, env.close)


def gymnasium_maker(task: str) -> Callable[[], Any]:
    import gymnasium

    from appo_collector.envs.native.mujoco_warnings import warnings_kept

    def make() -> Any:
        with warnings_kept(), warnings.catch_warnings():  # the cheetah's scene has a deprecated attribute
            warnings.simplefilter("ignore", DeprecationWarning)  # Ant-v4 is an old version
            return gymnasium.make(task, disable_env_checker=True)  # the checker would slow it down

    return make


def figures(timings: dict[str, list[Timing]]) -> dict[str, dict[str, Any]]:
    """Medians and ranges over the rounds, in env steps per second."""
    base = timings[BASE]
    table = {}
    for name, rounds in timings.items():
        wall = sorted(timing.wall for timing in rounds)
        alone = name != "AsyncVectorEnv"  # the CPU time of its processes is not ours to see
        pairs = list(zip(rounds, base, strict=True))
        table[name] = {
            "steps_per_s": [statistics.median(wall), wall[0], wall[-1]],
            "ratio": statistics.median(timing.wall / sync.wall for timing, sync in pairs),
            "steps_per_cpu_s": statistics.median(timing.cpu for timing in rounds) if alone else None,
            "cpu_ratio": statistics.median(timing.cpu / sync.cpu for timing, sync in pairs) if alone else None,
        }
    return table


def print_table(task: str, rows: dict[str, dict[str, Any]]) -> None:
    print(f"\n{task:<16}{'env steps/s':>12}{'range':>20}{'x Sync':>8}{'per CPU s':>12}{'x Sync':>8}")
    for name, row in rows.items():
        median, low, high = row["steps_per_s"]
        print(f"{name:<16}{median:12,.0f}{f'{low:,.0f} to {high:,.0f}':>20}{row['ratio']:8.2f}", end="")
        print(f"{row['steps_per_cpu_s']:12,.0f}{row['cpu_ratio']:8.2f}" if row["cpu_ratio"] else f"{'-':>12}{'-':>8}")


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)  # bounds of EnvPool's spaces lose precision
    main()
