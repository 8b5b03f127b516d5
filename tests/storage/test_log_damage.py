"""Logs with damaged, missing or foreign segments are rejected and left unchanged."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sb3_compressed.errors import CorruptStorage
from sb3_compressed.storage import segment as segment_module
from storage.logs import (
    APPENDED,
    append,
    expected_records,
    new_log,
    opened,
    read_state,
    records_of,
    state_of,
    write_snapshot,
)


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep files short, so that tests read them quickly."""
    monkeypatch.setattr(segment_module, "MIN_GROWTH", 10_000)


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("writable", [False, True])
def test_damaged_header_is_rejected_and_the_folder_released(writable: bool, number: int, tmp_path: Path) -> None:
    new_log(tmp_path, 2).close()
    path = tmp_path / f"{number:08}.log"
    original = path.read_bytes()
    for position in range(0, 56, 3):
        damaged = bytearray(original)
        damaged[position] ^= 4
        damaged[56 + position] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(CorruptStorage, match=path.name):
            opened(tmp_path, writable=writable)
        assert path.read_bytes() == damaged
    path.write_bytes(original)
    opened(tmp_path, writable=True).close()


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("copy", [0, 1])
def test_one_damaged_copy_of_a_header_is_harmless(copy: int, number: int, tmp_path: Path) -> None:
    new_log(tmp_path, 2).close()
    path = tmp_path / f"{number:08}.log"
    original = bytearray(path.read_bytes())
    original[56 * copy : 56 * copy + 56] = os.urandom(56)
    path.write_bytes(original)
    assert read_state(tmp_path) == state_of(1)
    append(tmp_path)
    assert read_state(tmp_path) == [*state_of(1), *APPENDED]


def test_misplaced_segments_are_rejected(tmp_path: Path) -> None:
    for name in "abc":
        new_log(tmp_path / name, 2).close()
    (tmp_path / "a" / "00000003.log").rename(tmp_path / "a" / "00000004.log")
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=r"00000004\.log has the wrong name: it is segment 3 of its buffer"):
            opened(tmp_path / "a", writable=writable)
    (tmp_path / "a" / "00000001.log").rename(tmp_path / "b" / "00000001.log")
    log = opened(tmp_path / "b")
    log.ids[0] = log.open_segment(0).id
    with pytest.raises(CorruptStorage, match=r"00000001\.log belongs to another buffer"):
        log.segment(1)
    assert records_of(log.segment(0)) == expected_records(0)
    log.close()
    (tmp_path / "c" / "00000003.log").rename(tmp_path / "b" / "00000003.log")
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=r"00000003\.log belongs to another buffer"):
            opened(tmp_path / "b", writable=writable)


def test_segments_of_a_diverged_copy_are_rejected(tmp_path: Path) -> None:
    new_log(tmp_path / "a", 2).close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name in "ab":
        for _ in range(2):
            append(tmp_path / name)
    (tmp_path / "a" / "00000005.log").rename(tmp_path / "b" / "00000005.log")
    for writable in (False, True):
        expected = r"00000005\.log does not follow .*00000004\.log: they belong to two copies of a buffer"
        with pytest.raises(CorruptStorage, match=expected):
            opened(tmp_path / "b", writable=writable)
    (tmp_path / "a" / "00000004.log").rename(tmp_path / "b" / "00000004.log")
    assert read_state(tmp_path / "b") == [*state_of(1), *APPENDED, *APPENDED], "now all files are of the other copy"


def test_referenced_segment_of_another_copy_is_rejected(tmp_path: Path) -> None:
    new_log(tmp_path / "a").close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name in "ab":
        append(tmp_path / name)
        write_snapshot(tmp_path / name)
    log = opened(tmp_path / "a")
    log.ids[2] = log.open_segment(2).id  # as a snapshot lists it
    (tmp_path / "b" / "00000002.log").rename(tmp_path / "a" / "00000002.log")
    with pytest.raises(CorruptStorage, match=r"00000002\.log belongs to a copy of this buffer"):
        log.segment(2)
    log.close()


@pytest.mark.parametrize("number", [4, 3, 2**31, -1])
def test_missing_segment_is_reported(number: int, tmp_path: Path) -> None:
    new_log(tmp_path, 3).close()
    (tmp_path / "00000003.log").unlink()
    log = opened(tmp_path)
    if number == 4:
        assert records_of(log.segment(4))[:1] == [(1, b"snapshot 2")]
    else:
        with pytest.raises(CorruptStorage, match=r"\.log is missing"):
            log.segment(number)
    assert log.last.number == 5
    log.close()


@pytest.mark.parametrize("writable", [False, True])
def test_chain_with_a_missing_segment_is_rejected(writable: bool, tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for _ in range(3):
        log.begin_segment()
    log.close()
    for number in (3, 2, 1):
        (tmp_path / f"{number:08}.log").unlink()
        with pytest.raises(CorruptStorage, match=rf"{3:08}\.log is missing"):
            opened(tmp_path, writable=writable)
    (tmp_path / "00000000.log").unlink()
    with pytest.raises(CorruptStorage, match=f"{tmp_path} has no snapshot"):
        opened(tmp_path, writable=writable)
