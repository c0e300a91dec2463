"""Every kind of Gymnasium space: what group or action it becomes, and what is said about the ones that cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from appo_collector.envs.adapters.gymnasium_spaces import ActionCodec, ObservationCodec, rows_of
from appo_common.errors import ConfigError, EnvironmentFault

inf = float("inf")


def box(*shape: int, dtype: Any = np.float32) -> spaces.Box:
    low, high = (0, 255) if dtype == np.uint8 else (-10, 10)
    return spaces.Box(low, high, shape, dtype)


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (box(5), [5], "float32"),
        (box(5, dtype=np.float64), [5], "float32"),
        (box(5, dtype=np.int64), [5], "float32"),
        (box(5, dtype=np.uint8), [5], "float32"),
        (box(), [1], "float32"),
        (box(4, 6), [24], "float32"),
        (box(64, 48, 3, dtype=np.uint8), [64, 48, 3], "uint8"),
        (box(64, 48, dtype=np.uint8), [64, 48, 1], "uint8"),
        (box(3, 64, 48, dtype=np.uint8), [64, 48, 3], "uint8"),
        (box(4, 84, 84, dtype=np.uint8), [84, 84, 4], "uint8"),
        (box(1, 7, 7), [7, 7, 1], "float32"),
        (box(7, 7, 3, dtype=np.int64), [7, 7, 3], "float32"),
        (box(10, 10, 6), [10, 10, 6], "float32"),  # square: the last one are channels, however many
        (box(2, 5, 3, dtype=np.uint8), [2, 5, 3], "uint8"),  # three at the end is colour, not width
        (box(20, 30, 30), [20, 30, 30], "float32"),  # too many to be channels
        (spaces.Discrete(4), [4], "float32"),
        (spaces.MultiDiscrete([2, 3]), [5], "float32"),
        (spaces.MultiBinary(6), [6], "float32"),
        (spaces.MultiBinary((2, 3)), [6], "float32"),
    ],
)
def test_a_space_becomes_the_group_policy(space: spaces.Space[Any], shape: list[int], dtype: str) -> None:
    codec = ObservationCodec(space, "test")
    assert {key: (group.shape, group.dtype) for key, group in codec.groups.items()} == {"policy": (shape, dtype)}
    space.seed(1)
    batch = codec.stack([space.sample() for _ in range(3)])
    for rows in (batch, batch[:0]):
        group = codec.encode(rows)["policy"]
        assert (list(group.shape), group.dtype) == ([len(rows), *shape], dtype)
        assert group.flags.c_contiguous
        assert group.flags.owndata or group.base.flags.owndata
        assert not np.shares_memory(group, batch)


def test_pixels_and_numbers_stay_where_they_belong() -> None:
    first = np.arange(2 * 3 * 5 * 6, dtype=np.uint8).reshape(2, 3, 5, 6)
    last = ObservationCodec(box(3, 5, 6, dtype=np.uint8), "test").encode(first)["policy"]
    assert last[1, 4, 2].tolist() == first[1, :, 4, 2].tolist()
    table = np.arange(12.0).reshape(2, 2, 3)
    assert ObservationCodec(box(2, 3), "test").encode(table)["policy"].tolist() == table.reshape(2, 6).tolist()


def test_choices_become_one_hot() -> None:
    one = ObservationCodec(spaces.Discrete(3, start=5), "test").encode(np.array([5, 7]))
    assert one["policy"].tolist() == [[1, 0, 0], [0, 0, 1]]
    several = ObservationCodec(spaces.MultiDiscrete([2, 3], start=[1, -1]), "test").encode(np.array([[1, 1], [2, -1]]))
    assert several["policy"].tolist() == [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0]]


def test_a_dict_becomes_a_group_per_key() -> None:
    space = spaces.Dict({"camera": box(8, 8, 3, dtype=np.uint8), "state": box(2, dtype=np.float64)})
    codec = ObservationCodec(space, "test")
    assert {key: (group.shape, group.dtype) for key, group in codec.groups.items()} == {
        "camera": ([8, 8, 3], "uint8"),
        "state": ([2], "float32"),
    }
    batch = codec.stack([space.sample() for _ in range(4)])
    picked = codec.encode(rows_of(batch, np.array([3, 1])))
    assert picked["camera"].tolist() == batch["camera"][[3, 1]].tolist()
    assert picked["state"].tolist() == batch["state"][[3, 1]].astype(np.float32).tolist()


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (
            spaces.Dict({"a": spaces.Dict({"b": box(2)})}),
            r"test: observation 'a' is a nested Dict .*FlattenObs.*Filter",
        ),
        (spaces.Tuple([box(2)]), r"test: its observation space is a Tuple .*FlattenObservation"),
        (spaces.Dict({"a": spaces.Tuple([box(2)])}), r"test: observation 'a' is a Tuple"),
        (spaces.Text(4), r"is a Text .*TransformObservation"),
        (spaces.Sequence(box(2)), r"is a Sequence"),
        (spaces.OneOf([box(2), box(3)]), r"is a OneOf"),
        (spaces.Graph(box(2), None), r"is a Graph"),
        (spaces.Dict({}), r"is an empty Dict"),
        (box(2, 3, 4, 5), r"more than three dimensions \(shape \(2, 3, 4, 5\)\).*ReshapeObservation"),
        (box(0), r"is empty \(shape \(0,\)\).*FilterObservation"),
    ],
)
def test_a_space_without_a_place_is_refused_with_a_remedy(space: spaces.Space[Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ObservationCodec(space, "test")


@pytest.mark.parametrize(
    ("space", "batch", "words"),
    [
        (box(3), np.zeros((2, 4)), r"test: observation 'policy' is \(2, 4\), its space says \(num_envs, \*\(3,\)\)"),
        (box(), np.float32(1), r"'policy' is \(\)"),
        (box(4, 4, 3, dtype=np.uint8), np.zeros((2, 4, 4, 3)), r"'policy' is float64, its space says uint8"),
        (spaces.Dict({"a": box(3), "b": box(1)}), {"a": np.zeros((2, 3))}, r"lacks 'b', which its space promises"),
        (spaces.Dict({"a": box(3)}), np.zeros((2, 3)), r"its space is a Dict, the observation a ndarray"),
        (spaces.Discrete(3), np.array([0, 3]), r"'policy': \[0, 3\] lies outside"),
        (spaces.Discrete(3), np.array([-1, 0]), r"'policy': \[-1, 0\] lies outside"),
    ],
)
def test_an_observation_outside_of_its_space_is_the_environments_fault(
    space: spaces.Space[Any], batch: Any, words: str
) -> None:
    with pytest.raises(EnvironmentFault, match=words):
        ObservationCodec(space, "test").encode(batch)


def test_continuous_actions_are_shaped_and_keep_their_bounds() -> None:
    codec = ActionCodec(spaces.Box(np.array([[-1.0, -2.0]]), np.array([[3.0, inf]]), dtype=np.float64), "test")
    assert (codec.num_actions, codec.nvec, codec.low, codec.high) == (2, [], [-1.0, -2.0], [3.0, inf])
    actions = np.array([[9.0, 1.0], [0.5, 2.0], [0.0, -7.0]], dtype=np.float32)
    own = codec.decode(actions)
    assert (own.shape, own.dtype) == ((3, 1, 2), np.float64)
    assert own.reshape(3, 2).tolist() == actions.tolist()
    own[:] = 0  # an environment may write into it
    assert actions[0, 0] == 9.0
    unbounded = ActionCodec(spaces.Box(-inf, inf, ()), "test")
    assert (unbounded.num_actions, unbounded.low, unbounded.high) == (1, [], [])
    assert unbounded.decode(np.ones((3, 1), dtype=np.float32)).shape == (3,)


@pytest.mark.parametrize(
    ("space", "nvec", "actions", "own"),
    [
        (spaces.Discrete(3), [3], [[0], [2]], [0, 2]),
        (spaces.Discrete(3, start=-1), [3], [[0], [2]], [-1, 1]),
        (spaces.MultiDiscrete([2, 4], start=[0, 10]), [2, 4], [[1, 0], [0, 3]], [[1, 10], [0, 13]]),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), [2, 3, 4, 5], [[1, 2, 3, 4]], [[[1, 2], [3, 4]]]),
        (spaces.MultiBinary(3), [2, 2, 2], [[1, 0, 1]], [[1, 0, 1]]),
        (spaces.MultiBinary((2, 1)), [2, 2], [[1, 0]], [[[1], [0]]]),
    ],
)
def test_discrete_actions_are_whole_numbers_of_the_spaces_own(
    space: spaces.Space[Any], nvec: list[int], actions: list[list[int]], own: Any
) -> None:
    codec = ActionCodec(space, "test")
    assert (codec.nvec, codec.num_actions, codec.low) == (nvec, len(nvec), [])
    decoded = codec.decode(np.array(actions, dtype=np.float32))
    assert decoded.tolist() == own
    assert all(space.contains(one) for one in decoded)


@pytest.mark.parametrize(
    "space", [box(3, dtype=np.int64), box(0), spaces.Dict({"a": box(1)}), spaces.Tuple([box(1)]), spaces.Text(3)]
)
def test_an_action_space_that_is_not_supported_is_named_with_a_remedy(space: spaces.Space[Any]) -> None:
    with pytest.raises(ConfigError, match=r"(?s)^test: its action space is .*TransformAction"):
        ActionCodec(space, "test")
