"""Logs with damaged, missing or foreign segments are rejected and left unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from sb3_compressed.errors import CorruptStorage
from storage.logs import (
    expected_records,
    new_log,
    opened,
)
from storage.segments import records_of

pytestmark = pytest.mark.usefixtures("small_files")


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
