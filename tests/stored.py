"""Helpers for tests of buffers that are saved or stored: new ones for a stream, adding steps, and equality."""

from __future__ import annotations

from typing import Any

from support import Stream, assert_same_batch, compressed_class, new_buffer, same_draws
from support import add_all as add

__all__ = ["ROWS", "add", "hold_equal", "new"]

ROWS = 90


def new(stream: Stream, rows: int = ROWS, buffer_class: Any = None, **options: Any) -> Any:
    """Return an empty buffer for the environment of a stream."""
    return new_buffer(buffer_class or compressed_class(stream[0]), stream, rows, **options)


def hold_equal(ours: Any, theirs: Any) -> None:
    """Assert that two buffers have the same position and draw the same batch."""
    assert (type(ours), ours.pos, ours.full) == (type(theirs), theirs.pos, theirs.full)
    if ours.size():
        assert_same_batch(*same_draws(lambda: ours.sample(200), lambda: theirs.sample(200), seed=3))
