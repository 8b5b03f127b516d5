"""The schema of metadata: what is written fits it, and what does not is refused with the name of the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import crafted
import numpy as np
import pytest

from sb3_compressed.errors import CorruptStorage
from sb3_compressed.persistence import buffer_state
from sb3_compressed.storage.json_schema import check, load_json
from sb3_compressed.storage.metadata_schema import (
    COMMIT,
    MANIFEST,
    MAX_ARRAYS_NBYTES,
    MAX_SPACE_NBYTES,
    METADATA,
    check_arrays_nbytes,
    check_space_nbytes,
    check_values,
    space_nbytes,
)
from sb3_compressed.storage.spaces import space_from_data, space_to_data

NUMBERS: list[Any] = [None, True, "5", -1, 0.5, 2**63, 10**400, [], {}, [5]]


@pytest.mark.parametrize("kind", crafted.KINDS)
def test_what_buffers_say_of_themselves_fits(kind: str) -> None:
    buffer = crafted.new_buffer(kind)
    check(METADATA, json.loads(json.dumps(buffer_state.about(buffer))), "about")
    check_values(json.loads(json.dumps(buffer_state.values(buffer))), buffer.buffer_size, "values")


def test_keys_of_later_versions_are_ignored() -> None:
    check(MANIFEST, {"about": {}, "arrays": {"a": [[5], "<f4", False]}, "later": [1]}, "it")
    check(COMMIT, {"later": {}}, "it")
    check_values({"pos": 0, "full": False, "streams": {"": {"later": 1}}, "later": 5}, 10, "it")


# -- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("NaN", "NaN is no number"),
        ('{"a": [Infinity]}', "Infinity is no number"),
        ("-Infinity", "-Infinity is no number"),
        ('{"a": 1, "a": 2}', "a key is there twice"),
        ('[{"b": {"c": 1, "d": 2, "c": 3}}]', "a key is there twice"),
        ("[" * 65 + "]" * 65, "inside each other"),
        ("[" * 100_000, "inside each other|Expecting value"),
        ("[" * 100_000 + "]" * 100_000, "inside each other"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "inside each other"),
        ('["\\ud800"]', "surrogates not allowed"),
        ("9" * 5000, "digits"),
        ("", "Expecting value"),
        ("{'a': 1}", "Expecting property name"),
    ],
)
def test_json_that_nobody_writes_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        load_json(text.encode())


def test_json_of_other_encodings_is_refused() -> None:
    for data in (b"\xff", '{"a": 1}'.encode("utf-16"), b'"\xed\xa0\x80"'):
        with pytest.raises(ValueError, match="utf-8"):
            load_json(data)


def test_json_that_is_written_is_read() -> None:
    values: list[Any] = [{"ä\n\0": [1, -0.5, None, True, "\U0001f600"]}, [[]] * 100, json.loads("[" * 60 + "]" * 60)]
    for value in values:
        for is_ascii in (True, False):
            assert load_json(json.dumps(value, ensure_ascii=is_ascii).encode()) == value


# -- fields ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pos", [*NUMBERS, 10, float("inf"), float("nan")], ids=str)
def test_the_next_row_is_one_of_the_ring(pos: Any) -> None:
    with pytest.raises(CorruptStorage, match=r"^folder: pos must be an integer from 0 to 9, got "):
        check_values({"pos": pos, "full": False, "streams": {}}, 10, "folder")


@pytest.mark.parametrize("full", [0, 1, None, "true", [], 0.0])
def test_full_is_a_boolean(full: Any) -> None:
    with pytest.raises(CorruptStorage, match="full must be true or false"):
        check_values({"pos": 0, "full": full, "streams": {}}, 10, "folder")


@pytest.mark.parametrize("values", [None, [], 5, "x", {}, {"pos": 0}, {"full": True}])
def test_values_have_a_row_and_whether_all_are_written(values: Any) -> None:
    with pytest.raises(CorruptStorage, match=r"^folder: (all of it must be an object|all of it lacks)"):
        check_values(values, 10, "folder")


@pytest.mark.parametrize(
    ("stream", "field"),
    [
        ([], "streams.screen must be an object"),
        ({"layout": 4}, "streams.screen.layout must be a list of 2 items"),
        ({"layout": [0]}, "streams.screen.layout must be a list of 2 items"),
        ({"layout": [1, 4]}, r"streams.screen.layout\[0\] must be one of 0, -1"),
        ({"layout": [False, 4]}, r"streams.screen.layout\[0\] must be one of 0, -1"),
        ({"layout": [0, 1]}, r"streams.screen.layout\[1\] must be an integer from 2"),
        ({"layout": [0, 4.0]}, r"streams.screen.layout\[1\] must be an integer"),
        ({"layout": [0, 2**62]}, r"streams.screen.layout\[1\] must be an integer"),
        ({"searches": 1}, "streams.screen.searches must be true or false"),
        ({"lessons": {}}, "streams.screen.lessons lacks 'interval'"),
        ({"lessons": {"interval": -1, "learned_nbytes": 0}}, "streams.screen.lessons.interval must be an integer"),
        (
            {"lessons": {"interval": 64, "learned_nbytes": "0"}},
            "streams.screen.lessons.learned_nbytes must be",
        ),
        (
            {"lessons": {"interval": 64, "learned_nbytes": 10**310}},
            "streams.screen.lessons.learned_nbytes must be",
        ),
        (
            {"lessons": {"interval": 64, "learned_nbytes": True}},
            "streams.screen.lessons.learned_nbytes must be",
        ),
    ],
    ids=str,
)
def test_streams_are_checked_field_by_field(stream: Any, field: str) -> None:
    with pytest.raises(CorruptStorage, match=f"^folder: {field}"):
        check_values({"pos": 0, "full": False, "streams": {"screen": stream}}, 10, "folder")


@pytest.mark.parametrize("address", [*NUMBERS, 0, -(2**63), 10**8 << 32])
def test_addresses_of_codecs_are_those_of_a_log(address: Any) -> None:
    with pytest.raises(CorruptStorage, match=r"^it: codecs.screen must be an integer from 1 to "):
        check(COMMIT, {"codecs": {"screen": address}}, "it")
    check(COMMIT, {"codecs": {"screen": 5 << 32 | 40}}, "it")


DTYPES_OF_NOBODY: list[Any] = [
    "(,)i4",
    "i4,(",
    "O",
    "V8",
    "f4",
    "=f4",
    ">u1",
    "",
    " <f4",
    "<f4\n",
    None,
    5,
    ["<f4"],
    {},
]


@pytest.mark.parametrize(
    ("arrays", "field"),
    [
        ([], "arrays must be an object"),
        ({"a": {}}, "arrays.a must be a list of 3 items"),
        ({"a": [[5], "<f4"]}, "arrays.a must be a list of 3 items"),
        ({"a": [[], "<f4", False]}, r"arrays.a\[0\] must be a list of 1 to 32 items"),
        ({"a": [[1] * 33, "<f4", False]}, r"arrays.a\[0\] must be a list of 1 to 32 items"),
        ({"a": [[True], "<f4", False]}, r"arrays.a\[0\]\[0\] must be an integer from 0"),
        ({"a": [[5, -1], "<f4", False]}, r"arrays.a\[0\]\[1\] must be an integer from 0"),
        ({"a": [[5], "<f4", 0]}, r"arrays.a\[2\] must be true or false"),
        *(({"a": [[5], dtype, False]}, r"arrays.a\[1\] must be a dtype of numbers") for dtype in DTYPES_OF_NOBODY),
    ],
    ids=str,
)
def test_arrays_are_checked_field_by_field(arrays: Any, field: str) -> None:
    with pytest.raises(CorruptStorage, match=f"^it: {field}"):
        check(MANIFEST, {"about": {}, "arrays": arrays}, "it")


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(CorruptStorage) as caught:
        check_values({"pos": "x" * 1_000_000, "full": False}, 10, "folder")
    assert len(str(caught.value)) < 300


# -- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", crafted.KINDS)
def test_the_size_of_a_space_is_known_before_it_is_made(kind: str) -> None:
    space = crafted.KINDS[kind][1]["observation_space"]
    told = space_to_data(space)
    parts = space.spaces.values() if hasattr(space, "spaces") else [space]
    assert space_nbytes(told) == sum(np.asarray(part.sample()).nbytes for part in parts)
    assert space_from_data(told) == space


def test_arrays_are_limited_by_what_is_on_the_disk(tmp_path: Path) -> None:
    file = tmp_path / "00000000.log"
    file.write_bytes(b"x" * 100_000)
    with open(file, "r+b") as opened:
        opened.truncate(1 << 40)  # a hole is no proof of anything
    check_arrays_nbytes([(10, MAX_ARRAYS_NBYTES // 10)], file)
    for arrays in ([(2, MAX_ARRAYS_NBYTES)], [(MAX_ARRAYS_NBYTES, 2)], [(MAX_ARRAYS_NBYTES, 1)] * 2, [(1, 10**30)]):
        with pytest.raises(
            CorruptStorage, match=r"00000000.log declares arrays of \d+ bytes, and its folder takes \d+"
        ):
            check_arrays_nbytes(arrays, file)
    check_arrays_nbytes([(MAX_ARRAYS_NBYTES, 2)], file, rows=MAX_ARRAYS_NBYTES)
    with pytest.raises(CorruptStorage, match="declares"):
        check_arrays_nbytes([(5, 10**30)], file, rows=10)
    file.write_bytes(b"x" * 20_000_000)
    check_arrays_nbytes([(MAX_ARRAYS_NBYTES, 2)], file)


def test_spaces_are_limited_by_what_is_on_the_disk(tmp_path: Path) -> None:
    told: dict[str, Any] = {"space": "MultiBinary", "n": MAX_SPACE_NBYTES}
    check_space_nbytes(told, tmp_path, "action_space")
    told["n"] += 1
    with pytest.raises(CorruptStorage, match=r"action_space has items of .* pass action_space"):
        check_space_nbytes(told, tmp_path, "action_space")
    (tmp_path / "00000000.log").write_bytes(b"x" * 100_000)
    check_space_nbytes(told, tmp_path, "action_space")
