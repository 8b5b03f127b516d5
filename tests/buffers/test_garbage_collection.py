"""Python's garbage collector does not track the transitions of a buffer, so that no training waits for it."""

from __future__ import annotations

import gc
from itertools import cycle, islice
from typing import Any

import pytest
from support import add_all, new_buffer, recorded

from sb3_compressed import (
    CompressedHerReplayBuffer,
    CompressedReplayBuffer,
)

N_ROWS = 1_000
#: For codecs that were trained in between; if transitions were tracked, it would be at least one object for each row.
MOST = 500


def n_tracked() -> int:
    gc.collect()
    return len(gc.get_objects())


def growth(cls: Any, name: str, **options: Any) -> int:
    """Return by how many tracked objects a buffer grows with 700 rows, some of which replace others."""
    buffer = new_buffer(cls, name, N_ROWS, **options)
    rows = cycle(recorded(name)[-1])
    counts = []
    for n_rows in (N_ROWS - 600, 700):
        add_all(islice(rows, n_rows), buffer)
        for _ in range(4):
            buffer.sample(32)
        counts.append(n_tracked())
    return counts[1] - counts[0]


@pytest.mark.parametrize(
    ("cls", "name", "options"),
    [
        (CompressedReplayBuffer, "atari", {"sampler": "prioritized"}),
        (CompressedHerReplayBuffer, "bits", {}),
    ],
)
def test_transitions_are_not_tracked(cls: Any, name: str, options: dict[str, Any]) -> None:
    assert growth(cls, name, **options) < MOST
