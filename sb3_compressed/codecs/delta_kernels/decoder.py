"""The decoder of ``delta``. No payload makes it read or write outside its buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import from_dtype, types
from numpy.typing import NDArray

from sb3_compressed.codecs.delta_format import CODEC_STATE, FIRST_REFERENCE, LZ4_BLOCK, PACKED, RAW
from sb3_compressed.codecs.delta_kernels.copy_sources import (
    FRAME,
    LONG,
    N_RECENT,
    PAIR,
    Frame,
    address_of,
    fill_recent,
    n_readable,
    new_recent,
    push_offset,
)
from sb3_compressed.codecs.lz4_kernels import decode_block
from sb3_compressed.codecs.packed_kernels import unpack_frame
from sb3_compressed.kernels.byte_kernels import INT, WORD, copy_bytes, number_at, signed_address
from sb3_compressed.kernels.jit import BYTE_ROWS, BYTES, INT_ROWS, READ_INTS, byte_at, helper, int64_at, kernel
from sb3_compressed.kernels.plane_kernels import separate_pixels

__all__ = ["decode_frames"]

CODEC_STATES = types.Array(from_dtype(CODEC_STATE), 1, "C")


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


@helper(types.boolean, INT, INT, FRAME, INT)
def decode_delta(payload: int, payload_size: int, frame: Frame, recent: int) -> bool:
    """Decode one payload; return whether it is a valid delta.

    :param payload: address of the payload, of ``payload_size`` bytes
    :param frame: the output, and the references of its codec
    :param recent: address of scratch memory for the recent offsets
    """
    size = frame.size
    if payload_size == 0 or byte_at(payload) < FIRST_REFERENCE:
        return False
    offset = (number_at(payload) - FIRST_REFERENCE) * size
    if offset + size > frame.references_nbytes:
        return False
    fill_recent(recent, offset)
    position = 0
    at = 1
    while True:
        equal, at = read_number(payload, at, payload_size)
        if at > payload_size or position + equal > size:
            return False
        while equal > 0:  # a second time if the source continues from the references into the frame
            source = offset + position
            readable = n_readable(frame, source, position)
            if readable <= 0:
                return False
            length = min(equal, readable)
            copy_bytes(address_of(frame, source), frame.address + position, length, readable)
            position += length
            equal -= length
        if position == size:
            return at == payload_size
        length, at = read_number(payload, at, payload_size)
        if at > payload_size:
            return False
        if length > 0:
            if position + length > size or at + length > payload_size:
                return False
            copy_bytes(payload + at, frame.address + position, length, min(payload_size - at, size - position))
            position += length
            at += length
            continue
        # The source changes, to a recent offset or to a position.
        if at >= payload_size:
            return False
        index = number_at(payload + at)
        if index < N_RECENT:
            next_offset = int64_at(recent + index * WORD)
            at += 1
        else:
            if at + 3 > payload_size:
                return False
            source = number_at(payload + at + 1) | number_at(payload + at + 2) << 8
            next_offset = ((index - N_RECENT) << 16 | source) - position
            index = N_RECENT - 1
            at += 3
        push_offset(recent, index, offset)
        offset = next_offset


@kernel(types.void, INT_ROWS, CODEC_STATES, READ_INTS, BYTES, BYTE_ROWS, BYTES)
def decode_frames(
    places: NDArray[np.int64],
    states: Any,
    layout: NDArray[np.int64],
    scratch: NDArray[np.uint8],
    frames: NDArray[np.uint8],
    done: NDArray[np.uint8],
) -> None:
    """Decode the payloads that need no zstd.

    :param places: for each payload its address, its size in bytes, and the index of its codec, ``(n, 3)``
    :param states: of each codec, ``(n_codecs,)`` of :data:`.CODEC_STATE`
    :param layout: the :attr:`.PictureLayout.numbers` of the frames
    :param scratch: scratch memory, for a frame and for packed differences, see :attr:`.PictureLayout.scratch_nbytes`
    :param frames: output, ``(n, frame_nbytes)``
    :param done: for each payload 1 if its frame is in ``frames`` already, else 0, ``(n,)``; set to 1 for each payload
        that this function decodes
    :raises IndexError: if the codec index of a payload is out of range
    """
    n_frames, size = frames.shape
    start, memory, numbers = signed_address(frames.ctypes.data), signed_address(scratch.ctypes.data), layout.ctypes.data
    recent = new_recent()
    for k in range(n_frames):
        if done[k] != 0:
            continue
        codec = places[k, 2]
        if not 0 <= codec < len(states):
            raise IndexError("the codec index of a payload is out of range")
        payload, payload_size = places[k, 0], places[k, 1]
        state = states[codec]
        frame = start + k * size
        header = number_at(payload) if payload_size > 0 else 0
        is_channel_last = state.channel_last_nbytes == size and header != PACKED
        target = memory if is_channel_last else frame
        if header == RAW:
            is_decoded = payload_size == 1 + size
            if is_decoded and is_channel_last:
                target = payload + 1
            elif is_decoded:
                copy_bytes(payload + 1, frame, size, size)
        elif header == LZ4_BLOCK:
            is_decoded = decode_block(payload + 1, payload_size - 1, target, target, size)
        elif header == PACKED:
            is_decoded = 1 < payload_size <= size and unpack_frame(
                payload + 1, payload_size - 1, numbers, memory, frame
            )
        else:
            usable = state.references_nbytes if state.reference_nbytes == size else 0
            is_decoded = decode_delta(payload, payload_size, Frame(target, size, state.references, usable), recent)
        if is_decoded and is_channel_last:
            separate_pixels(target, state.channels, size // state.channels, frame)
        done[k] = is_decoded
