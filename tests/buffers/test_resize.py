"""A resized buffer equals one that was created with its new size."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import Stream
from stored import add, hold_equal
from stored import new as new_buffer

from sb3_compressed import (
    CompressedArray,
    StorageError,
    get_codec,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.buffers.resize import resize

# With one thread, codecs of different buffers are trained on the same frames.
new = partial(new_buffer, num_threads=1)
KINDS = ["atari", "atari-channel-last", "console", "pendulum", "discrete"]
ROWS = 120


@pytest.mark.parametrize("stream", KINDS, indirect=True)
@pytest.mark.parametrize("sizes", [[10, 20, 60], [50], [1, 2, 3]])
def test_resized_buffer_equals_one_created_with_that_size(stream: Stream, sizes: list[int]) -> None:
    grown, roomy = new(stream, sizes[0]), new(stream, ROWS)
    before = 0
    for rows, more in zip(sizes, [*sizes[1:], ROWS]):
        add(stream[-1][before:rows], grown)
        assert grown.full
        resize(grown, more * stream[2])
        before = rows
    assert (grown.pos, grown.full) == (before, False)
    add(stream[-1][before:ROWS], grown)
    add(stream[-1][:ROWS], roomy)
    hold_equal(grown, roomy)
    if isinstance(grown.observations, CompressedArray):  # sharing continues, codecs train on the same frames
        assert grown.observations_nbytes == roomy.observations_nbytes
    for buffer in (grown, roomy):  # and after the ring wraps around
        add(stream[-1][ROWS : ROWS + 50], buffer)
    hold_equal(grown, roomy)


@pytest.mark.parametrize("stream", KINDS, indirect=True)
def test_resized_full_ring_begins_with_its_oldest_row(stream: Stream) -> None:
    ring, roomy = new(stream, 40), new(stream, 80)
    add(stream[-1][:55], ring)
    resize(ring, 80 * stream[2])
    add(stream[-1][15:55], roomy)
    hold_equal(ring, roomy)


@pytest.mark.parametrize("stream", ["atari", "pendulum"], indirect=True)
def test_buffer_grown_in_a_folder_equals_one_of_that_size(stream: Stream, tmp_path: Path) -> None:
    grown, roomy = new(stream, 30, storage=tmp_path / "grown"), new(stream, ROWS)
    add(stream[-1][:30], grown)
    resize(grown, ROWS * stream[2])
    assert grown.folder == tmp_path / "grown"
    add(stream[-1][30:100], grown)
    add(stream[-1][:100], roomy)
    hold_equal(grown, roomy)
    grown.close()
    hold_equal(load_checkpoint(tmp_path / "grown", device="cpu"), roomy)


@pytest.mark.parametrize("stream", ["atari", "pendulum"], indirect=True)
def test_resized_buffer_is_saved_to_its_checkpoint(stream: Stream, tmp_path: Path) -> None:
    grown = new(stream, 30)
    add(stream[-1][:30], grown)
    save_checkpoint(grown, tmp_path / "checkpoint")
    resize(grown, 60 * stream[2])
    add(stream[-1][30:50], grown)
    save_checkpoint(grown, tmp_path / "checkpoint")
    hold_equal(load_checkpoint(tmp_path / "checkpoint", device="cpu"), grown)


def test_resized_buffer_does_not_overwrite_a_folder_of_another_buffer(stream: Stream, tmp_path: Path) -> None:
    grown, other = new(stream, 30), new(stream, 30)
    add(stream[-1][:30], grown)
    save_checkpoint(grown, tmp_path / "checkpoint")
    save_checkpoint(other, tmp_path / "checkpoint", overwrite=True)
    resize(grown, 60 * stream[2])
    with pytest.raises(StorageError):
        save_checkpoint(grown, tmp_path / "checkpoint")


def test_resize_keeps_options(stream: Stream) -> None:
    buffer = new(stream, 30, compression_method="zstd-5", frame_stack=None, num_threads=1, output_dtype="float")
    add(stream[-1][:30], buffer)
    resize(buffer, 60 * stream[2])
    add(stream[-1][30:40], buffer)
    assert buffer.observations.codec == get_codec("zstd-5")
    assert (buffer.observations.n_frames, buffer.num_threads) == (1, 1)
    assert buffer.sample(4).observations.numpy().dtype == np.float32
