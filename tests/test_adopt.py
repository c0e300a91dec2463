"""What users' factories return: each kind becomes the contract, and is called with what it takes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from appo_collector.envs.contract import VectorEnv
from appo_collector.envs.native.cartpole_swingup import CartpoleSwingup
from appo_collector.envs.registry import make_env
from appo_common.errors import ConfigError, EnvironmentFault

User = Callable[..., None]


class Corridor(gymnasium.Env):
    """Walk right for ``length`` steps; made as users make theirs, without ``num_envs``."""

    def __init__(self, length: int = 3) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, np.inf, (1,), np.float64)
        self.action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)
        self._length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = 0
        return np.array([0.0]), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._at += 1
        return np.array([float(self._at)]), float(action[0]), self._at == self._length, False, {}


class TorchCorridor(VecEnv):
    """The same as an rsl_rl environment."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.num_actions, self.max_episode_length = num_envs, 1, 3
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.device, self.cfg = "cpu", {}

    def get_observations(self) -> TensorDict:
        return TensorDict({"policy": self.episode_length_buf.float()[:, None]}, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        self.episode_length_buf += 1
        dones = self.episode_length_buf == 3
        self.episode_length_buf[dones] = 0
        return self.get_observations(), actions[:, 0], dones.long(), {"time_outs": torch.zeros_like(dones)}


def steps(env: VectorEnv, count: int, action: float = 0.25) -> list[tuple[list[float], list[float], list[bool]]]:
    """The observations, rewards and terminations of ``count`` steps."""
    env.reset(0)
    actions = np.full((env.spec.num_envs, 1), action, dtype=np.float32)
    taken = [env.step(actions) for _ in range(count)]
    return [(step.obs["policy"][:, 0].tolist(), step.reward.tolist(), step.terminated.tolist()) for step in taken]


def test_the_contract_itself_comes_back_as_it_is(user_module: User) -> None:
    made: list[VectorEnv] = []

    def make(num_envs: int) -> VectorEnv:  # takes no threads
        made.append(CartpoleSwingup(num_envs))
        return made[0]

    user_module(make=make)
    assert make_env("users_robot:make", 2, {}, 1) is made[0]


def test_a_single_gymnasium_environment_is_made_once_for_each(user_module: User) -> None:
    user_module(Corridor=Corridor)
    env = make_env("users_robot:Corridor", 3, {"length": 2}, 1, "none")
    assert (env.spec.name, env.spec.num_envs) == ("users_robot:Corridor", 3)
    assert steps(env, 2) == [([1.0] * 3, [0.25] * 3, [False] * 3), ([0.0] * 3, [0.25] * 3, [True] * 3)]


def test_a_gymnasium_vector_environment(user_module: User) -> None:
    def make(num_envs: int) -> gymnasium.vector.VectorEnv:
        return gymnasium.vector.SyncVectorEnv([Corridor] * num_envs)

    user_module(make=make)
    env = make_env("users_robot:make", 2, {}, 1)
    assert env.spec.action_scaling == "rescale"
    assert steps(env, 3)[2] == ([0.0, 0.0], [0.5, 0.5], [True, True])  # bounds of 2 double the action


def test_an_rsl_rl_environment(user_module: User) -> None:
    user_module(TorchCorridor=TorchCorridor)
    env = make_env("users_robot:TorchCorridor", 2, {}, 1)
    assert steps(env, 3)[2] == ([0.0, 0.0], [0.25, 0.25], [True, True])


def test_overrides_that_a_factory_does_not_take_are_named(user_module: User) -> None:
    user_module(Corridor=Corridor)
    with pytest.raises(ConfigError, match=r"env\.overrides\.lenght: .*did you mean 'length'\? It takes: length"):
        make_env("users_robot:Corridor", 1, {"lenght": 2}, 1)


def test_a_package_that_a_users_module_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "unilab", None)  # not importable
    (tmp_path / "users_lack.py").write_text("import unilab\n")
    with pytest.raises(ConfigError, match=r"importing users_lack raised ModuleNotFoundError: .*appo\[unilab\]"):
        make_env("users_lack:make", 1, {}, 1)


def test_a_vector_environment_of_another_size_is_refused(user_module: User) -> None:
    user_module(make=lambda: gymnasium.vector.SyncVectorEnv([Corridor] * 2))
    with pytest.raises(EnvironmentFault, match="asked for 3 environments, its spec says 2"):
        make_env("users_robot:make", 3, {}, 1)


def test_a_module_that_cannot_be_imported_names_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "users_typo.py").write_text("import numpy\n\ndef make(:\n    pass\n")
    (tmp_path / "users_bug.py").write_text("import numpy\n\nLIMIT = 1 / 0\n")
    with pytest.raises(ConfigError, match=r"importing users_typo raised SyntaxError: .*\(users_typo\.py, line 3\)"):
        make_env("users_typo:make", 1, {}, 1)
    with pytest.raises(ConfigError, match=r"importing users_bug raised ZeroDivisionError: .*users_bug\.py, line 3\)"):
        make_env("users_bug:make", 1, {}, 1)


def test_a_missing_package_gives_the_command_that_installs_it() -> None:
    script = (
        "import sys; sys.modules['gymnasium'] = None; sys.modules['envpool'] = None\n"  # None: not importable
        "from appo_collector.envs.registry import make_env\n"
        "from appo_common.errors import ConfigError\n"
        "for name in ('gymnasium:CartPole-v1', 'envpool:CartPole-v1'):\n"
        "    try:\n        make_env(name, 1, {}, 1)\n    except ConfigError as error:\n        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    first, second = done.stdout.splitlines()
    assert "env.name: 'gymnasium:CartPole-v1' needs the package gymnasium" in first
    assert "pip install 'appo[gymnasium]'" in first
    assert "pip install 'appo[envpool]'" in second
