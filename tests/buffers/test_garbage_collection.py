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

ROWS = 300, 1_000
#: For codecs that were trained in between.
MOST = 300


def sampled(cls: Any, name: str, n_rows: int, **options: Any) -> Any:
    """Return a full buffer, of which some rows were overwritten and some were drawn."""
    buffer = new_buffer(cls, name, n_rows, **options)
    add_all(islice(cycle(recorded(name)[-1]), n_rows + n_rows // 10), buffer)
    for _ in range(4):
        buffer.sample(32)
    return buffer


def n_tracked() -> int:
    gc.collect()
    return len(gc.get_objects())


def growth(cls: Any, name: str, **options: Any) -> int:
    """Return how many more objects are tracked with a large buffer than with a small one."""
    counts = []
    for number, n_rows in enumerate((ROWS[0], *ROWS)):  # the first buffer imports and compiles what it needs
        places = {key: value / str(number) for key, value in options.items() if key == "storage"}
        before = n_tracked()
        buffer = sampled(cls, name, n_rows, **{**options, **places})
        counts.append(n_tracked() - before)
        if "storage" in places:
            buffer.close()
        del buffer
    return counts[-1] - counts[-2]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "delta", "zstd-dict", "zstd-3", "lz4-block/0", "none"])
@pytest.mark.parametrize("name", ["atari", "console"])
def test_slots_are_not_tracked(name: str, method: str) -> None:
    cls = CompressedDictReplayBuffer if name == "console" else CompressedReplayBuffer
    assert growth(cls, name, compression_method=method, num_threads=1) < MOST


@pytest.mark.slow
@pytest.mark.parametrize("sampler", available_samplers())
@pytest.mark.parametrize("stored", [False, True])
def test_samplers_and_folders_are_not_tracked(stored: bool, sampler: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"storage": tmp_path} if stored else {}
    assert growth(CompressedReplayBuffer, "atari", sampler=sampler, **options) < MOST


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "name", "options"),
    [
        (CompressedNStepReplayBuffer, "atari", {"n_steps": 3}),
        (CompressedReplayBuffer, "atari", {"optimize_memory_usage": True, "handle_timeout_termination": False}),
        (CompressedReplayBuffer, "atari", {"prefetch": 2, "sampler": "recent"}),
        (CompressedReplayBuffer, "atari", {"frame_stack": None}),
        (CompressedReplayBuffer, "atari-channel-last", {}),
        (CompressedHerReplayBuffer, "bits", {}),
    ],
)
def test_all_kinds_of_buffers_are_not_tracked(cls: Any, name: str, options: dict[str, Any]) -> None:
    assert growth(cls, name, **options) < MOST


def test_loaded_buffers_are_not_tracked(tmp_path: Path) -> None:
    counts = []
    for n_rows in ROWS:
        save_checkpoint(sampled(CompressedReplayBuffer, "atari", n_rows), tmp_path / str(n_rows))
        before = n_tracked()
        buffer = load_checkpoint(tmp_path / str(n_rows), device="cpu")
        counts.append(n_tracked() - before)
        del buffer
    assert counts[1] - counts[0] < MOST
