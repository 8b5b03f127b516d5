"""Fixtures of the tests of storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sb3_compressed.storage.log import Log
from storage.slot_logs import new_log
from storage.stores import crash_after_five_commits, limit_file_sizes, set_segment_nbytes


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Return a log that slots can be written to."""
    made = new_log(tmp_path)
    yield made
    made.close()


@pytest.fixture
def five_commits(tmp_path: Path, small_files: None) -> tuple[Path, list[int]]:
    """Return a folder after a crash, and where the first commit begins and each commit ends in its last file."""
    return crash_after_five_commits(tmp_path / "store")


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the files of stores short, so that tests read them quickly."""
    limit_file_sizes(monkeypatch)


@pytest.fixture
def small_segments(small_files: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill segments after a few commits, which overrides the sizes of ``small_files``."""
    set_segment_nbytes(4096, monkeypatch)
