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


def test_misplaced_segments_are_rejected(tmp_path: Path) -> None:
    for name in "abc":
        new_log(tmp_path / name, 2).close()
    (tmp_path / "a" / "00000003.log").replace(tmp_path / "a" / "00000004.log")
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=r"00000004\.log has the wrong name: it is segment 3 of its buffer"):
            opened(tmp_path / "a", writable=writable)
    (tmp_path / "a" / "00000001.log").replace(tmp_path / "b" / "00000001.log")
    log = opened(tmp_path / "b")
    log.ids[0] = log.open_segment(0).id
    with pytest.raises(CorruptStorage, match=r"00000001\.log .* belongs to another buffer"):
        log.segment(1)
    assert records_of(log.segment(0)) == expected_records(0)
    log.close()
    (tmp_path / "c" / "00000003.log").replace(tmp_path / "b" / "00000003.log")
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=r"00000003\.log .* belongs to another buffer"):
            opened(tmp_path / "b", writable=writable)
