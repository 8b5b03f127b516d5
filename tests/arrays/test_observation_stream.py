"""``nbytes`` is the memory that slots really take, as the operating system reports it."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from programs import run

from sb3_compressed import CompressedArray

FILL = """
import sys, numpy as np, psutil
from sb3_compressed import CompressedArray

item_nbytes, n_frames, n_rows = map(int, sys.argv[1:])
noise = np.random.default_rng(0)

def filled(rows):
    array = CompressedArray((rows, 2, n_frames, item_nbytes), codec="none", frame_stack=n_frames)
    for row in range(rows):
        array[row] = noise.integers(0, 256, (2, n_frames, item_nbytes), dtype=np.uint8)
    return array

warm_up = filled(1000)
before = psutil.Process().memory_info().rss
array = filled(n_rows)
grown = psutil.Process().memory_info().rss - before  # before nbytes, which itself takes memory
print(array.nbytes / grown)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what resident memory means depends on the allocator")
@pytest.mark.parametrize(("item_nbytes", "n_frames", "n_rows"), [(40, 4, 20_000), (3000, 1, 15_000)])
def test_nbytes_is_the_growth_of_the_process(item_nbytes: int, n_frames: int, n_rows: int) -> None:
    assert 0.8 < float(run(FILL, item_nbytes, n_frames, n_rows)) < 1.25


def test_shared_payloads_count_once() -> None:
    array = CompressedArray((100, 1, 4, 1000), codec="none", frame_stack=4)
    slots_nbytes = 100 * 8
    array[0] = np.arange(4)[:, np.newaxis]
    stack_nbytes = array.nbytes - slots_nbytes
    assert 4000 < stack_nbytes < 4000 + 5 * 80
    array[1] = np.arange(4)[:, np.newaxis]  # the very slot
    assert array.nbytes == slots_nbytes + stack_nbytes
    array[2] = np.arange(1, 5)[:, np.newaxis]  # one new frame, and a tuple
    assert 1000 < array.nbytes - slots_nbytes - stack_nbytes < 1000 + 2 * 80
    array[50:] = 7  # one slot for all of them
    assert array.nbytes < slots_nbytes + 2.5 * stack_nbytes


def test_arrays_that_share_are_counted_together() -> None:
    array = CompressedArray((10, 1, 3000), codec="none")
    other = array.new_sharing_frames()
    array[0] = other[0] = 1
    assert array.nbytes == other.nbytes > 3000
    assert array.stream.nbytes(array.references, other.references) == array.nbytes + other.references.nbytes


def test_codec_state_does_not_grow_with_the_number_of_slots() -> None:
    frames = np.random.default_rng(0).integers(0, 3, (400, 1, 1000), dtype=np.uint8)
    frames[:, :, 10:] = frames[0, :, 10:]
    sizes = []
    for codec in ("delta", "zstd3"):
        array = CompressedArray(frames.shape, np.uint8, codec=codec, num_threads=1)
        assert [*array.stream.log.trained_codecs()] == []
        for row, frame in enumerate(frames):
            array[row] = frame
        sizes.append(sum(codec.nbytes for codec in array.stream.log.trained_codecs()))
        assert sizes[-1] < array.nbytes
    trained, untrained = sizes
    assert untrained == 0
    assert trained > 1000, "a reference frame at least"
