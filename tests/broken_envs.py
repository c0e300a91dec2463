"""Environments that break the contract in one way each. Collectors find them as ``broken_envs:<class>``.

:class:`Good` breaks nothing; the others change what it does, from its step ``AT`` on where they work until then.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
from typing import Any

import numpy as np

from appo_collector.envs.contract import Observations, Step, VectorEnv
from appo_common.spec import EnvSpec, ObservationGroup

AT = 20


class Good(VectorEnv):
    """A point pushed about by noise and the action; it ends beyond 0.6, or after ``limit`` steps."""

    limit = 10
    spec_changes: dict[str, Any] = {}  # noqa: RUF012 - read only

    def __init__(self, num_envs: int) -> None:
        observations = {"policy": ObservationGroup(shape=[3]), "aim": ObservationGroup(shape=[1])}
        known = {"name": "broken_envs:Good", "observations": observations, "num_actions": 1, "num_envs": num_envs}
        self.spec = EnvSpec(**(known | {"episode_limit": 10, "reward_terms": ["near", "alive"]} | self.spec_changes))
        self.count = num_envs

    def reset(self, seed: int) -> Observations:
        self.rng = np.random.default_rng(seed)
        self.x, self.age = np.zeros(self.count), np.zeros(self.count, dtype=np.int64)
        self.steps = 0
        self.begin(np.arange(self.count))
        return self.observe()

    def begin(self, rows: np.ndarray) -> None:
        self.x[rows], self.age[rows] = self.noise(rows.size, 0.1), 0

    def noise(self, size: int, scale: float) -> np.ndarray:
        return self.rng.normal(0.0, scale, size)

    def step(self, actions: np.ndarray) -> Step:
        self.steps += 1
        self.x += 0.1 * np.tanh(actions[:, 0]) + self.noise(self.count, 0.2)
        self.age += 1
        near, alive = np.exp(-(self.x**2)).astype(np.float32), np.full(self.count, 0.5, dtype=np.float32)
        terminated, truncated = np.abs(self.x) > 0.6, self.age >= self.limit
        obs = self.observe()
        ended = np.flatnonzero(terminated | truncated)
        final_obs = {name: group[ended] for name, group in obs.items()}
        if ended.size:
            self.begin(ended)
            obs = self.observe()
        info = {"terms": {"near": near, "alive": alive}}
        return self.told(Step(obs, near + alive, terminated, truncated, final_obs, info))

    def told(self, step: Step) -> Any:
        """What a subclass makes of a step."""
        return step

    def observe(self) -> Observations:
        policy = np.stack([self.x, np.sin(self.age), np.cos(self.age)], axis=1)
        return {"policy": policy.astype(np.float32), "aim": np.full((self.count, 1), 0.5, dtype=np.float32)}


class Pictures(Good):
    """As good, with a group of bytes of rank 3."""

    spec_changes = {  # noqa: RUF012
        "observations": {
            "policy": ObservationGroup(shape=[3]),
            "eye": ObservationGroup(shape=[4, 6, 3], dtype="uint8"),
        }
    }

    def observe(self) -> Observations:
        shade = (127 + 100 * np.tanh(self.x)).astype(np.uint8)
        eye = np.broadcast_to(shade[:, None, None, None], (self.count, 4, 6, 3)).copy()
        return {"policy": super().observe()["policy"], "eye": eye}


class DoubleObs(Good):
    def observe(self) -> Observations:
        return {name: group.astype(np.float64) for name, group in super().observe().items()}


class WrongAfterReset(Good):
    def reset(self, seed: int) -> Observations:
        return super().reset(seed) | {"policy": np.zeros((self.count, 4), dtype=np.float32)}


class WrongAtStep(Good):
    def told(self, step: Step) -> Step:
        return step._replace(obs=step.obs | {"policy": step.obs["policy"][1:]}) if self.steps == AT else step


class NanObs(Good):
    def told(self, step: Step) -> Step:
        if self.steps == AT:
            step.obs["policy"][1, 2] = np.nan
        return step


class InfReward(Good):
    def told(self, step: Step) -> Step:
        if self.steps == AT:
            step.reward[0] = step.info["terms"]["near"][0] = np.inf
        return step


class NanFinalObs(Good):
    def told(self, step: Step) -> Step:
        if self.steps >= AT:
            step.final_obs["policy"][:] = np.nan
        return step


class DoubleReward(Good):
    def told(self, step: Step) -> Step:
        return step._replace(reward=step.reward.astype(np.float64))


class NoFinalObs(Good):
    def told(self, step: Step) -> Step:
        return step._replace(final_obs={})


class LateFinalObs(Good):
    """The time since the start of the episode jumps where it ends."""

    def observe(self) -> Observations:
        return super().observe() | {"aim": self.age[:, None].astype(np.float32)}

    def told(self, step: Step) -> Step:
        ended = step.terminated | step.truncated
        return step._replace(final_obs={name: group[ended] for name, group in step.obs.items()})


class EarlyFinalObs(Good):
    def step(self, actions: np.ndarray) -> Step:
        before = self.observe()
        step = super().step(actions)
        ended = step.terminated | step.truncated
        return step._replace(final_obs={name: group[ended] for name, group in before.items()})


class NoAutoreset(Good):
    def begin(self, rows: np.ndarray) -> None:
        if self.age.sum() == 0:
            super().begin(rows)


class InPlace(Good):
    def observe(self) -> Observations:
        if not hasattr(self, "buffer"):
            self.buffer = super().observe()
        for name, group in super().observe().items():
            self.buffer[name][:] = group
        return self.buffer


class FinalInPlace(Good):
    """Its ``final_obs`` are parts of one buffer, which every end writes again."""

    def told(self, step: Step) -> Step:
        if not hasattr(self, "final_buffer"):
            self.final_buffer = {name: np.zeros_like(group) for name, group in step.obs.items()}
        rows = np.count_nonzero(step.terminated | step.truncated)
        for name, group in step.final_obs.items():
            self.final_buffer[name][:rows] = group
        return step._replace(final_obs={name: group[:rows] for name, group in self.final_buffer.items()})


class NegativeN(Good):
    spec_changes = {"num_envs": -4}  # noqa: RUF012


class OtherN(Good):
    spec_changes = {"num_envs": 3}  # noqa: RUF012


class IntFlags(Good):
    def told(self, step: Step) -> Step:
        return step._replace(terminated=step.terminated.astype(np.int64))


class PlainTuple(Good):
    def told(self, step: Step) -> Any:
        return (step.obs, step.reward, step.terminated, step.truncated, step.info)


class MissingGroup(Good):
    def observe(self) -> Observations:
        return {"policy": super().observe()["policy"]}


class Reversed(Good):
    def observe(self) -> Observations:
        obs = super().observe()
        return obs | {"policy": obs["policy"][:, ::-1]}


class TermsOff(Good):
    def told(self, step: Step) -> Step:
        step.info["terms"]["alive"] *= 0.5
        return step


class TermMissing(Good):
    def told(self, step: Step) -> Step:
        del step.info["terms"]["alive"]
        return step


class GlobalRandom(Good):
    def noise(self, size: int, scale: float) -> np.ndarray:
        return np.random.normal(0.0, scale, size)


class GlobalRandomAtEnds(Good):
    """Draws from the global generator as an episode begins, but for the first."""

    def begin(self, rows: np.ndarray) -> None:
        first = self.age.sum() == 0
        super().begin(rows)
        if not first:
            self.x[rows] = np.random.normal(0.0, 0.1, rows.size)


class SameForEverySeed(Good):
    def reset(self, seed: int) -> Observations:
        return super().reset(0)


class SeedsOnce(Good):
    def reset(self, seed: int) -> Observations:
        rng = getattr(self, "rng", None)
        obs = super().reset(seed)
        self.rng = rng or self.rng
        return obs


class HangsInStep(Good):
    def told(self, step: Step) -> Step:
        if self.steps == AT:
            threading.Event().wait()
        return step


class HangsInC(Good):
    """Native code that neither returns nor lets another thread of Python run."""

    def told(self, step: Step) -> Step:
        if self.steps == AT:
            sum(itertools.repeat(0))
        return step


class HangsInReset(Good):
    def reset(self, seed: int) -> Observations:
        threading.Event().wait()
        return super().reset(seed)


class Raises(Good):
    def told(self, step: Step) -> Step:
        if self.steps == AT:
            raise RuntimeError("the gripper\nis on fire")
        return step


class Segfaults(Good):
    def told(self, step: Step) -> Step:
        if self.steps == AT:
            ctypes.string_at(0)
        return step


class Vanishes(Good):
    def told(self, step: Step) -> Step:
        if self.steps == AT:
            os._exit(0)
        return step


class Exits(Good):
    def told(self, step: Step) -> Step:
        if self.steps == AT:
            sys.exit(0)
        return step


class LimitTooHigh(Good):
    spec_changes = {"episode_limit": 25}  # noqa: RUF012


class LimitTooLow(Good):
    spec_changes = {"episode_limit": 5}  # noqa: RUF012


class NoLimit(Good):
    """As good: whoever promises nothing breaks no promise."""

    spec_changes = {"episode_limit": None}  # noqa: RUF012


class ChangesActions(Good):
    def step(self, actions: np.ndarray) -> Step:
        step = super().step(actions)
        actions[:] = 0.0
        return step


class EverythingInPlace(InPlace, FinalInPlace, ChangesActions):
    """Writes again to all that it has returned, and to all that it was given."""


class RefusesBeyond(Good):
    spec_changes = {"action_low": [-2.0], "action_high": [2.0]}  # noqa: RUF012

    def step(self, actions: np.ndarray) -> Step:
        assert np.abs(actions).max() <= 2.0, "action out of range"
        return super().step(actions)


class ValidMissing(Good):
    spec_changes = {"skips_steps": True}  # noqa: RUF012


class KeepsAThread(Good):
    """Leaves a thread behind that keeps the process from ending."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        threading.Thread(target=threading.Event().wait).start()


def as_told(num_envs: int) -> Good:
    """The class that the variable E2E_BROKEN names, so that one run has collectors of several kinds."""
    kind: type[Good] = getattr(sys.modules[__name__], os.environ.get("E2E_BROKEN", "Good"))
    return kind(num_envs)
