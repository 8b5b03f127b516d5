"""Python's garbage collector does not track the transitions of a buffer, so that no training waits for it."""

from __future__ import annotations

import gc
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from support import add_all, new_buffer, recorded

from sb3_compressed import (
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.samplers import available_samplers

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
    if "storage" in options:
        buffer.close()
    return counts[1] - counts[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "name", "options"),
    [
        (CompressedReplayBuffer, "atari", {"compression_method": "zstd-dict"}),
        (CompressedReplayBuffer, "atari", {"compression_method": "none"}),
        (CompressedReplayBuffer, "atari", {"optimize_memory_usage": True, "handle_timeout_termination": False}),
        (CompressedReplayBuffer, "atari", {"frame_stack": None}),
        (CompressedNStepReplayBuffer, "atari", {"n_steps": 3}),
        (CompressedDictReplayBuffer, "console", {}),
        (CompressedHerReplayBuffer, "bits", {}),
    ],
)
def test_transitions_are_not_tracked(cls: Any, name: str, options: dict[str, Any]) -> None:
    assert growth(cls, name, **options) < MOST


@pytest.mark.slow
@pytest.mark.parametrize("sampler", available_samplers())
def test_samplers_are_not_tracked(sampler: str) -> None:
    assert growth(CompressedReplayBuffer, "atari", sampler=sampler) < MOST


def test_folders_are_not_tracked(tmp_path: Path) -> None:
    assert growth(CompressedReplayBuffer, "atari", storage=tmp_path) < MOST


def test_loaded_buffers_are_not_tracked(tmp_path: Path) -> None:
    counts = []
    for n_rows in (300, N_ROWS):
        saved = new_buffer(CompressedReplayBuffer, "atari", n_rows)
        add_all(islice(cycle(recorded("atari")[-1]), n_rows), saved)
        save_checkpoint(saved, tmp_path / str(n_rows))
        del saved
        before = n_tracked()
        buffer = load_checkpoint(tmp_path / str(n_rows), device="cpu")
        counts.append(n_tracked() - before)
        del buffer
    assert counts[1] - counts[0] < MOST
