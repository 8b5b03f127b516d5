"""Fixtures of the tests of storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sb3_compressed.storage import segment
from sb3_compressed.storage.log import Log
from storage.folders import newest_segment
from storage.slot_logs import new_log
from storage.stores import commit_number, crash, create, set_segment_nbytes


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Return a log that slots can be written to."""
    made = new_log(tmp_path)
    yield made
    made.close()


@pytest.fixture
def five_commits(tmp_path: Path, small_files: None) -> tuple[Path, list[int]]:
    """Return a folder after a crash, and where the first commit begins and each commit ends in its last file."""
    folder = tmp_path / "store"
    writer = create(folder)
    ends = [writer.store.log.segment_to_write().end]
    for number in range(1, 6):
        commit_number(writer, number)
        ends.append(writer.store.log.last.end)
    crash(writer)
    assert newest_segment(folder).stat().st_size == ends[-1]
    return folder, ends


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the files of stores short, so that tests read them quickly."""
    monkeypatch.setattr(segment, "MIN_GROWTH", 10_000)
    set_segment_nbytes(100_000, monkeypatch)


@pytest.fixture
def small_segments(small_files: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill segments after a few commits, which overrides the sizes of ``small_files``."""
    set_segment_nbytes(4096, monkeypatch)
