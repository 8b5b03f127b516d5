"""Fixtures of the tests of storage."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TMPFS = Path("/dev/shm")


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """Return a folder in memory where the system has tmpfs, for tests that sync files hundreds of times."""
    if not os.access(TMPFS, os.W_OK) or shutil.disk_usage(TMPFS).free < 1 << 30:
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="sb3-compressed-", dir=TMPFS))
    yield folder
    shutil.rmtree(folder)
