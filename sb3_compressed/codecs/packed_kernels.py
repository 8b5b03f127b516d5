"""The numba kernels of ``packed``; :mod:`sb3_compressed.codecs.packed` documents the wire format.

Loops are simple and without branches, so that they compile to SIMD instructions: a block is a word of 8 bytes, and
eight values are packed by transposing its 8x8 bits. The position of a block depends on the widths of all blocks before
it, so what reads and writes blocks cannot be such a loop, and only copies words.

:func:`pack_frame` and :func:`unpack_frame` are for kernels of other codecs. Their payloads are those of ``packed``,
without uncompressed ones.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT, WORD, copy_bytes, number_at
from sb3_compressed.kernels.jit import (
    BYTES,
    INTS,
    READ_BYTE_ROWS,
    READ_INTS,
    byte_at,
    bytes_at,
    helper,
    int64_at,
    kernel,
    last_byte_of,
    put_byte,
    put_word,
    word_at,
    words_at,
)
from sb3_compressed.kernels.plane_kernels import add_bytes, join_pixels, separate_pixels, subtract_bytes

__all__ = ["pack_frame", "pack_frames", "unpack_frame"]

BLOCK = 8  # values
MAX_WIDTH = 8  # bits of a value
MAX_GROUP_WIDTH = 4  # bits of a width
ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)
LOWEST_BITS = np.uint64(0x0101010101010101)
#: Masks of the bits that the three steps of a transposition swap, see :func:`transposed`.
SWAPPED_1 = np.uint64(0x00AA00AA00AA00AA)
SWAPPED_2 = np.uint64(0x0000CCCC0000CCCC)
SWAPPED_4 = np.uint64(0x00000000F0F0F0F0)


@helper(types.uint64, types.uint64)
def transposed(word: np.uint64) -> np.uint64:
    """Return the word of which bit ``i`` of byte ``j`` is bit ``j`` of byte ``i`` of a word.

    Bits, then squares of 2x2 and of 4x4 bits change places (Warren, Hacker's Delight, section 7-3).
    """
    swapped = (word ^ (word >> np.uint64(7))) & SWAPPED_1
    word = word ^ swapped ^ (swapped << np.uint64(7))
    swapped = (word ^ (word >> np.uint64(14))) & SWAPPED_2
    word = word ^ swapped ^ (swapped << np.uint64(14))
    swapped = (word ^ (word >> np.uint64(28))) & SWAPPED_4
    return word ^ swapped ^ (swapped << np.uint64(28))


# -- blocks ----------------------------------------------------------------------------------------------------------


@helper(INT, INT, INT, INT)
def transpose_blocks(blocks: int, n: int, widths: int) -> int:
    """Replace the values of blocks by their bit planes, and return the bytes of all that are not zero.

    :param blocks: address of ``n`` words
    :param widths: address of as many bytes, output: the number of bit planes of each block up to its highest nonzero
        one
    """
    words, found = words_at(blocks, n), bytes_at(widths, n)
    for k in range(n):
        words[k] = transposed(words[k])
    total = 0
    for k in range(n):
        width = last_byte_of(words[k] | np.uint64(1)) + (words[k] != 0)
        found[k] = width
        total += width
    return total


@helper(INT, INT, INT, INT, INT, INT)
def store_blocks(blocks: int, widths: int, n: int, at: int, end: int) -> int:
    """Write the lowest bit planes of each block, as many as its width; return the address after the last one.

    :param blocks: address of ``n`` words
    :param widths: address of as many bytes
    :param at: address of the output
    :param end: address after it, where nothing may be written
    """
    words, lengths = words_at(blocks, n), bytes_at(widths, n)
    for k in range(n):
        if at + WORD <= end:
            put_word(at, words[k])  # what is beyond the width is overwritten by the next blocks
        else:
            for j in range(lengths[k]):
                put_byte(at + j, words[k] >> np.uint64(8 * j))
        at += lengths[k]
    return at


@helper(types.boolean, INT, INT, INT, INT, INT)
def load_blocks(at: int, end: int, widths: int, n: int, blocks: int) -> bool:
    """Read blocks that :func:`store_blocks` wrote, and return whether their widths are the smallest possible ones.

    :param at: address of their bit planes, as many bytes as the widths add up to
    :param end: address after what may be read
    :param widths: address of ``n`` bytes, each at most ``MAX_WIDTH``
    :param blocks: address of as many words, output: the values of each block
    """
    words, lengths = words_at(blocks, n), bytes_at(widths, n)
    for k in range(n):
        if at + WORD <= end:
            words[k] = word_at(at)
        else:
            word = np.uint64(0)
            for j in range(end - at):
                word |= np.uint64(byte_at(at + j)) << np.uint64(8 * j)
            words[k] = word
        at += lengths[k]
    wrong = np.uint64(0)
    for k in range(n):
        half = np.uint64(4) * np.uint64(lengths[k])
        mask = ~(ALL_BITS << half << half)  # a shift by all 64 bits at once is undefined
        word = words[k] & mask
        wrong |= np.uint64((word <= mask >> np.uint64(8)) & (mask != 0))
        words[k] = transposed(word)
    return not wrong


# -- widths ----------------------------------------------------------------------------------------------------------


@helper(types.void, INT, INT, INT)
def store_group_widths(group_widths: int, n_groups: int, at: int) -> None:
    """Write the widths of groups, two in a byte.

    :param group_widths: address of the widths, followed by a 0 if their number is odd
    """
    for k in range(0, n_groups, 2):
        put_byte(at + k // 2, number_at(group_widths + k) | number_at(group_widths + k + 1) << 4)


@helper(INT, INT, INT, INT)
def load_group_widths(at: int, n_groups: int, group_widths: int) -> int:
    """Read what :func:`store_group_widths` wrote; return the sum of the widths, -1 if they are invalid."""
    total = 0
    for k in range(n_groups):
        width = number_at(at + k // 2) >> 4 * (k % 2) & 15
        if width > MAX_GROUP_WIDTH:
            return -1
        put_byte(group_widths + k, width)
        total += width
    if n_groups % 2 == 1 and number_at(at + n_groups // 2) >> 4 != 0:
        return -1
    return total


@helper(INT, INT, INT, INT)
def sum_of_widths(widths: int, n_blocks: int, n: int) -> int:
    """Return the sum of ``n`` widths at an address, -1 if one is too large, or one after ``n_blocks`` not 0."""
    values = bytes_at(widths, n)
    total = largest = 0
    for k in range(n_blocks):
        total += values[k]
        largest = max(largest, values[k])
    for k in range(n_blocks, n):
        if values[k] != 0:
            return -1
    return total if largest <= MAX_WIDTH else -1


# -- differences -----------------------------------------------------------------------------------------------------


@helper(types.uint8, types.uint8)
def zigzag(difference: np.uint8) -> np.uint8:
    """Return a difference modulo 256 as 0, 1, 2, 3, 4, ... for 0, -1, 1, -2, 2, ...

    The argument is a byte so that loops compile to instructions for bytes: with integers they take 20 times as long.
    """
    signed = np.int8(difference)
    return np.uint8((signed << 1) ^ (signed >> 7))


@helper(types.void, INT, INT, INT, INT)
def write_differences(plane: int, size: int, width: int, target: int) -> None:
    """Write by what the ``size`` values of a plane differ from the line above, and the first line as it is."""
    first, first_differences = bytes_at(plane, width), bytes_at(target, width)
    for k in range(width):
        first_differences[k] = zigzag(first[k])
    n = size - width
    above, below, differences = bytes_at(plane, n), bytes_at(plane + width, n), bytes_at(target + width, n)
    for k in range(n):
        differences[k] = zigzag(np.uint8(below[k] - above[k]))


@helper(types.void, INT, INT)
def undo_zigzag(blocks: int, n: int) -> None:
    """Replace the values of blocks, ``n`` words, by the differences that they stand for."""
    words = words_at(blocks, n)
    for k in range(n):
        odd = words[k] & LOWEST_BITS
        words[k] = ((words[k] ^ odd) >> np.uint64(1)) ^ ((odd << np.uint64(8)) - odd)


# -- frames ----------------------------------------------------------------------------------------------------------


@helper(INT, INT)
def size_header(frame_nbytes: int) -> int:
    """Return the first byte of payloads of frames of a size, which is never that of an uncompressed frame, 0."""
    return 1 + frame_nbytes % 255


@helper(INT, INT, INT, INT, INT, INT)
def pack_frame(frame: int, layout: int, scratch: int, payload: int, limit: int) -> int:
    """Write the payload of a frame, and return the number of its bytes; 0 if it would have more than ``limit``.

    :param frame: address of the frame, which is not empty
    :param layout: address of its :attr:`.PictureLayout.numbers`, in the order that it has in memory
    :param scratch: address of :attr:`.PictureLayout.scratch_nbytes` bytes of scratch memory
    :param payload: address of the output, of ``limit`` bytes
    """
    n_planes, height, width = int64_at(layout), int64_at(layout + WORD), int64_at(layout + 2 * WORD)
    interleaved, has_colors = int64_at(layout + 3 * WORD), int64_at(layout + 4 * WORD) != 0
    size = height * width
    stride = -(-size // BLOCK) * WORD
    n_blocks = n_planes * stride // WORD
    n_groups = -(-n_blocks // BLOCK)
    header_nbytes = 1 + (n_groups + 1) // 2
    if header_nbytes > limit:
        return 0
    blocks = scratch
    widths = blocks + n_blocks * WORD
    groups = widths + n_groups * WORD
    group_widths = groups + n_groups * WORD
    planes = group_widths + n_groups + n_groups % 2

    frame_nbytes = n_planes * size
    if interleaved > 1:
        for start in range(0, frame_nbytes, interleaved * size):
            separate_pixels(frame + start, interleaved, size, planes + start)
    elif has_colors:
        copy_bytes(frame, planes, frame_nbytes, frame_nbytes)
    else:
        planes = frame
    if has_colors:
        for green in range(planes + size, planes + frame_nbytes, 3 * size):
            subtract_bytes(green, green - size, size)
            subtract_bytes(green, green + size, size)
    for p in range(n_planes):
        put_word(blocks + (p + 1) * stride - WORD, np.uint64(0))  # what follows the values of a plane
        write_differences(planes + p * size, size, width, blocks + p * stride)

    put_word(widths + (n_groups - 1) * WORD, np.uint64(0))
    data_nbytes = transpose_blocks(blocks, n_blocks, widths)
    copy_bytes(widths, groups, n_groups * WORD, n_groups * WORD)
    put_byte(group_widths + n_groups - 1 + n_groups % 2, 0)
    widths_nbytes = transpose_blocks(groups, n_groups, group_widths)
    total: int = header_nbytes + widths_nbytes + data_nbytes
    if total > limit:
        return 0
    put_byte(payload, size_header(frame_nbytes))
    store_group_widths(group_widths, n_groups, payload + 1)
    at = store_blocks(groups, group_widths, n_groups, payload + header_nbytes, payload + total)
    store_blocks(blocks, widths, n_blocks, at, payload + total)
    return total


@helper(types.boolean, INT, INT, INT, INT, INT)
def unpack_frame(payload: int, nbytes: int, layout: int, scratch: int, frame: int) -> bool:
    """Decode a payload and return whether :func:`pack_frame` can have written it; if not, nothing is written.

    :param payload: address of the payload, of ``nbytes`` bytes
    :param layout: address of the :attr:`.PictureLayout.numbers` of the frame
    :param scratch: address of :attr:`.PictureLayout.scratch_nbytes` bytes of scratch memory
    :param frame: address of the output, a frame that is not empty
    """
    n_planes, height, width = int64_at(layout), int64_at(layout + WORD), int64_at(layout + 2 * WORD)
    interleaved, has_colors = int64_at(layout + 3 * WORD), int64_at(layout + 4 * WORD) != 0
    size = height * width
    stride = -(-size // BLOCK) * WORD
    n_blocks = n_planes * stride // WORD
    n_groups = -(-n_blocks // BLOCK)
    blocks = scratch
    widths = blocks + n_blocks * WORD
    group_widths = widths + n_groups * WORD
    end = payload + nbytes

    at = payload + 1 + (n_groups + 1) // 2
    if at > end or number_at(payload) != size_header(n_planes * size):
        return False
    widths_nbytes = load_group_widths(payload + 1, n_groups, group_widths)
    if widths_nbytes < 0 or at + widths_nbytes > end:
        return False
    if not load_blocks(at, end, group_widths, n_groups, widths):
        return False
    at += widths_nbytes
    data_nbytes = sum_of_widths(widths, n_blocks, n_groups * BLOCK)
    if data_nbytes < 0 or at + data_nbytes != end or not load_blocks(at, end, widths, n_blocks, blocks):
        return False
    for p in range(n_planes):
        for at in range(blocks + p * stride + size, blocks + (p + 1) * stride):
            if byte_at(at) != 0:
                return False

    undo_zigzag(blocks, n_blocks)
    for plane in range(blocks, blocks + n_planes * stride, stride):
        for line in range(plane + width, plane + size, width):
            add_bytes(line - width, line, width)
    if has_colors:
        for green in range(blocks + stride, blocks + n_planes * stride, 3 * stride):
            add_bytes(green, green - stride, size)
            add_bytes(green, green + stride, size)
    for p in range(0, n_planes, interleaved):
        if interleaved > 1:
            join_pixels(blocks + p * stride, stride, interleaved, size, frame + p * size)
        else:
            copy_bytes(blocks + p * stride, frame + p * size, size, size)
    return True


@kernel(INT, READ_BYTE_ROWS, READ_INTS, BYTES, BYTES, INTS)
def pack_frames(
    frames: NDArray[np.uint8],
    layout: NDArray[np.int64],
    scratch: NDArray[np.uint8],
    payloads: NDArray[np.uint8],
    ends: NDArray[np.int64],
) -> int:
    """Pack each frame whose payload has no more bytes than the frame.

    :param frames: bytes of frames that are not empty, ``(n, frame_nbytes)``
    :param layout: their :attr:`.PictureLayout.numbers`, in the order that ``frames`` have
    :param scratch: scratch memory, ``(scratch_nbytes,)``
    :param payloads: output, the payloads one after the other; each has room for as many bytes as its frame
    :param ends: output, the end of each payload, ``(n,)``; one that would have more bytes than its frame has none
    :return: the bytes of all payloads
    """
    n_frames, size = frames.shape
    source, numbers, memory, target = frames.ctypes.data, layout.ctypes.data, scratch.ctypes.data, payloads.ctypes.data
    written = 0
    for k in range(n_frames):
        written += pack_frame(source + k * size, numbers, memory, target + written, size)
        ends[k] = written
    return written
