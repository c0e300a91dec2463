from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appo_collector.envs.contract import VectorEnv
from appo_collector.envs.native.cartpole_swingup import CartpoleSwingup
from appo_collector.envs.registry import TASKS, make_env
from appo_common.errors import ConfigError, EnvironmentFault


@pytest.mark.parametrize("name", list(TASKS))
def test_every_listed_task_can_be_made_and_stepped(name: str) -> None:
    env = make_env(name, 3, {"stagger": True}, 1)
    obs = env.reset(seed=0)
    step = env.step(np.zeros((3, env.spec.num_actions), dtype=np.float32))
    assert env.spec.name == name
    assert {group: list(values.shape) for group, values in step.obs.items()} == {
        group: [3, *description.shape] for group, description in env.spec.observations.items()
    }
    assert {group: values.dtype.name for group, values in obs.items()} == {
        group: description.dtype for group, description in env.spec.observations.items()
    }
    assert list(step.info["terms"]) == env.spec.reward_terms
    env.close()


def test_every_task_has_a_line_of_its_own() -> None:
    assert all(len(text) < 100 for text in TASKS.values())


def test_an_unknown_name_gives_the_nearest_and_the_list() -> None:
    with pytest.raises(ConfigError) as caught:
        make_env("mujoco:cartpole-swing-up", 1, {}, 1)
    text = str(caught.value)
    assert "env.name: 'mujoco:cartpole-swing-up' is unknown" in text
    assert "Did you mean 'mujoco:cartpole-swingup'?" in text
    assert "mujoco:quadruped-velocity" in text


@pytest.mark.parametrize("name", ["", "cartpole", ":make", "no_such_module:make"])
def test_names_that_lead_nowhere(name: str) -> None:
    with pytest.raises(ConfigError, match=r"env\.name: .*package\.module:factory"):
        make_env(name, 1, {}, 1)


def test_an_attribute_that_is_not_there_gives_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"the module textwrap \(.*textwrap\.py\) has no 'wraap'; .*textwrap:wrap\?"):
        make_env("textwrap:wraap", 1, {}, 1)


def test_a_module_that_is_not_found_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"no module 'my_robot' is in {tmp_path} or installed: .*PYTHONPATH"):
        make_env("my_robot:make", 1, {}, 1)


def test_something_that_cannot_be_called() -> None:
    with pytest.raises(ConfigError, match=r"is a str, which cannot be called"):
        make_env("os:sep", 1, {}, 1)


def test_a_users_factory_gets_the_overrides(user_module: Callable[..., None]) -> None:
    def make(num_envs: int, threads: int, seconds: float) -> VectorEnv:
        return CartpoleSwingup(num_envs, threads=threads, episode_seconds=seconds)

    user_module(make=make)
    env = make_env("users_robot:make", 5, {"seconds": 2.0}, 2)
    assert (env.spec.num_envs, env.spec.episode_limit) == (5, 50)


def test_a_factory_that_raises_or_returns_something_else(user_module: Callable[..., None]) -> None:
    def broken(**_: Any) -> VectorEnv:
        raise RuntimeError("no simulator licence")

    def other_size(**_: Any) -> VectorEnv:
        return CartpoleSwingup(2)

    def no_spec(**_: Any) -> VectorEnv:
        env = CartpoleSwingup(1)
        env.spec = "cartpole"  # type: ignore[assignment]
        return env

    def wrong_spec(**_: Any) -> VectorEnv:
        env = CartpoleSwingup(1)
        env.spec = env.spec.model_copy(update={"action_low": [-1.0, -1.0], "action_high": [1.0, 1.0]})
        return env

    user_module(broken=broken, other_size=other_size, no_spec=no_spec, wrong_spec=wrong_spec, number=lambda **_: 3)
    expected = {
        "broken": "could not be made: RuntimeError: no simulator licence",
        "number": "returned a int; a factory must return a subclass of .*VectorEnv",
        "other_size": "asked for 1 environments, its spec says 2",
        "no_spec": "its spec is a str, not an EnvSpec",
        "wrong_spec": "its spec is wrong: .*action_low has 2 entries for num_actions = 1$",
    }
    for name, text in expected.items():
        with pytest.raises(EnvironmentFault, match=text):
            make_env(f"users_robot:{name}", 1, {}, 1)


def test_the_batch_size_is_no_override() -> None:
    with pytest.raises(ConfigError, match=r"env\.overrides\.num_envs: 3 belongs to env\.num_envs"):
        make_env("mujoco:cartpole-swingup", 1, {"num_envs": 3}, 1)


def test_a_wrong_override_stays_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"env\.overrides\.speed"):
        make_env("mujoco:cartpole-swingup", 1, {"speed": 3}, 1)
