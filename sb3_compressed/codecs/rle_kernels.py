"""The numba kernels of ``rle-jit``; :mod:`sb3_compressed.codecs.rle` documents the wire format.

They work on the bytes of every dtype, so each is compiled once.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT, STEP, WORD, common_length, copy_bytes, number_at
from sb3_compressed.kernels.jit import (
    BYTE_ROWS,
    BYTES,
    INT_ROWS,
    READ_BYTES,
    byte_at,
    helper,
    kernel,
    put_byte,
    put_word,
    word_at,
)

__all__ = ["decode_frames", "decode_runs", "encode_runs"]

#: The factor that makes a word of a byte.
REPEATED = np.uint64(0x0101010101010101)


@helper(INT, INT, INT, INT, INT, INT)
def run_at(frame: int, at: int, size: int, elem_size: int, max_nbytes: int) -> int:
    """Return the bytes of the run that starts at the element at byte ``at`` of a frame.

    An element repeats the one before as long as each byte equals the one ``elem_size`` bytes earlier.

    :param frame: address of the frame, of ``size`` bytes
    :param max_nbytes: bytes of the longest run
    """
    limit = min(size - at, max_nbytes) - elem_size
    repeated = common_length(frame + at, frame + at + elem_size, limit)
    return elem_size + repeated - repeated % elem_size


@kernel(INT, READ_BYTES, INT, INT, INT, BYTES)
def encode_runs(
    frame: NDArray[np.uint8], elem_size: int, run_size: int, max_run: int, payload: NDArray[np.uint8]
) -> int:
    """Write the payload of a frame, and return the number of its bytes.

    :param frame: bytes of one frame, ``(frame_nbytes,)``
    :param elem_size: bytes of one element
    :param run_size: bytes of one run length
    :param max_run: the longest run, in elements: at most those of the frame
    :param payload: output, ``(1 + frame_nbytes,)``
    """
    size, source, target = frame.size, frame.ctypes.data, payload.ctypes.data
    max_nbytes = max_run * elem_size
    n_runs = at = 0
    while at < size:
        at += run_at(source, at, size, elem_size, max_nbytes)
        n_runs += 1
    if n_runs * (run_size + elem_size) >= size:
        payload[0] = 0
        copy_bytes(source, target + 1, size, size)
        return 1 + size
    payload[0] = run_size
    length_at, elem_at = 1, 1 + n_runs * run_size
    at = 0
    while at < size:
        nbytes = run_at(source, at, size, elem_size, max_nbytes)
        length = nbytes // elem_size
        for _ in range(run_size):
            payload[length_at] = length & 0xFF
            length >>= 8
            length_at += 1
        copy_bytes(source + at, target + elem_at, elem_size, min(size - at, payload.size - elem_at))
        elem_at += elem_size
        at += nbytes
    return elem_at


@helper(types.void, INT, types.uint64)
def put_step(address: int, word: np.uint64) -> None:
    """Write a word to ``STEP`` bytes, which compiles to one SIMD instruction."""
    put_word(address, word)
    put_word(address + WORD, word)
    put_word(address + 2 * WORD, word)
    put_word(address + 3 * WORD, word)


@helper(types.boolean, INT, INT, INT, INT, INT, INT)
def decode_runs(payload: int, nbytes: int, elem_size: int, run_size: int, frame: int, size: int) -> bool:
    """Decode the runs of a payload.

    :param payload: address of the payload, of ``nbytes = 1 + n_runs * (run_size + elem_size)`` bytes
    :param frame: address of the output, of ``size`` bytes
    :return: whether all runs have positive length and fill the frame exactly; nothing is written outside the frame
    """
    n_elems = size // elem_size
    n_runs = (nbytes - 1) // (run_size + elem_size)
    end = payload + nbytes
    run_at, elem_at = payload + 1, payload + 1 + n_runs * run_size
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(8 * (WORD - run_size))
    position = 0
    for _ in range(n_runs):
        length = np.uint64(0)
        if run_at + WORD <= end:
            length = word_at(run_at) & mask
        else:
            for b in range(run_size):
                length |= np.uint64(byte_at(run_at + b)) << np.uint64(8 * b)
        if length == 0 or length > np.uint64(n_elems - position):
            return False
        at, position = position, position + np.int64(length)  # type: ignore[assignment]
        if elem_size == 1 and position + STEP <= size:  # most runs are short: whole steps take less time than branches
            word = REPEATED * np.uint64(byte_at(elem_at))
            put_step(frame + at, word)
            while at + STEP < position:
                at += STEP
                put_step(frame + at, word)
        else:
            for i in range(at, position):
                for b in range(elem_size):
                    put_byte(frame + i * elem_size + b, byte_at(elem_at + b))
        run_at += run_size
        elem_at += elem_size
    return position == n_elems


@kernel(types.void, INT_ROWS, INT, BYTE_ROWS, BYTES)
def decode_frames(
    places: NDArray[np.int64], elem_size: int, frames: NDArray[np.uint8], done: NDArray[np.uint8]
) -> None:
    """Decode valid payloads.

    :param places: for each payload its address, its size in bytes, and a number that is not used, ``(n, 3)``
    :param elem_size: bytes of one element
    :param frames: output, ``(n, frame_nbytes)``
    :param done: for each payload 1 if its frame is in ``frames`` already, else 0, ``(n,)``; set to 1 for each payload
        that this function decodes
    """
    n_frames, size = frames.shape
    start = frames.ctypes.data
    for k in range(n_frames):
        payload, nbytes = places[k, 0], places[k, 1]
        if done[k] != 0 or nbytes == 0:
            continue
        frame, run_size = start + k * size, number_at(payload)
        if run_size == 0:
            if nbytes == 1 + size:
                copy_bytes(payload + 1, frame, size, size)
                done[k] = 1
        elif (run_size in (1, 2, 4, 8)) and (nbytes - 1) % (run_size + elem_size) == 0 and nbytes <= size:
            done[k] = decode_runs(payload, nbytes, elem_size, run_size, frame, size)
