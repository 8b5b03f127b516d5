"""A resized buffer equals one that was created with its new size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Stream
from gymnasium import spaces
from support import assert_same_batch, same_draws

from sb3_compressed import (
    CompressedArray,
    CompressedDictReplayBuffer,
    CompressedReplayBuffer,
    StorageError,
    get_codec,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.persistence.ring_resize import resize

KINDS = ["atari", "atari-channel-last", "console", "pendulum", "discrete"]
ROWS = 120


def new_buffer(stream: Stream, rows: int, **options: Any) -> Any:
    space, action_space, n_envs, _ = stream
    cls = CompressedDictReplayBuffer if isinstance(space, spaces.Dict) else CompressedReplayBuffer
    # With one thread, codecs of different buffers are trained on the same frames.
    options = {"num_threads": 1, **options}
    return cls(rows * n_envs, space, action_space, device="cpu", n_envs=n_envs, **options)


def add(buffer: Any, stream: Stream, first: int, last: int) -> None:
    for transition in stream[-1][first:last]:
        transition.add_to(buffer)


def hold_same(ours: Any, theirs: Any) -> None:
    assert (ours.pos, ours.full, ours.buffer_size) == (theirs.pos, theirs.full, theirs.buffer_size)
    batches = same_draws(*(lambda buffer=buffer: buffer.sample(300) for buffer in (ours, theirs)), seed=1)
    assert_same_batch(*batches)


@pytest.mark.parametrize("stream", KINDS, indirect=True)
@pytest.mark.parametrize("sizes", [[10, 20, 60], [50], [1, 2, 3]])
def test_resized_buffer_equals_one_created_with_that_size(stream: Stream, sizes: list[int]) -> None:
    grown, roomy = new_buffer(stream, sizes[0]), new_buffer(stream, ROWS)
    before = 0
    for rows, more in zip(sizes, [*sizes[1:], ROWS]):
        add(grown, stream, before, rows)
        assert grown.full
        resize(grown, more * stream[2])
        before = rows
    assert (grown.pos, grown.full) == (before, False)
    add(grown, stream, before, ROWS)
    add(roomy, stream, 0, ROWS)
    hold_same(grown, roomy)
    if isinstance(grown.observations, CompressedArray):  # sharing continues, codecs train on the same frames
        assert grown.observations_nbytes == roomy.observations_nbytes
    for buffer in (grown, roomy):  # and after the ring wraps around
        add(buffer, stream, ROWS, ROWS + 50)
    hold_same(grown, roomy)


@pytest.mark.parametrize("stream", KINDS, indirect=True)
def test_resized_full_ring_begins_with_its_oldest_row(stream: Stream) -> None:
    ring, roomy = new_buffer(stream, 40), new_buffer(stream, 80)
    add(ring, stream, 0, 55)
    resize(ring, 80 * stream[2])
    add(roomy, stream, 15, 55)
    hold_same(ring, roomy)


@pytest.mark.parametrize("stream", KINDS, indirect=True)
def test_buffer_grown_in_a_folder_equals_one_of_that_size(stream: Stream, tmp_path: Path) -> None:
    grown, roomy = new_buffer(stream, 30, storage=tmp_path / "grown"), new_buffer(stream, ROWS)
    add(grown, stream, 0, 30)
    resize(grown, ROWS * stream[2])
    assert grown.folder == tmp_path / "grown"
    add(grown, stream, 30, 100)
    add(roomy, stream, 0, 100)
    hold_same(grown, roomy)
    grown.close()
    hold_same(load_checkpoint(tmp_path / "grown", device="cpu"), roomy)


@pytest.mark.parametrize("stream", KINDS, indirect=True)
def test_resized_buffer_is_saved_to_its_checkpoint(stream: Stream, tmp_path: Path) -> None:
    grown = new_buffer(stream, 30)
    add(grown, stream, 0, 30)
    save_checkpoint(grown, tmp_path / "checkpoint")
    resize(grown, 60 * stream[2])
    add(grown, stream, 30, 50)
    save_checkpoint(grown, tmp_path / "checkpoint")
    hold_same(load_checkpoint(tmp_path / "checkpoint", device="cpu"), grown)


def test_resized_buffer_does_not_overwrite_a_folder_of_another_buffer(stream: Stream, tmp_path: Path) -> None:
    grown, other = new_buffer(stream, 30), new_buffer(stream, 30)
    add(grown, stream, 0, 30)
    save_checkpoint(grown, tmp_path / "checkpoint")
    save_checkpoint(other, tmp_path / "checkpoint", overwrite=True)
    resize(grown, 60 * stream[2])
    with pytest.raises(StorageError):
        save_checkpoint(grown, tmp_path / "checkpoint")


def test_resize_keeps_options(stream: Stream) -> None:
    buffer = new_buffer(stream, 30, compression_method="zstd-5", frame_stack=None, num_threads=1, output_dtype="float")
    add(buffer, stream, 0, 30)
    resize(buffer, 60 * stream[2])
    add(buffer, stream, 30, 40)
    assert buffer.observations.codec == get_codec("zstd-5")
    assert (buffer.observations.n_frames, buffer.num_threads) == (1, 1)
    assert buffer.sample(4).observations.numpy().dtype == np.float32
