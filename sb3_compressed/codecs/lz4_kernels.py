"""The decoder of LZ4's block format, for ``lz4-block`` and ``delta``.

A block (https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md) consists of sequences. Each is a token, whose
high half is the number of literals and whose low half is the length of a match, less 4; the literals; and the match, as
the number of bytes that it is back. The number 15 continues in the next bytes, up to one below 255. The last sequence
ends after its literals. A match may run into itself, and in a linked block into the blocks before.

No payload makes it read or write outside the payload and the frame.
"""

from __future__ import annotations

import numpy as np
from numba import types

from sb3_compressed.kernels.byte_kernels import INT, STEP, WORD, copy_bytes, copy_step, number_at
from sb3_compressed.kernels.jit import byte_at, helper, put_byte, put_word, word_at

__all__ = ["decode_block"]

LONG = 15  # a number that continues in the next bytes
MIN_MATCH = 4
LAST_LITERALS = 5  # bytes of a frame after its last match
LAST_MATCH = 12  # bytes of a frame after the start of its last match
PAIR = types.UniTuple(types.int64, 2)  # type: ignore[no-untyped-call]
ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)


@helper(PAIR, INT, INT, INT)
def read_number(number: int, at: int, end: int) -> tuple[int, int]:
    """Return a number of a token with what follows of it at ``at``, and the address after that.

    The address is beyond ``end``, the end of the payload, if the payload is truncated.
    """
    if number < LONG:
        return number, at
    while at < end:
        byte = number_at(at)
        number += byte
        at += 1
        if byte < 255:
            return number, at
    return 0, end + 1


@helper(types.void, INT, INT, INT, INT)
def copy_match(offset: int, target: int, length: int, room: int) -> None:
    """Copy bytes to an address from ``offset`` bytes before it, which include those copied already.

    :param room: bytes that may be written, at least ``length``. Those after ``length`` are undefined then
    """
    n = 0
    wide = min(length, room - STEP)  # where whole steps can be written
    if offset >= STEP:
        while n < wide:
            copy_step(target + n - offset, target + n)
            n += STEP
    elif offset >= WORD:  # each word is complete when it is read
        while n < wide:
            put_word(target + n, word_at(target + n - offset))
            n += WORD
    elif wide > 0:  # a word of repeated bytes, of which as many are used as are a multiple of the offset
        n_bits = np.uint64(8 * offset)
        word = word_at(target - offset) & ~(ALL_BITS << n_bits)
        while n_bits < np.uint64(64):
            word |= word << n_bits
            n_bits <<= np.uint64(1)
        used = WORD - WORD % offset
        while n < wide:
            put_word(target + n, word)
            n += used
    while n < length:  # at the end of the frame
        put_byte(target + n, byte_at(target + n - offset))
        n += 1


@helper(types.boolean, INT, INT, INT, INT, INT)
def decode_block(payload: int, nbytes: int, first: int, output: int, size: int) -> bool:
    """Decode a block; return whether it is valid.

    Most sequences are short. Where there is room, they are copied in whole words without loops.

    :param payload: address of the block, of ``nbytes`` bytes
    :param first: address of the first byte that matches may copy: that of the output, or of blocks right before it
    :param output: address of the output, of ``size`` bytes
    """
    at, end = payload, payload + nbytes
    target, output_end = output, output + size
    while at < end:
        token = number_at(at)
        at += 1
        length = token >> 4
        if length < LONG and end - at >= 2 * WORD and output_end - target >= 2 * STEP:
            put_word(target, word_at(at))
            put_word(target + WORD, word_at(at + WORD))
        else:
            length, at = read_number(length, at, end)
            if length > end - at or length > output_end - target:
                return False
            copy_bytes(at, target, length, min(end - at, output_end - target))
        at += length
        target += length
        if at == end:
            return target == output_end
        if at + 2 > end:
            return False
        offset = number_at(at) | number_at(at + 1) << 8
        at += 2
        length = (token & 15) + MIN_MATCH
        if length == LONG + MIN_MATCH:
            length, at = read_number(LONG, at, end)
            length += MIN_MATCH
        room = output_end - target
        if at > end or room < LAST_MATCH or room < length + LAST_LITERALS:
            return False
        if offset == 0 or offset > target - first:
            return False
        if length <= 3 * WORD <= room and offset >= WORD:
            source = target - offset
            put_word(target, word_at(source))
            put_word(target + WORD, word_at(source + WORD))
            put_word(target + 2 * WORD, word_at(source + 2 * WORD))
        else:
            copy_match(offset, target, length, room)
        target += length
    return False
