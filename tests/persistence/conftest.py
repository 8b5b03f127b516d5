"""Fixtures of the tests of persistence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from storage.folders import folder_in_memory


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """Return a folder in memory, for tests that sync files hundreds of times."""
    with folder_in_memory(tmp_path) as folder:
        yield folder
