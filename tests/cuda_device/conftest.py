"""Tests that need a CUDA device, which ``make cuda`` runs. Elsewhere each of them is skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch as th

#: Before CUDA is used: without it, products of matrices need not be the same twice.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and skip them where there is no device."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.cuda)
            item.add_marker(pytest.mark.skipif(not th.cuda.is_available(), reason="there is no CUDA device"))


@pytest.fixture
def is_deterministic() -> Iterator[None]:
    """Let all operations on the device have the same result each time; those that cannot are no test's business."""
    th.use_deterministic_algorithms(True, warn_only=True)
    yield
    th.use_deterministic_algorithms(False)
