"""The commonest mistakes in a single Gymnasium environment: told in its own name, or put right by a copy."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from helpers_counting import CountingGym

from appo_collector.envs.adapters.gymnasium_env import GymnasiumEnv, from_id, vectorise
from appo_collector.envs.adopt import make_from
from appo_collector.envs.contract import VectorEnv
from appo_common.errors import ConfigError, EnvironmentFault

BOX = spaces.Box(-1, 1, (2,))
PICTURE = spaces.Box(0, 255, (4, 5, 3), np.uint8)
PLACE = "users:make: environment 1: "


class Task(gymnasium.Env[Any, Any]):
    """Returns whatever it is given: ``first`` from ``reset``, ``then`` from ``step``."""

    def __init__(self, then: Any = None, first: Any = None, space: spaces.Space[Any] = BOX) -> None:
        self.observation_space, self.action_space = space, spaces.Box(-1, 1, (1,))
        good = space.sample()
        self.first = (good, {}) if first is None else first
        self.then = (good, 0.5, False, False, {}) if then is None else then

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.first

    def step(self, action: Any) -> Any:
        return self.then


def run(*envs: gymnasium.Env[Any, Any]) -> Any:
    """Vectorise ``envs``, reset, step and return the result."""
    return once(vectorise([lambda made=made: made for made in envs], "users:make"))


def once(env: VectorEnv) -> Any:
    env.reset(1)
    return env.step(zeros(env))


def zeros(env: VectorEnv) -> np.ndarray:
    return np.zeros((env.spec.num_envs, env.spec.num_actions), dtype=np.float32)


def seen(obs: Any, space: spaces.Space[Any] = BOX) -> Task:
    return Task((obs, 0.5, False, False, {}), space=space)


def outcome(reward: Any = 0.5, terminated: Any = False, truncated: Any = False) -> Task:
    return Task((np.zeros(2, np.float32), reward, terminated, truncated, {}))


class Bare(Task):
    """An environment of old: ``reset`` takes nothing, or only a seed."""

    def reset(self) -> Any:  # type: ignore[override]
        return self.first


class Seeded(Task):
    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return self.first


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Task((np.zeros(2), 0.5, False, {})), r"step\(\) returned 4 values; Gymnasium's are obs, reward, terminated, "),
        (Task(np.zeros(5)), r"step\(\) returned a ndarray of shape \(5,\); Gymnasium's are"),
        (Task((np.zeros(2), 0.5, False, False, None)), r"step\(\) returned a NoneType as info, which is a dict"),
        (Task(first=np.zeros(2)), r"reset\(\) returned a ndarray of shape \(2,\); Gymnasium's are obs, info"),
        (Task(first=[0.0, 0.0]), r"reset\(\) returned a float as info, which is a dict"),
        (Bare(), r"argument 'seed': reset\(\) must take seed and options as keywords: def reset\(self, \*, seed=None"),
        (Seeded(), r"argument 'options': reset\(\) must take seed and options as keywords"),
        (outcome(None), r"reward of step\(\) is None, a NoneType; return one number, such as float\(reward\)"),
        (outcome(np.ones(1)), r"reward of step\(\) is array\(\[1.\]\), a ndarray of shape \(1,\); return one number"),
        (outcome("1"), r"reward of step\(\) is '1', a str"),
        (outcome(terminated=None), r"terminated of step\(\) is None, a NoneType; return one bool"),
        (outcome(truncated=np.zeros(2, bool)), r"truncated of step\(\) is array.*shape \(2,\); return one bool"),
        (outcome(terminated=0.5), r"terminated of step\(\) is 0.5, a float"),
    ],
)
def test_a_wrong_result_is_named(wrong: Task, words: str) -> None:
    with pytest.raises(EnvironmentFault, match=PLACE + ".*" + words):
        run(Task(), wrong)


@pytest.mark.parametrize(
    ("obs", "space", "words"),
    [
        (np.zeros(3), BOX, r"of step\(\) is a ndarray of shape \(3,\) .* says shape \(2,\) and dtype float32"),
        (
            [[0.0, 0.0]],
            BOX,
            r"is a list of shape \(1, 2\) .*; return np.asarray\(…, dtype=np.float32\) of shape \(2,\)",
        ),
        ([[0.0], [0.0, 1.0]], BOX, r"observation of step\(\) is no array: .*; return np.asarray"),
        (["a", "b"], BOX, r"is a list of shape \(2,\) and dtype <U1, its space says .* float32"),
        (None, BOX, r"is a NoneType of shape \(\) and dtype object"),
        (np.zeros((4, 5, 3)), PICTURE, r"dtype float64, its space says shape \(4, 5, 3\) and dtype uint8"),
        (1.0, spaces.Discrete(3), r"dtype float64, its space says shape \(\) and dtype int64"),
        (np.zeros(2), spaces.Dict(a=BOX), r"step\(\) returned a ndarray of shape \(2,\) .*Dict: return a dict"),
        ({"a": BOX.low}, spaces.Dict(a=BOX, b=BOX), r"lacks 'b': it has the keys \['a'\], its space says \['a', 'b'\]"),
        ({"0": BOX.low}, spaces.Dict({0: BOX}), r"lacks 0: it has the keys \['0'\], its space says \[0\]"),
        ({"a": np.zeros(3)}, spaces.Dict(a=BOX), r"observation 'a' of step\(\) is a ndarray of shape \(3,\)"),
    ],
)
def test_an_observation_that_does_not_fit_is_named(obs: Any, space: spaces.Space[Any], words: str) -> None:
    with pytest.raises(EnvironmentFault, match=PLACE + ".*" + words):
        run(Task(space=space), seen(obs, space))


def test_the_first_observation_is_checked_too() -> None:
    with pytest.raises(EnvironmentFault, match=r"environment 0: observation of reset\(\) is a ndarray of shape \(3,\)"):
        run(Task(first=(np.zeros(3), {})))


def test_what_can_be_read_without_loss_is_accepted() -> None:
    scalars = outcome(np.array(1.5), np.array(True), 1)
    result = run(scalars, outcome(np.float32(2)), outcome(3, np.bool_(False)), seen([0, 1]))
    assert result.reward.tolist() == [1.5, 2.0, 3.0, 0.5]
    assert (result.terminated.tolist(), result.truncated.tolist()) == ([True, *[False] * 3],) * 2
    assert result.obs["policy"][3].tolist() == [0.0, 1.0]
    assert run(seen(2, spaces.Discrete(3))).obs["policy"].tolist() == [[0.0, 0.0, 1.0]]


def test_a_dict_with_keys_that_are_no_words() -> None:
    space = spaces.Dict({0: BOX, 1: spaces.Discrete(2)})
    end = Task(({0: np.ones(2), 1: 1}, 0.5, True, False, {}), ({0: np.zeros(2), 1: 0}, {}), space)
    result = run(end)
    assert {key: array.tolist() for key, array in result.final_obs.items()} == {"0": [[1.0, 1.0]], "1": [[0.0, 1.0]]}
    assert {key: array.tolist() for key, array in result.obs.items()} == {"0": [[0.0, 0.0]], "1": [[1.0, 0.0]]}
    separate = GymnasiumEnv(SyncVectorEnv([lambda: end], autoreset_mode=AutoresetMode.SAME_STEP), "users:make")
    assert once(separate).final_obs["0"].tolist() == [[1.0, 1.0]]
    with pytest.raises(ConfigError, match=r"two of its observations \[1, '1'\] have the same name"):
        run(Task(space=spaces.Dict({1: BOX, "1": BOX})))


class Shared(CountingGym):
    """All of them write into one array: the mistake of a class attribute."""

    buffer = np.zeros(2)

    def _show(self, seen: list[float]) -> Any:
        self.buffer[:] = seen
        return {"policy": self.buffer} if self._as_dict else self.buffer


@pytest.mark.parametrize("as_dict", [False, True])
def test_environments_that_share_one_array_keep_their_own_observations(as_dict: bool) -> None:
    makers = [partial(Shared, row, line, as_dict=as_dict) for row, line in enumerate(("T", "...", ".T"))]
    env = vectorise(makers, "users:make")
    once(env)
    result = env.step(zeros(env))
    assert result.obs["policy"].tolist() == [[1.0, 1.0], [2.0, 0.0], [0.0, 1.0]]
    assert result.final_obs["policy"].tolist() == [[2.0, 0.0]]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_factory_that_returns_one_environment_twice(wrapped: bool) -> None:
    one = Task()
    wrap = partial(gymnasium.wrappers.TimeLimit, one, 5) if wrapped else lambda: one
    with pytest.raises(EnvironmentFault, match=r"users:make: the factory returned the same environment twice; it must"):
        make_from(wrap, "users:make", 2, 1, {})


@pytest.mark.parametrize("attribute", ["action_space", "observation_space"])
def test_a_missing_space_is_named(attribute: str) -> None:
    wrong = Task()
    delattr(wrong, attribute)
    with pytest.raises(EnvironmentFault, match=rf"environment 1: its {attribute} is None; set self.{attribute} to a"):
        run(Task(), wrong)
    setattr(wrong, attribute, [1, 2])
    with pytest.raises(EnvironmentFault, match=rf"its {attribute} is \[1, 2\]"):
        run(Task(), wrong)


def test_a_factory_that_returns_something_else_later() -> None:
    products = iter([Task(), 7])
    with pytest.raises(EnvironmentFault, match=r"users:make: environment 1 is a int; every call of the factory must"):
        make_from(lambda: next(products), "users:make", 2, 1, {})


@pytest.fixture
def registered() -> Any:
    gymnasium.register("Wrong-v0", entry_point=lambda kind: kind(), max_episode_steps=9)
    yield "Wrong-v0"
    del gymnasium.registry["Wrong-v0"]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            lambda: Task((np.zeros(2), 0.5, False, {})),
            r"cannot use what step\(\) returned: .*; Gymnasium's are obs, rew",
        ),
        (lambda: Task(first=np.zeros(2)), r"reset\(\) returned a ndarray of shape \(2,\); Gymnasium's are obs, info"),
        (Bare, r"reset\(\) must take seed and options as keywords"),
    ],
)
def test_mistakes_of_a_registered_id_that_its_wrappers_meet_first(registered: str, kind: Any, words: str) -> None:
    with pytest.raises(EnvironmentFault, match=r"gymnasium:Wrong-v0: environment 0: .*" + words):
        once(from_id(registered, 1, 1, {"kind": kind}))


class Raises(Task):
    def step(self, action: Any) -> Any:
        raise ValueError("my own")


def test_an_error_of_its_own_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="my own"):
        run(gymnasium.wrappers.TimeLimit(Raises(), 5))


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("in_place", [False, True])
def test_same_step_whose_resets_write_over_final_observations_is_told_once(
    kind: Any, in_place: bool, caplog: pytest.LogCaptureFixture
) -> None:
    makers = [partial(CountingGym, row, "T" * 8, in_place=in_place) for row in range(2)]
    env = GymnasiumEnv(kind(makers, autoreset_mode=AutoresetMode.SAME_STEP), "mine")
    env.reset(1)
    told = []
    with caplog.at_level(logging.WARNING):
        for _ in range(8):
            env.step(zeros(env))
            told.append(len(caplog.records))
    env.close()
    assert told == ([0, 0, 1, 1, 1, 1, 1, 1] if in_place else [0] * 8)
    if in_place:
        assert "mine: the last observations of episodes equal the first ones of the next" in caplog.text


class Base(Task):
    def __init__(self, friction: float = 1.0, **_: Any) -> None:
        super().__init__()


class Robot(Base):
    def __init__(self, gravity: float = 9.81, **kwargs: Any) -> None:
        if unknown := set(kwargs) - {"friction"}:
            raise TypeError(f"unknown {unknown}")
        super().__init__(**kwargs)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"gravty": 3}, r"did you mean gravity for gravty\?"),
        ({"frction": 3, "gravity": 1}, r"did you mean friction for frction\?"),
        ({"max_episode_step": 3}, r"did you mean max_episode_steps for max_episode_step\?"),
        ({"qqq": 3}, r"unknown {'qqq'}((?!did you mean).)*$"),
    ],
)
def test_an_override_nearly_right_is_named(overrides: dict[str, Any], words: str) -> None:
    gymnasium.register("Robot-v0", entry_point=Robot)
    try:
        with pytest.raises(ConfigError, match=rf"env.overrides: 'gymnasium:Robot-v0' refused .*{words}"):
            from_id("Robot-v0", 1, 1, overrides)
    finally:
        del gymnasium.registry["Robot-v0"]
