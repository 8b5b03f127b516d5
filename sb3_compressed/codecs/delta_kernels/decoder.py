"""The decoder of deltas. No payload makes it read or write outside its buffers."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.codecs.delta_headers import FIRST_REFERENCE, LZ4_BLOCK, RAW
from sb3_compressed.codecs.delta_kernels.copy_sources import (
    LONG,
    N_RECENT,
    PAIR,
    address_of,
    n_readable,
    new_recent,
    push_offset,
)
from sb3_compressed.codecs.delta_kernels.whole_frames import (
    decompress_safe_using_dict,
    separate_channels,
)
from sb3_compressed.kernels.byte_kernels import INT, copy_bytes, number_at
from sb3_compressed.kernels.jit import BYTE_ROWS, BYTES, INT_ROWS, INTS, byte_at, helper, kernel

__all__ = ["DONE", "NOT_A_DELTA", "decode_deltas", "separate_frames"]

MAX_BLOCK = 0x7E000000  # LZ4_MAX_INPUT_SIZE
TO_DO, DONE, NOT_A_DELTA, CORRUPT = 0, 1, 2, 3
"""The status of a payload in :func:`decode_deltas`."""


@helper(PAIR, INT, INT, INT)
def read_number(payload: int, at: int, size: int) -> tuple[int, int]:
    """Return the number at ``at`` and the position after it, which is beyond ``size`` if the payload is truncated.

    :param payload: address of the payload
    :param size: bytes of the payload
    """
    if at >= size:
        return 0, size + 1
    first = number_at(payload + at)
    if first < LONG:
        return first, at + 1
    if at + 3 > size:
        return 0, size + 1
    return number_at(payload + at + 1) | number_at(payload + at + 2) << 8, at + 3


@helper(types.uint8, INT, INT, INT, INT, INTS, INT, INT)
def decode_delta(
    payload: int,
    payload_size: int,
    references: int,
    references_size: int,
    recent: NDArray[np.int64],
    frame: int,
    size: int,
) -> int:
    """Decode one payload; return :data:`DONE`, :data:`NOT_A_DELTA` or :data:`CORRUPT`.

    :param payload: address of the payload, of ``payload_size`` bytes
    :param references: address of the references of its codec, ``references_size`` bytes in all
    :param recent: scratch memory for the recent offsets, ``(N_RECENT,)``
    :param frame: address of the output, of ``size`` bytes
    """
    if payload_size == 0 or size == 0 or byte_at(payload) < FIRST_REFERENCE:
        return NOT_A_DELTA
    offset = (number_at(payload) - FIRST_REFERENCE) * size
    if offset + size > references_size:
        return CORRUPT
    recent[:] = offset
    position = 0
    at = 1
    while True:
        equal, at = read_number(payload, at, payload_size)
        if at > payload_size or position + equal > size:
            return CORRUPT
        while equal > 0:  # a second time if the source continues from the references into the frame
            source = offset + position
            readable = n_readable(source, references_size, position, size)
            if readable <= 0:
                return CORRUPT
            length = min(equal, readable)
            copy_bytes(address_of(source, references, references_size, frame), frame + position, length, readable)
            position += length
            equal -= length
        if position == size:
            return DONE if at == payload_size else CORRUPT
        length, at = read_number(payload, at, payload_size)
        if at > payload_size:
            return CORRUPT
        if length > 0:
            if position + length > size or at + length > payload_size:
                return CORRUPT
            copy_bytes(payload + at, frame + position, length, min(payload_size - at, size - position))
            position += length
            at += length
            continue
        # The source changes, to a recent offset or to a position.
        if at >= payload_size:
            return CORRUPT
        index = number_at(payload + at)
        if index < N_RECENT:
            next_offset = recent[index]
            at += 1
        else:
            if at + 3 > payload_size:
                return CORRUPT
            source = number_at(payload + at + 1) | number_at(payload + at + 2) << 8
            next_offset = ((index - N_RECENT) << 16 | source) - position
            index = N_RECENT - 1
            at += 3
        push_offset(recent, index, offset)
        offset = next_offset


@helper(types.uint8, INT, INT, INT, INT, INT, INT, INT)
def decode_block(
    payload: int, payload_size: int, dictionary: int, dictionary_size: int, decompress: int, frame: int, size: int
) -> int:
    """Decode a payload that is a block of LZ4.

    :param decompress: the address of ``LZ4_decompress_safe_usingDict``, 0 if there is none
    """
    if not decompress or payload_size > MAX_BLOCK or size > MAX_BLOCK:
        return NOT_A_DELTA
    arguments = (payload + 1, frame, payload_size - 1, size, dictionary, dictionary_size)
    return DONE if decompress_safe_using_dict(decompress, arguments) == size else CORRUPT


@kernel(INT, INT_ROWS, INT_ROWS, INT, BYTES, BYTE_ROWS, BYTES)
def decode_deltas(
    places: NDArray[np.int64],
    locations: NDArray[np.int64],
    decompress: int,
    channel_last: NDArray[np.uint8],
    frames: NDArray[np.uint8],
    status: NDArray[np.uint8],
) -> int:
    """Decode the payloads that need no zstd.

    :param places: for each payload its address, its size in bytes, and the index of its codec, ``(n, 3)``
    :param locations: for each codec the address of its references, their size in bytes, the size of one of them, the
        address of its dictionary for LZ4 and its size, and the size and the number of channels of frames that it stores
        in channel-last order, ``(n_codecs, 7)``
    :param decompress: the address of ``LZ4_decompress_safe_usingDict``, 0 if there is none
    :param channel_last: scratch memory for a frame, ``(frame_nbytes,)``
    :param frames: output, ``(n, frame_nbytes)``
    :param status: for each payload :data:`TO_DO`, or :data:`DONE` if its frame is in ``frames`` already, ``(n,)``;
        overwritten with :data:`DONE`, :data:`NOT_A_DELTA` or :data:`CORRUPT`
    :return: the number of payloads that are not done
    :raises IndexError: if the codec index of a payload is out of range
    """
    n_left = 0
    n_frames, size = frames.shape
    recent = new_recent()
    for k in range(n_frames):
        if status[k] == DONE:
            continue
        codec = places[k, 2]
        if not 0 <= codec < len(locations):
            raise IndexError("the codec index of a payload is out of range")
        payload, payload_size = places[k, 0], places[k, 1]
        references, references_size, reference_size, dictionary, dictionary_size, of_size, channels = locations[codec]
        frame = frames.ctypes.data + k * size
        is_channel_last = of_size == size
        target = channel_last.ctypes.data if is_channel_last else frame
        header = number_at(payload) if payload_size > 0 and size > 0 else 0
        if header == RAW:
            status[k] = DONE if payload_size == 1 + size else CORRUPT
            if status[k] == DONE and is_channel_last:
                target = payload + 1
            elif status[k] == DONE:
                copy_bytes(payload + 1, frame, size, size)
        elif header == LZ4_BLOCK:
            status[k] = decode_block(payload, payload_size, dictionary, dictionary_size, decompress, target, size)
        else:
            usable = references_size if reference_size == size else 0
            status[k] = decode_delta(payload, payload_size, references, usable, recent, target, size)
        if is_channel_last and status[k] == DONE:
            separate_channels(target, frame, size // channels, channels)
        n_left += status[k] != DONE
    return n_left


@kernel(types.void, INTS, INT_ROWS, INT_ROWS, BYTES, BYTE_ROWS)
def separate_frames(
    indices: NDArray[np.int64],
    places: NDArray[np.int64],
    locations: NDArray[np.int64],
    channel_last: NDArray[np.uint8],
    frames: NDArray[np.uint8],
) -> None:
    """Separate the channels of frames that were decoded elsewhere, if their codec stores them in channel-last order.

    :param indices: the indices of these frames
    :param places: see :func:`decode_deltas`, which has checked the codec indices; so are the others
    """
    size = frames.shape[1]
    for k in indices:
        of_size, channels = locations[places[k, 2], 5:]
        if of_size == size > 0:
            frame = frames.ctypes.data + k * size
            copy_bytes(frame, channel_last.ctypes.data, size, size)
            separate_channels(channel_last.ctypes.data, frame, size // channels, channels)
