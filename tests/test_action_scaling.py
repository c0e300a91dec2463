"""From the policy's actions to the environment's: what arrives there, and which bounds allow what."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from helpers_collector import CountingEnv

from appo_collector.envs.action_scaling import scale_actions
from appo_collector.envs.contract import Step, VectorEnv
from appo_common.errors import ConfigError
from appo_common.spec import ActionScaling

INF = math.inf


class Recorder(CountingEnv):
    """Keeps the actions that arrive."""

    def __init__(self, low: list[float], high: list[float], nvec: list[int] | None = None) -> None:
        super().__init__(["...."])
        bounds = {"action_low": low, "action_high": high, "action_nvec": nvec or []}
        self.spec = self.spec.model_copy(update=bounds)
        self.arrived = np.empty(0)

    def step(self, actions: np.ndarray) -> Step:
        self.arrived = actions.copy()
        return super().step(actions)


def arrived(env: VectorEnv, action: list[float]) -> list[float]:
    actions = np.array([action], dtype=np.float32)
    env.reset(0)
    before = actions.copy()
    env.step(actions)
    np.testing.assert_array_equal(actions, before)  # what was sampled goes into the rollout
    recorder = getattr(env, "_env", env)
    assert recorder.arrived.dtype == np.float32
    return recorder.arrived[0].tolist()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("none", [[0.5, -0.5], [3.0, -3.0]]),
        ("clip", [[0.5, 0.0], [2.0, 0.0]]),
        ("rescale", [[1.0, 1.0], [2.0, 0.0]]),  # the centres are 0 and 2, the half widths 2 and 2
    ],
)
def test_actions_in_the_environments_units(mode: ActionScaling, expected: list[list[float]]) -> None:
    env = scale_actions(Recorder([-2.0, 0.0], [2.0, 4.0]), mode)
    assert env.spec.action_scaling == mode
    assert [arrived(env, action) for action in ([0.5, -0.5], [3.0, -3.0])] == expected


def test_the_default_maps_to_finite_bounds_and_leaves_others_alone() -> None:
    assert scale_actions(Recorder([-2.0, 0.0], [2.0, 4.0]), None).spec.action_scaling == "rescale"
    assert scale_actions(Recorder([-INF, 0.0], [2.0, 4.0]), None).spec.action_scaling == "none"
    huge = float(np.finfo(np.float32).max)  # what Box(-finfo.max, finfo.max) says
    assert scale_actions(Recorder([-huge, 0.0], [huge, 4.0]), None).spec.action_scaling == "none"
    assert scale_actions(Recorder([-1e300, 0.0], [1e300, 4.0]), None).spec.action_scaling == "none"
    assert scale_actions(Recorder([], []), None).spec.action_scaling == "none"
    assert scale_actions(Recorder([], [], nvec=[2, 3]), None).spec.action_scaling == "none"


def test_bounds_of_one_rescale_to_the_very_same_numbers() -> None:
    env = scale_actions(Recorder([-1.0, -1.0], [1.0, 1.0]), "rescale")
    odd = float(np.float32(1 / 3))
    assert arrived(env, [odd, -odd]) == [odd, -odd]


def test_half_open_bounds_can_be_clipped() -> None:
    for unbounded in (INF, 1e300):
        env = scale_actions(Recorder([-unbounded, 0.0], [2.0, unbounded]), "clip")
        assert arrived(env, [-9.0, -9.0]) == [-9.0, 0.0]


@pytest.mark.parametrize(
    ("env", "mode", "reason"),
    [
        (Recorder([], []), "clip", "names no bounds"),
        (Recorder([], []), "rescale", "names no bounds"),
        (Recorder([-INF, 0.0], [2.0, 4.0]), "rescale", "infinite bounds"),
        (Recorder([], [], nvec=[2, 3]), "rescale", "discrete actions"),
    ],
)
def test_what_the_bounds_do_not_allow_is_refused(env: Recorder, mode: ActionScaling, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"env\.action_scaling: '{mode}' is not possible: .*{reason}.*use .*none"):
        scale_actions(env, mode)


def test_the_choice_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        scale_actions(Recorder([-2.0, 0.0], [2.0, 4.0]), None)
    assert "mapped to the environment's bounds" in caplog.text
    assert "env.action_scaling: rescale" in caplog.text
