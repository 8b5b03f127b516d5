"""The kernel that compares frames equals NumPy for every mask and unaligned memory."""

from __future__ import annotations

import numpy as np
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from numba import types
from numpy.typing import NDArray

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
