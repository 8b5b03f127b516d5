"""Schemas of metadata: written metadata is valid, and errors name the invalid field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import crafted
import numpy as np
import pytest

from sb3_compressed.errors import CorruptStorage
from sb3_compressed.persistence import buffer_state
from sb3_compressed.storage.json_schema import check
from sb3_compressed.storage.metadata_schema import (
    COMMIT_SCHEMA,
    MANIFEST_SCHEMA,
    MAX_ARRAYS_NBYTES,
    MAX_SPACE_NBYTES,
    METADATA,
    check_arrays_nbytes,
    check_space_nbytes,
    check_values,
)
from sb3_compressed.storage.spaces import space_from_data, space_nbytes, space_to_data

NUMBERS: list[Any] = [None, True, "5", -1, 0.5, 2**63, 10**400, [], {}, [5]]


@pytest.mark.parametrize("kind", crafted.KINDS)
def test_metadata_of_all_buffers_matches_the_schema(kind: str) -> None:
    buffer = crafted.new_buffer(kind)
    check(METADATA, json.loads(json.dumps(buffer_state.metadata(buffer))), "about")
    check_values(json.loads(json.dumps(buffer_state.values_and_codecs(buffer)[0])), buffer.buffer_size, "values")


def test_unknown_keys_are_ignored() -> None:
    check(MANIFEST_SCHEMA, {"about": {}, "arrays": {"a": [[5], "<f4", False, True]}, "later": [1]}, "it")
    check(COMMIT_SCHEMA, {"later": {}}, "it")
    check_values({"pos": 0, "full": False, "streams": {"": {"later": 1}}, "later": 5}, 10, "it")


# -- fields ----------------------------------------------------------------------------------------------------------


INVALID_FLAGS: list[Any] = [0, 1, None, "true", [], 0.0]
NUMBER, TRAINING = "must be an integer", "streams.screen.lessons"
INVALID_VALUES: list[tuple[dict[str, Any], str]] = [
    *(({"pos": pos}, "pos must be an integer from 0 to 9, got ") for pos in (*NUMBERS, 10, float("inf"), float("nan"))),
    *(({"full": full}, "full") for full in INVALID_FLAGS),
    *(
        ({"streams": {"screen": stream}}, message)
        for stream, message in (
            ([], "streams.screen must be an object"),
            ({"layout": 4}, "streams.screen.layout: it must be a list of 2 items"),
            ({"layout": [40, 4]}, r"streams.screen.layout: \[0\] must be an integer from -1 to 31"),
            ({"layout": [0, 4, 2]}, r"streams.screen.layout: \[2\] must be an integer from 1 to 1"),
            ({"layout": [0, 4, 1, 1]}, "streams.screen.layout: it must be a list of 2 items"),
            ({"layout": [0, 1]}, r"streams.screen.layout: \[1\] must be an integer from 2"),
            ({"layout": [0, 2**62]}, r"streams.screen.layout: \[1\] must be an integer"),
            ({"searches": 1}, "streams.screen.searches must be true or false"),
            ({"lessons": {}}, f"{TRAINING} has no 'interval'"),
            ({"lessons": {"interval": -1, "learned_nbytes": 0}}, f"{TRAINING}.interval {NUMBER}"),
            ({"lessons": {"interval": 64, "learned_nbytes": "0"}}, f"{TRAINING}.learned_nbytes must be"),
        )
    ),
]


@pytest.mark.parametrize(("values", "message"), INVALID_VALUES, ids=str)
def test_invalid_values_are_reported_by_field(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CorruptStorage, match=f"^folder: {message}"):
        check_values({"pos": 0, "full": False, "streams": {}, **values}, 10, "folder")


@pytest.mark.parametrize("values", [None, [], 5, "x", {}, {"pos": 0}, {"full": True}])
def test_values_must_contain_pos_and_full(values: Any) -> None:
    with pytest.raises(CorruptStorage, match=r"^folder: it (must be an object|has no)"):
        check_values(values, 10, "folder")


@pytest.mark.parametrize("address", [*NUMBERS, 0, -(2**63), 10**8 << 32])
def test_addresses_of_codecs_must_be_valid(address: Any) -> None:
    with pytest.raises(CorruptStorage, match=r"^it: codecs.screen must be an integer from 1 to "):
        check(COMMIT_SCHEMA, {"codecs": {"screen": address}}, "it")
    check(COMMIT_SCHEMA, {"codecs": {"screen": 5 << 32 | 40}}, "it")


INVALID_DTYPES: list[Any] = ["(,)i4", "O", "f4", ">u1", None, {}]


@pytest.mark.parametrize(
    ("arrays", "field"),
    [
        ([], "arrays must be an object"),
        ({"a": {}}, "arrays.a: it must be a list of 4 items"),
        ({"a": [[5], "<f4"]}, "arrays.a: it must be a list of 4 items"),
        ({"a": [[], "<f4", False, True]}, r"arrays.a: \[0\] must be a list of 1 to 32 items"),
        ({"a": [[1] * 33, "<f4", False, True]}, r"arrays.a: \[0\] must be a list of 1 to 32 items"),
        ({"a": [[True], "<f4", False, True]}, r"arrays.a: \[0\]\[0\] must be an integer from 0"),
        ({"a": [[5, -1], "<f4", False, True]}, r"arrays.a: \[0\]\[1\] must be an integer from 0"),
        ({"a": [[5], "<f4", 0, True]}, r"arrays.a: \[2\] must be true or false"),
        *(
            ({"a": [[5], dtype, False, True]}, r"arrays.a: \[1\]: .* is not a numeric dtype")
            for dtype in INVALID_DTYPES
        ),
    ],
    ids=str,
)
def test_invalid_arrays_are_reported_by_field(arrays: Any, field: str) -> None:
    with pytest.raises(CorruptStorage, match=f"^it: {field}"):
        check(MANIFEST_SCHEMA, {"about": {}, "arrays": arrays}, "it")


def test_long_values_are_truncated_in_messages() -> None:
    with pytest.raises(CorruptStorage) as caught:
        check_values({"pos": "x" * 1_000_000, "full": False}, 10, "folder")
    assert len(str(caught.value)) < 300


# -- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", crafted.KINDS)
def test_space_nbytes_matches_the_created_space(kind: str) -> None:
    space = crafted.KINDS[kind][1]["observation_space"]
    data = space_to_data(space)
    parts = space.spaces.values() if hasattr(space, "spaces") else [space]
    assert space_nbytes(data) == sum(np.asarray(part.sample()).nbytes for part in parts)
    assert space_from_data(data) == space


def test_declared_arrays_are_limited_by_the_size_on_disk(tmp_path: Path) -> None:
    file = tmp_path / "00000000.log"
    file.write_bytes(b"x" * 100_000)
    with open(file, "r+b") as opened:
        opened.truncate(1 << 40)  # holes do not count
    check_arrays_nbytes([(10, MAX_ARRAYS_NBYTES // 10)], file)
    for arrays in ([(2, MAX_ARRAYS_NBYTES)], [(MAX_ARRAYS_NBYTES, 2)], [(MAX_ARRAYS_NBYTES, 1)] * 2, [(1, 10**30)]):
        with pytest.raises(
            CorruptStorage, match=r"00000000.log declares arrays of \d+ bytes, but its folder takes \d+"
        ):
            check_arrays_nbytes(arrays, file)
    check_arrays_nbytes([(MAX_ARRAYS_NBYTES, 2)], file, rows=MAX_ARRAYS_NBYTES)
    with pytest.raises(CorruptStorage, match="declares"):
        check_arrays_nbytes([(5, 10**30)], file, rows=10)
    file.write_bytes(b"x" * 20_000_000)
    check_arrays_nbytes([(MAX_ARRAYS_NBYTES, 2)], file)


def test_declared_spaces_are_limited_by_the_size_on_disk(tmp_path: Path) -> None:
    data: dict[str, Any] = {"space": "MultiBinary", "n": MAX_SPACE_NBYTES}
    check_space_nbytes(data, tmp_path, "action_space")
    data["n"] += 1
    with pytest.raises(CorruptStorage, match=r"action_space has items of .* pass action_space"):
        check_space_nbytes(data, tmp_path, "action_space")
    (tmp_path / "00000000.log").write_bytes(b"x" * 100_000)
    check_space_nbytes(data, tmp_path, "action_space")
