"""The example of docs/mujoco-tasks.md is run as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers_mujoco import BACKENDS

from appo_collector.envs.guard import Guard
from appo_collector.envs.native.mujoco_task import MujocoTask
from appo_collector.envs.native.physics import Physics
from appo_collector.envs.registry import make_env
from appo_common.config_file import load_config
from appo_common.errors import ConfigError
from appo_common.train_env import check_environment

DOC = Path(__file__).resolve().parent.parent / "docs/mujoco-tasks.md"


def block(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", DOC.read_text(), re.DOTALL | re.MULTILINE)
    assert len(found) == 1
    return str(found[0])


@pytest.fixture(params=BACKENDS)
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Put the example where Python finds it; run it on every backend."""
    (tmp_path / "balance.py").write_text(block("python"))
    monkeypatch.syspath_prepend(str(tmp_path))
    backend: type[Physics] = request.param
    monkeypatch.setattr(MujocoTask, "physics", backend)
    monkeypatch.delitem(sys.modules, "balance", raising=False)
    return "balance:Balance"


def play(name: str, threads: int, **overrides: Any) -> list[np.ndarray]:
    env = Guard(make_env(name, 16, overrides, threads))
    obs, ages = env.reset(seed=1)
    assert not ages.any()
    rng = np.random.default_rng(0)
    seen = [obs["privileged"]]
    for _ in range(120):
        step = env.step(rng.uniform(-2, 2, (16, 1)).astype(np.float32))
        np.testing.assert_allclose(sum(step.info["terms"].values()), step.reward, atol=1e-6)
        seen += [step.obs["privileged"], step.reward, step.terminated, step.truncated]
    env.env.close()
    return seen


def test_it_keeps_the_contract_and_does_not_depend_on_threads(name: str) -> None:
    first, second = play(name, 1, episode_seconds=1.0), play(name, 2, episode_seconds=1.0)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.any(first[3::4]), "a pole falls"
    assert np.any(first[4::4]), "an episode times out"


def test_every_episode_has_a_mass_of_its_own_in_the_range(name: str) -> None:
    masses = np.concatenate([obs[:, 4] for obs in play(name, 1, mass=[2.0, 3.0], episode_seconds=0.2)[1::4]])
    assert 0.2 <= masses.min() < 0.21 < 0.29 < masses.max() <= 0.3
    assert len(np.unique(masses)) == 16 * (1 + 120 // 10)


def test_a_wrong_override_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=r"env\.overrides\.mass: \[3, 2\] is not allowed"):
        make_env(name, 1, {"mass": [3, 2]}, 1)


def test_it_draws_a_picture(name: str) -> None:
    env = make_env(name, 2, {}, 1)
    env.reset(seed=0)
    assert env.render(1, 96, 64).std() > 5
    env.close()


def test_the_configuration_is_valid_and_fits_the_task(name: str, tmp_path: Path) -> None:
    path = tmp_path / "balance.yaml"
    path.write_text(block("yaml"))
    config = load_config(str(path))
    assert config.env.name == name
    check_environment(config, make_env(name, config.env.num_envs, config.env.overrides, 1).spec)
