"""From deltas to frames. Whatever a payload says, nothing outside of the memory given is read or written."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.byte_kernels import INT, copy_bytes, number_at
from sb3_compressed.codecs.delta_kernels.sources import (
    FIRST_REFERENCE,
    LONG,
    N_RECENT,
    PAIR,
    address_of,
    n_readable,
    remember_shift,
)
from sb3_compressed.jit import BYTE_ROWS, BYTES, INT_ROWS, INTS, byte_at, kernel

__all__ = ["DONE", "NOT_A_DELTA", "decode_deltas"]

TO_DO, DONE, NOT_A_DELTA, CORRUPT = 0, 1, 2, 3
"""What :func:`decode_deltas` says of a payload."""


@kernel(PAIR, INT, INT, INT)
def read_number(payload: int, at: int, size: int) -> tuple[int, int]:
    """Return the number at ``at`` and where what follows it starts; beyond ``size`` where it goes beyond the end.

    :param payload: address of the payload
    :param size: how many bytes it has
    """
    if at >= size:
        return 0, size + 1
    first = number_at(payload + at)
    if first < LONG:
        return first, at + 1
    if at + 3 > size:
        return 0, size + 1
    return number_at(payload + at + 1) | number_at(payload + at + 2) << 8, at + 3


@kernel(types.uint8, INT, INT, INT, INT, INTS, INT, INT)
def decode_delta(
    payload: int, payload_size: int, bank: int, bank_size: int, recent: NDArray[np.int64], frame: int, size: int
) -> int:
    """Decode one payload; return :data:`DONE`, :data:`NOT_A_DELTA` or :data:`CORRUPT`.

    :param payload: address of the payload, of ``payload_size`` bytes
    :param bank: address of the references of its codec, ``bank_size`` bytes in all
    :param recent: room for the recent shifts, ``(N_RECENT,)``
    :param frame: address of the memory for the frame, of ``size`` bytes
    """
    if payload_size == 0 or size == 0 or byte_at(payload) < FIRST_REFERENCE:
        return NOT_A_DELTA
    shift = (number_at(payload) - FIRST_REFERENCE) * size
    if shift + size > bank_size:
        return CORRUPT
    recent[:] = shift
    position = 0
    at = 1
    while True:
        equal, at = read_number(payload, at, payload_size)
        if at > payload_size or position + equal > size:
            return CORRUPT
        while equal > 0:  # twice where the source goes on from the bank's end to the frame
            source = shift + position
            readable = n_readable(source, bank_size, position, size)
            if readable <= 0:
                return CORRUPT
            length = min(equal, readable)
            copy_bytes(address_of(source, bank, bank_size, frame), frame + position, length, readable)
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
        # Another source, named by its shift or where it begins.
        if at >= payload_size:
            return CORRUPT
        place = number_at(payload + at)
        if place < N_RECENT:
            better = recent[place]
            at += 1
        else:
            if at + 3 > payload_size:
                return CORRUPT
            source = number_at(payload + at + 1) | number_at(payload + at + 2) << 8
            better = ((place - N_RECENT) << 16 | source) - position
            place = N_RECENT - 1
            at += 3
        remember_shift(recent, place, shift)
        shift = better


@kernel(INT, INT_ROWS, INT_ROWS, BYTE_ROWS, BYTES)
def decode_deltas(
    places: NDArray[np.int64], banks: NDArray[np.int64], frames: NDArray[np.uint8], status: NDArray[np.uint8]
) -> int:
    """Decode the payloads that are deltas.

    :param places: for each payload its address, how many bytes it has, and the index of its codec, ``(n, 3)``
    :param banks: for each codec the address of its references, the bytes they have, and those of one, ``(n_codecs, 3)``
    :param frames: is given the frames, ``(n, frame_nbytes)``
    :param status: for each payload, :data:`TO_DO`, or :data:`DONE` if its frame is there; is given :data:`DONE`,
        :data:`NOT_A_DELTA` or :data:`CORRUPT`, ``(n,)``
    :return: the number of payloads that are not done
    """
    n_left = 0
    n_frames, size = frames.shape
    recent = np.empty(N_RECENT, dtype=np.int64)
    for k in range(n_frames):
        if status[k] == DONE:
            continue
        writer = places[k, 2]
        if not 0 <= writer < len(banks):
            raise IndexError("a payload's writer is not among the codecs")
        bank_size = banks[writer, 1] if banks[writer, 2] == size else 0
        frame = frames.ctypes.data + k * size
        status[k] = decode_delta(places[k, 0], places[k, 1], banks[writer, 0], bank_size, recent, frame, size)
        n_left += status[k] != DONE
    return n_left
