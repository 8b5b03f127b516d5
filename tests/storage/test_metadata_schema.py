"""Schemas of metadata: written metadata is valid, and errors name the invalid field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import crafted
import numpy as np
import pytest

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.persistence import buffer_state
from sb3_compressed.storage.json_schema import check
from sb3_compressed.storage.manifest import MANIFEST_SCHEMA, ArraySpec
from sb3_compressed.storage.metadata_schema import (
    COMMIT_SCHEMA,
    MAX_ARRAYS_NBYTES,
    MAX_SPACE_NBYTES,
    METADATA,
    SAMPLER,
    check_arrays_nbytes,
    check_space_nbytes,
    check_values,
)
from sb3_compressed.storage.spaces import space_from_data, space_nbytes, space_to_data

MANIFEST: dict[str, Any] = {"about": {}, "arrays": {}, "segments": {}, "values": {}, "codecs": {}, "step": -1}
STREAM: dict[str, Any] = {"layout": [0, 4, 0], "detects": True, "training": {"interval": 64, "usual_nbytes": 0.5}}
NUMBERS: list[Any] = [None, True, "5", -1, 0.5, 2**63, 10**400, [], {}, [5]]


@pytest.mark.parametrize("kind", crafted.KINDS)
def test_metadata_of_all_buffers_matches_the_schema(kind: str) -> None:
    buffer = crafted.new_buffer(kind)
    check(METADATA, json.loads(json.dumps(buffer_state.metadata(buffer))), "about")
    values, _ = buffer_state.values_and_codecs(buffer, buffer_state.last_arrays(buffer))
    check_values(json.loads(json.dumps(values)), buffer.buffer_size, "values")


def test_unknown_keys_are_ignored() -> None:
    check(MANIFEST_SCHEMA, {**MANIFEST, "arrays": {"a": [[5], "<f4", False, True]}, "later": [1]}, "it")
    check(COMMIT_SCHEMA, {"later": {}}, "it")
    check_values({"pos": 0, "full": False, "streams": {"": {**STREAM, "later": 1}}, "later": 5}, 10, "it")


# -- fields ----------------------------------------------------------------------------------------------------------


INVALID_LAYOUTS: list[Any] = [4, [0, 4], [40, 4, 0], [0, 4, 2], [0, 4, 1, 1], [0, 1, 0], [0, 2**62, 0]]
INVALID_FLAGS: list[Any] = [0, 1, None, "true", [], 0.0]
INVALID_VALUES: list[tuple[dict[str, Any], str]] = [
    *(({"pos": pos}, "pos") for pos in (*NUMBERS, 10, float("inf"), float("nan"))),
    *(({"full": full}, "full") for full in INVALID_FLAGS),
    ({"streams": {"screen": []}}, "streams.screen"),
    *(
        ({"streams": {"screen": {**STREAM, **stream}}}, f"streams.screen{field}")
        for stream, field in (
            *(({"layout": layout}, ".layout") for layout in INVALID_LAYOUTS),
            ({"detects": 1}, ".detects"),
            ({"training": {}}, ".training"),
            ({"training": {"interval": -1, "usual_nbytes": 0}}, ".training.interval"),
            ({"training": {"interval": 64, "usual_nbytes": "0"}}, ".training.usual_nbytes"),
        )
    ),
]


def test_invalid_values_are_reported_by_field() -> None:
    for values, field in INVALID_VALUES:
        with pytest.raises(CorruptStorage, match=f"^folder: {field}"):
            check_values({"pos": 0, "full": False, "streams": {}, **values}, 10, "folder")


@pytest.mark.parametrize("values", [None, [], {"pos": 0, "streams": {}}, {"full": True}, {"pos": 0, "full": True}])
def test_values_must_contain_pos_full_and_streams(values: Any) -> None:
    with pytest.raises(CorruptStorage, match=r"^folder"):
        check_values(values, 10, "folder")


@pytest.mark.parametrize("name", STREAM)
def test_a_stream_must_have_all_its_fields(name: str) -> None:
    stream = {each: value for each, value in STREAM.items() if each != name}
    with pytest.raises(CorruptStorage, match=f"^folder: streams.screen.*{name}"):
        check_values({"pos": 0, "full": True, "streams": {"screen": stream}}, 10, "folder")


@pytest.mark.parametrize("name", MANIFEST)
def test_a_manifest_must_have_all_its_fields(name: str) -> None:
    with pytest.raises(CorruptStorage, match=f"^it.*{name}"):
        check(MANIFEST_SCHEMA, {each: value for each, value in MANIFEST.items() if each != name}, "it")


def test_addresses_of_codecs_must_be_valid() -> None:
    for address in (*NUMBERS, 0, -(2**63), 10**8 << 32):
        with pytest.raises(CorruptStorage, match=r"codecs\.screen"):
            check(COMMIT_SCHEMA, {"codecs": {"screen": address}}, "it")
    check(COMMIT_SCHEMA, {"codecs": {"screen": 5 << 32 | 40}}, "it")


INVALID_DTYPES: list[Any] = ["(,)i4", "O", "f4", ">u1", None, {}]


def test_invalid_arrays_are_reported_by_field() -> None:
    specs: list[Any] = [{}, [[5], "<f4"], *([shape, "<f4", False, True] for shape in ([], [1] * 33, [True], [5, -1]))]
    specs += [[[5], "<f4", 0, True], *([[5], dtype, False, True] for dtype in INVALID_DTYPES)]
    for arrays, field in (([], "arrays"), *(({"a": spec}, "arrays.a") for spec in specs)):
        with pytest.raises(CorruptStorage, match=f"^it: {field}"):
            check(MANIFEST_SCHEMA, {**MANIFEST, "arrays": arrays}, "it")


def test_tables_have_addresses_of_slots_of_rows_and_environments() -> None:
    for spec in ([[5], "<i8", True, True], [[5, 1], "<f8", True, True], [[5, 1, 2], "<i8", True, True]):
        with pytest.raises(CorruptStorage, match=r"^it: arrays\.a: .*addresses must be a matrix of 64-bit integers"):
            check(MANIFEST_SCHEMA, {**MANIFEST, "arrays": {"a": spec}}, "it")


def test_ids_of_segments_are_hexadecimal_digits() -> None:
    check(MANIFEST_SCHEMA, {**MANIFEST, "segments": {"7": "0123456789abcdef"}}, "it")
    for ids in ({"7": "0123"}, {"7": "0123456789ABCDEF"}, {"seven": "0123456789abcdef"}, {"-1": "0123456789abcdef"}):
        with pytest.raises(CorruptStorage, match=r"^it: segments: .*16 hexadecimal digits"):
            check(MANIFEST_SCHEMA, {**MANIFEST, "segments": ids}, "it")


def test_states_of_samplers_contain_numbers_text_or_null() -> None:
    check(SAMPLER, {"step": 3, "state": {"a": 5, "b": -0.5, "c": None, "d": "text", "e": True}}, "it")
    for value in (1 << 64, -(1 << 63) - 1, {"dtype": "<f4"}, [1]):
        with pytest.raises(CorruptStorage, match=r"^it: state\.a"):
            check(SAMPLER, {"step": 3, "state": {"a": value}}, "it")


def test_arrays_that_do_not_fit_into_memory_raise() -> None:
    with pytest.raises(StorageError, match="not enough memory"):
        ArraySpec((1 << 50,), "<f8").zeros()


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
