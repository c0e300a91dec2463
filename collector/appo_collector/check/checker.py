"""The phases of a check: build, step with random actions, measure, build again and compare."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from appo_collector.check.activity import Activity
from appo_collector.check.arrays import FRESH, Ownership, check_terms, groups, named_arrays
from appo_collector.check.episodes import AUTORESET, FINAL_OBS, Episodes
from appo_collector.check.probe import CALLS, LEFT_ALONE, CannotGoOn, Probe
from appo_collector.check.report import Report
from appo_collector.check.trajectory import RandomActions, Trajectory
from appo_collector.envs.contract import Observations, VectorEnv
from appo_collector.envs.registry import SpecFault, make_env
from appo_collector.envs.rules import ARRAYS, EPISODES, FINITE, TERMS
from appo_collector.seeds import seeds_of
from appo_common.errors import EnvironmentFault
from appo_common.spec import ActionScaling, EnvSpec

SEEDING, SPEC, BUILDS, BEYOND = "seeding", "spec", "builds", "actions beyond bounds"
_BRIEF = 50
"""Steps of the shorter comparisons."""
_CHUNKS = 10


@dataclass(frozen=True)
class CheckOptions:
    """What the command line decides."""

    name: str
    num_envs: int = 4
    steps: int = 1000
    """Steps of each environment."""
    seed: int = 1
    """Of the run; collectors 0 and 1 derive theirs from it."""
    threads: int = 1
    overrides: dict[str, Any] = field(default_factory=dict)
    action_scaling: ActionScaling | None = None


class Checker:
    """Checks one environment. The findings are in the report."""

    def __init__(self, options: CheckOptions, report: Report, activity: Activity | None = None) -> None:
        """Nothing is built yet."""
        self._options = options
        self._report = report
        self._activity = activity or Activity()
        self._seeds = [seeds_of([options.seed, collector, 0])[0] for collector in (0, 1)]

    def run(self) -> None:
        """Go through all phases, as far as the environment allows. Raises ConfigError for a wrong name or override."""
        try:
            if (env := self._build("building it")) is None:
                return
            self._check_spec(env.spec)
            probe = Probe(env, self._report, self._activity)
            reference = self._check_steps(probe)
            self._measure(probe)
            self._check_beyond(probe)
            probe.close()
            self._report.passed(CALLS, "none raised")
            self._check_seeding(reference)
        except CannotGoOn:
            self._report.note("stopped", "a call raised: the rest was not checked")

    def _build(self, phase: str) -> VectorEnv | None:
        """Make the environment; None where it cannot be made, which is reported."""
        options = self._options
        self._activity.phase(phase)
        self._activity.calls("the factory")
        started = time.perf_counter()
        try:
            made = make_env(options.name, options.num_envs, options.overrides, options.threads, options.action_scaling)
        except SpecFault as fault:
            self._report.violation(SPEC, str(fault), "correct the EnvSpec; validated ones come from EnvSpec(...)")
            return None
        except EnvironmentFault as fault:
            self._report.violation(BUILDS, str(fault), "correct the factory or what it was given")
            return None
        self._report.passed(BUILDS, f"{options.num_envs} × {options.name} in {time.perf_counter() - started:.1f} s")
        return made

    def _check_spec(self, spec: EnvSpec) -> None:
        for place, (low, high) in enumerate(zip(spec.action_low, spec.action_high, strict=True)):
            if not low < high:
                text = f"action {place} has the bounds {low} and {high}"
                self._report.violation(SPEC, text, "the lower must be below the upper; inf where there is none")
        shapes = ", ".join(f"{name} {group.shape} {group.dtype}" for name, group in spec.observations.items())
        actions = f"choices {spec.action_nvec}" if spec.action_nvec else f"[{spec.num_actions}]"
        limit = f"episodes of {spec.episode_limit} steps" if spec.episode_limit else "no episode_limit"
        self._report.passed(SPEC, f"{shapes}; actions {actions}, scaling {spec.action_scaling}; {limit}")

    def _check_steps(self, probe: Probe) -> Trajectory:
        """Step with random actions, and look at everything that comes back; return the trajectory."""
        self._activity.phase("random actions")
        spec, report = probe.spec, self._report
        obs = probe.reset(self._seeds[0])
        trajectory, ownership = Trajectory(obs), Ownership(report)
        ownership.keep("reset()", dict(groups("obs", obs)))
        episodes: Episodes | None = Episodes(spec, _usable_start(spec, obs), probe.ages(), report)
        actions, usable_steps = RandomActions(spec, self._options.seed), 0
        for number in range(1, self._options.steps + 1):
            result, usable = probe.step(actions.next())
            trajectory.add(result)
            ownership.keep(f"step {number}", named_arrays(result))
            if usable is None or (spec.skips_steps and usable.valid is None):
                episodes = None  # what it would say from here on may be wrong
            if usable is not None:
                usable_steps += 1
                check_terms(spec, number, usable, report)
                if episodes is not None:
                    episodes.step(number, usable)
        ownership.finish()
        if episodes is not None:
            episodes.finish(trajectory.observations_vary)
        self._sum_up(spec, usable_steps, episodes)
        return trajectory

    def _sum_up(self, spec: EnvSpec, usable_steps: int, episodes: Episodes | None) -> None:
        """Say what was verified, as far as there was anything to see."""
        steps = f"{self._options.steps} steps"
        for rule in (ARRAYS, FRESH, LEFT_ALONE):
            self._report.passed(rule, steps)
        if usable_steps:
            self._report.passed(FINITE, steps)
        if usable_steps and spec.reward_terms:
            self._report.passed(TERMS, f"the {len(spec.reward_terms)} terms sum to the reward")
        if episodes is None or episodes.stuck:
            return
        if episodes.lengths:
            count, length, mean = len(episodes.lengths), np.mean(episodes.lengths), np.mean(episodes.returns)
            self._report.passed(EPISODES, f"{count} episodes; mean length {length:.1f}, mean return {mean:.4g}")
        if episodes.finals_seen:
            self._report.passed(FINAL_OBS, f"at {episodes.finals_seen} ends")
            self._report.passed(AUTORESET, f"after {episodes.finals_seen} ends")

    def _measure(self, probe: Probe) -> None:
        """Report env steps/s of the environment alone."""
        self._activity.phase("measuring")
        actions = RandomActions(probe.spec, self._options.seed)
        length = max(1, self._options.steps // (2 * _CHUNKS))
        chunks = []
        for _ in range(_CHUNKS):
            seconds = 0.0
            for _ in range(length):
                probe.step(actions.next())
                seconds += probe.seconds
            chunks.append(seconds / length)
        median_s, envs = float(np.median(chunks)), probe.spec.num_envs
        speed = f"{envs / median_s:,.0f} env steps/s, {1000 * median_s:.3f} ms a step"
        self._report.note("speed", f"{speed} (environments: {envs}, threads: {self._options.threads})")

    def _check_beyond(self, probe: Probe) -> None:
        """Send what a policy without bounds may send."""
        if probe.spec.action_nvec:
            return
        self._activity.phase(BEYOND)
        actions, before = RandomActions(probe.spec, self._options.seed), len(self._report.violations)
        try:
            for _ in range(_BRIEF):
                probe.step(actions.beyond())
        finally:
            if len(self._report.violations) > before:
                remedy = "clip them, or give action_low and action_high in the spec and set env.action_scaling"
                self._report.violation(BEYOND, "the last finding came with actions beyond the bounds", remedy)
        self._report.passed(BEYOND, "what a Gaussian policy may send")

    def _check_seeding(self, reference: Trajectory) -> None:
        """Compare with a second environment: same seed, same seed again, another seed."""
        if (env := self._build("building it a second time")) is None:
            return
        probe = Probe(env, self._report, self._activity)
        steps, brief = self._options.steps, min(_BRIEF, self._options.steps)
        remedy = "draw from a generator made from reset's seed, never from a global one or from the time"
        if place := self._follow(probe, self._seeds[0], steps, reference):
            text = f"{place} differs between two environments with the same seed and actions"
            self._report.violation(SEEDING, text, remedy)
        elif place := self._follow(probe, self._seeds[0], brief, reference):
            text = f"{place} differs when the same environment is reset with the same seed again"
            self._report.violation(SEEDING, text, "reset() must bring back everything that steps depend on")
        if self._follow(probe, self._seeds[1], brief, reference) is None:
            text = f"reset() and {brief} steps are the same with the seed of another collector"
            self._report.warning(SEEDING, text, "unless nothing is random in it, use reset's seed")
        probe.close()
        self._report.passed(SEEDING, f"same seed: {steps} steps bit for bit; another collector's: different")

    def _follow(self, probe: Probe, seed: int, steps: int, reference: Trajectory) -> str | None:
        """Step with the same actions as the reference; return where the first difference is."""
        self._activity.phase(f"comparing, seed {seed}")
        trajectory = Trajectory(probe.reset(seed))
        actions = RandomActions(probe.spec, self._options.seed)
        for _ in range(steps):
            trajectory.add(probe.step(actions.next())[0])
        return reference.difference(trajectory)


def _usable_start(spec: EnvSpec, obs: object) -> Observations | None:
    """Return the observations of ``reset`` if they have the right shapes."""
    found = obs if isinstance(obs, dict) else {}
    shapes = {name: (spec.num_envs, *group.shape) for name, group in spec.observations.items()}
    fits = all(isinstance(found.get(name), np.ndarray) and found[name].shape == shapes[name] for name in shapes)
    return {name: found[name].copy() for name in shapes} if fits else None
