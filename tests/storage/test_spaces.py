"""Spaces and arguments as plain data: they round-trip through JSON, and invalid data is rejected."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy

from sb3_compressed import available_codecs, get_codec
from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage.spaces import argument_from_data, argument_to_data, space_from_data, space_to_data

INF = float("inf")

SPACES: dict[str, spaces.Space[Any]] = {
    "image": spaces.Box(0, 255, (3, 84, 84), np.uint8),
    "unbounded": spaces.Box(-INF, INF, (17,), np.float32),
    "bounded below": spaces.Box(0, INF, (2, 3), np.float64),
    "of each its own": spaces.Box(np.array([-1, -INF, 0.1]), np.array([1, INF, 0.2]), dtype=np.float64),
    "half floats": spaces.Box(-2, 2, (4,), np.float16),
    "no axis": spaces.Box(-1, 1, (), np.float32),
    "no element": spaces.Box(0, 1, (0, 3), np.float32),
    "long": spaces.Box(-(2**62), 2**62, (5,), np.int64),
    "bools": spaces.Box(0, 1, (4,), np.bool_),
    "zero and minus zero": spaces.Box(np.array([0.0, -0.0]), np.array([0.0, -0.0]), dtype=np.float64),
    "discrete": spaces.Discrete(6),
    "discrete with a start": spaces.Discrete(5, start=-2),
    "multi-discrete": spaces.MultiDiscrete([3, 1, 7]),
    "multi-discrete with a start": spaces.MultiDiscrete([3, 4], start=[1, -2]),
    "multi-discrete, short": spaces.MultiDiscrete([3, 3], dtype=np.int32),
    "multi-discrete of two axes": spaces.MultiDiscrete(np.array([[3, 4], [5, 6]])),
    "multi-binary": spaces.MultiBinary(8),
    "multi-binary of one axis": spaces.MultiBinary([8]),
    "multi-binary of two axes": spaces.MultiBinary([3, 2]),
    "dict": spaces.Dict(
        {
            "screen": spaces.Box(0, 255, (1, 84, 84), np.uint8),
            "lives": spaces.Discrete(10),
            "a/b.c ä": spaces.Box(-INF, INF, (2,)),
            "": spaces.MultiBinary([2, 2]),
        }
    ),
    "dict in a dict": spaces.Dict({"outer": spaces.Dict({"inner": spaces.MultiDiscrete([2, 3])})}),
}


def there_and_back(space: spaces.Space[Any]) -> spaces.Space[Any]:
    return space_from_data(json.loads(json.dumps(space_to_data(space))))


def assert_same_space(ours: spaces.Space[Any], theirs: spaces.Space[Any]) -> None:
    assert ours == theirs
    assert theirs == ours
    assert (type(ours), ours.dtype, ours.shape) == (type(theirs), theirs.dtype, theirs.shape)
    if isinstance(theirs, spaces.Box):
        assert isinstance(ours, spaces.Box)
        assert ours.low.tobytes() == theirs.low.tobytes()
        assert ours.high.tobytes() == theirs.high.tobytes()
        assert ours.bounded_below.tolist() == theirs.bounded_below.tolist()
        assert ours.bounded_above.tolist() == theirs.bounded_above.tolist()
    if isinstance(theirs, spaces.Dict):
        assert isinstance(ours, spaces.Dict)
        for key in theirs.spaces:
            assert_same_space(ours.spaces[key], theirs.spaces[key])
    ours.seed(3)
    theirs.seed(3)
    assert str(ours.sample()) == str(theirs.sample())


@pytest.mark.parametrize("name", SPACES)
def test_spaces_round_trip(name: str) -> None:
    ours = there_and_back(SPACES[name])
    assert_same_space(ours, SPACES[name])
    if isinstance(ours, spaces.Box) and ours.low.size:
        assert ours.low.flags.writeable
        assert space_to_data(ours) == space_to_data(SPACES[name])


def test_constant_bounds_are_stored_as_one_element() -> None:
    assert len(json.dumps(space_to_data(spaces.Box(0, 255, (4, 210, 160), np.uint8)))) < 300


def test_dict_space_keeps_its_order() -> None:
    """The order of the parts of an observation need not be alphabetical."""
    space = spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Discrete(3)), ("c", spaces.Discrete(4))])
    ours = there_and_back(space)
    assert isinstance(ours, spaces.Dict)
    assert [*ours.spaces] == [*space.spaces] == ["b", "a", "c"]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Tuple([spaces.Discrete(2)]),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Dict({"good": spaces.Discrete(2), "bad": spaces.Text(5)}),
    ],
)
def test_unsupported_spaces_are_rejected(space: spaces.Space[Any]) -> None:
    with pytest.raises(StorageError, match="MultiBinary"):
        space_to_data(space)


# -- invalid data -------------------------------------------------------------------------------------


def array(shape: Any = None, dtype: Any = "|u1", content: Any = "AA==") -> dict[str, Any]:
    """Return valid data of an array of one element, with changes."""
    return {"shape": [1] if shape is None else shape, "dtype": dtype, "content": content}


def box(**changes: Any) -> dict[str, Any]:
    return {"space": "Box", "low": array(), "high": array(**changes)}


MALFORMED: dict[str, Any] = {
    "nothing": None,
    "a list": ["Box"],
    "an unknown space": {"space": "Sphere"},
    "a box with one bound": {"space": "Box", "low": array()},
    "bounds of two shapes": box(shape=[2]),
    "low above high": {"space": "Box", "low": array(content="/w=="), "high": array()},
    "bounds of objects": {"space": "Box", "low": array(dtype="O"), "high": array(dtype="O")},
    "a dtype of no bytes": box(dtype="V0", content=""),
    "no base64": box(content="A"),
    "content of too few bytes": box(shape=[4], content="AAA="),
    "a negative shape": box(shape=[-1]),
    "a shape larger than memory": {"space": "Box", "low": array(shape=[2**60]), "high": array(shape=[2**60])},
    "a discrete of nothing": {"space": "Discrete", "n": 0, "start": 0, "dtype": "<i8"},
    "a discrete larger than int64": {"space": "Discrete", "n": 2**70, "start": 0, "dtype": "<i8"},
    "a multi-discrete of zero": {"space": "MultiDiscrete", "nvec": array(), "start": array(), "dtype": "|u1"},
    "a multi-discrete of two shapes": {
        "space": "MultiDiscrete",
        "nvec": array([2], content="AgI="),
        "start": array([3], content="AAAA"),
        "dtype": "<i8",
    },
    "a multi-binary of nothing along an axis": {"space": "MultiBinary", "n": [3, 0]},
    "a dict of something else": {"space": "Dict", "spaces": [["key", 5]]},
    "a dict of a key twice": {
        "space": "Dict",
        "spaces": [["key", {"space": "Discrete", "n": 2, "start": 0, "dtype": "<i8"}]] * 2,
    },
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_invalid_space_data_is_rejected(kind: str) -> None:
    with pytest.raises(CorruptStorage, match="is not a valid space"):
        space_from_data(MALFORMED[kind])


# -- arguments -----------------------------------------------------------------------------------------------

ARGUMENTS: list[Any] = [
    None,
    True,
    False,
    0,
    -3,
    2**70,
    0.99,
    INF,
    "auto",
    "",
    "zstd/-5",
    np.dtype(np.float32),
    np.dtype(">i2"),
    np.dtype(np.bool_),
    {"screen": "zstd", "ram": None},
    {"a": {"b": get_codec("zstd", compresslevel=5), "c": np.dtype(np.uint8)}, "codec": "x", "dtype": 1},
    {},
]


@pytest.mark.parametrize("value", ARGUMENTS, ids=repr)
def test_stored_arguments_are_read_back_unchanged(value: Any) -> None:
    found = argument_from_data(json.loads(json.dumps(argument_to_data(value))))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("name", available_codecs())
def test_codecs_round_trip_as_arguments(name: str) -> None:
    assert argument_from_data(json.loads(json.dumps(argument_to_data(get_codec(name))))) == get_codec(name)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.uint8, np.dtype(np.uint8)),
        (bool, np.dtype(np.bool_)),
        (GoalSelectionStrategy.FUTURE, "future"),
        (np.int64(5), 5),  # such as a computed size
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        ({1: "x"}, {"1": "x"}),
    ],
)
def test_arguments_are_restored_in_their_canonical_form(value: Any, expected: Any) -> None:
    found = argument_from_data(json.loads(json.dumps(argument_to_data(value))))
    assert found == expected
    assert type(found) is type(expected)


class Own:
    """An argument of an unsupported type."""


@pytest.mark.parametrize(
    "value",
    [
        *(object(), Own(), Own, dict, lambda: None, (1, 2), [1, 2], [], {1, 2}, b"bytes", np.zeros(3), th.zeros(3), 1j),
        *({"key": Own()}, {"key": {"key": Own}}),
    ],
    ids=lambda value: str(value)[:20],
)
def test_unsupported_arguments_are_rejected(value: Any) -> None:
    with pytest.raises(StorageError, match="cannot store the argument"):
        argument_to_data(value)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"unknown": 1},
        {"dtype": "<f4", "codec": "zstd"},
        {"dtype": "f3"},
        {"dtype": []},
        {"dtype": "u1,("},
        {"dtype": {"names": 1}},
        {"codec": "zstd"},
        {"codec": {"name": "unknown", "fields": {}}},
        {"codec": {"name": "zstd", "fields": {"compresslevel": 99}}},
        {"mapping": [1]},
        {"mapping": {"key": {"dtype": "f3"}}},
        {"mapping": {"key": INF}},
        {"float": "1"},
        {"float": INF},
        float("nan"),
        [1],
    ],
    ids=repr,
)
def test_invalid_argument_data_is_rejected(data: Any) -> None:
    with pytest.raises(CorruptStorage, match="is not a valid argument"):
        argument_from_data(data)
