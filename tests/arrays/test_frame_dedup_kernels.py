"""The kernels that compare and extract frames equal NumPy for every layout and unaligned memory."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from numba import types
from numpy.typing import NDArray

from sb3_compressed.arrays.frame_dedup_kernels import masks_of_older_frames, take_new_frames
from sb3_compressed.kernels.byte_kernels import INT, differ
from sb3_compressed.kernels.jit import kernel


@kernel(types.boolean, INT, INT, INT, types.Array(types.uint64, 1, "C", readonly=True))
def differ_in_kernel(first: int, second: int, length: int, mask: NDArray[np.uint64]) -> bool:
    """Call the helper, which only kernels can do."""
    return differ(first, second, length, mask)


def unaligned(content: NDArray[np.uint8], offset: int) -> NDArray[np.uint8]:
    """Return a copy that begins ``offset`` bytes after an aligned address."""
    copy = np.empty(content.size + offset, np.uint8)[offset:].reshape(content.shape)
    copy[...] = content
    return copy


@examples(100)
@given(
    length=st.integers(0, 100),
    offsets=st.tuples(st.integers(0, 8), st.integers(0, 8)),
    position=st.integers(0, 99),
    bit=st.integers(0, 7),
    mask=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=3),
)
def test_differ_compares_the_bits_of_a_repeated_mask(
    length: int, offsets: tuple[int, int], position: int, bit: int, mask: list[int]
) -> None:
    words = np.array(mask, np.uint64)
    first = unaligned(np.arange(length, dtype=np.uint8), offsets[0])
    second = unaligned(np.arange(length, dtype=np.uint8), offsets[1])
    if position < length:
        second[position] ^= 1 << bit
    expected = (first ^ second) & np.resize(words.view(np.uint8), length)
    assert differ_in_kernel(first.ctypes.data, second.ctypes.data, length, words) == expected.any()


@pytest.mark.parametrize("n_blocks", [1, 2, 50, 4096])
@pytest.mark.parametrize("n_frames", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("piece", [1, 2, 3, 4, 5, 7, 8, 12, 200])
def test_the_new_frames_of_any_layout_are_found(n_blocks: int, n_frames: int, piece: int) -> None:
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (2 * n_frames + 1, n_blocks, piece), np.uint8)
    masks, size = masks_of_older_frames(n_frames, piece), n_blocks * n_frames * piece
    n_new, taken = np.empty((2, 2), np.int64), np.empty((4 * n_frames, n_blocks * piece), np.uint8)

    def item(newest: int) -> NDArray[np.uint8]:
        stack = frames[newest - n_frames + 1 : newest + 1]
        return stack.transpose(1, 0, 2).reshape(1, size).copy()

    start = n_frames - 1
    for step in range(1, n_frames + 1):
        previous = np.concatenate([item(start)] * 2)
        changed = item(start + step)
        changed[0, -1] ^= 1  # the last byte of the newest frame
        first, second = np.concatenate([item(start)] * 2), np.concatenate([item(start + step), changed])
        first, second = unaligned(first, 3), unaligned(second, 5)
        rows = first.reshape(-1), second.reshape(-1)
        assert take_new_frames(2, *rows, previous, n_frames, piece, masks, True, n_new, taken) == 2 * step
        assert n_new.tolist() == [[0, 0], [step, step]]
        np.testing.assert_array_equal(previous, second)
        new = frames[start + 1 : start + step + 1].reshape(step, -1)
        np.testing.assert_array_equal(taken[:step], new)
        assert taken[2 * step - 1, -1] == new[-1, -1] ^ 1

        # A single bit of any older frame prevents sharing.
        for position in rng.integers(0, size, 4):
            differing = item(start + 1)
            differing[0, position] ^= 128
            is_new = position // piece % n_frames == n_frames - 1
            row = differing.reshape(-1)
            take_new_frames(1, row, row, item(start), n_frames, piece, masks, True, n_new, taken)
            assert (n_new[0, 0] == 1) == is_new
