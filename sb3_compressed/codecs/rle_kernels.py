"""The numba kernels of ``rle-jit``; :mod:`sb3_compressed.codecs.rle` documents the wire format.

They work on the bytes of every dtype, so each is compiled once.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.jit import BYTES, READ_BYTES, kernel

__all__ = ["decode_runs", "encode_runs"]


@kernel(types.int64, READ_BYTES, types.int64, types.int64, types.int64, BYTES)
def encode_runs(
    frame: NDArray[np.uint8], elem_size: int, run_size: int, max_run: int, payload: NDArray[np.uint8]
) -> int:
    """Write the runs of ``frame`` into ``payload``.

    :param frame: bytes of one frame, ``(frame_nbytes,)``
    :param elem_size: bytes of one element
    :param run_size: bytes of one run length
    :param max_run: the longest run that fits the run type
    :param payload: output, ``(1 + frame_nbytes,)``
    :return: bytes written, or -1 if the runs would not be smaller than the frame
    """
    n_elems = frame.size // elem_size
    n_runs = 0
    run = 0
    for i in range(n_elems):
        same = i > 0 and run < max_run
        if same:
            for b in range(elem_size):
                if frame[i * elem_size + b] != frame[(i - 1) * elem_size + b]:
                    same = False
                    break
        if same:
            run += 1
        else:
            n_runs += 1
            run = 1
    if n_runs * (run_size + elem_size) >= frame.size:
        return -1

    payload[0] = run_size
    runs_at = 1
    elems_at = 1 + n_runs * run_size
    start = 0
    while start < n_elems:
        end = start + 1
        while end < n_elems and end - start < max_run:
            same = True
            for b in range(elem_size):
                if frame[end * elem_size + b] != frame[start * elem_size + b]:
                    same = False
                    break
            if not same:
                break
            end += 1
        length = end - start
        for b in range(run_size):
            payload[runs_at + b] = (length >> (8 * b)) & 0xFF
        for b in range(elem_size):
            payload[elems_at + b] = frame[start * elem_size + b]
        runs_at += run_size
        elems_at += elem_size
        start = end
    return elems_at


@kernel(types.boolean, READ_BYTES, types.int64, types.int64, BYTES)
def decode_runs(payload: NDArray[np.uint8], elem_size: int, run_size: int, frame: NDArray[np.uint8]) -> bool:
    """Decode the runs of ``payload`` into ``frame``.

    :param payload: a payload including its header byte, of ``1 + n_runs * (run_size + elem_size)`` bytes
    :param frame: bytes of one frame, ``(frame_nbytes,)``
    :return: whether all runs have positive length and fill the frame exactly; nothing is written outside the frame
    """
    n_elems = frame.size // elem_size
    n_runs = (payload.size - 1) // (run_size + elem_size)
    elems_at = 1 + n_runs * run_size
    position = 0
    for run in range(n_runs):
        length = np.uint64(0)
        for b in range(run_size):
            length |= np.uint64(payload[1 + run * run_size + b]) << np.uint64(8 * b)
        if length == 0 or length > np.uint64(n_elems - position):
            return False
        end = position + int(length)
        if elem_size == 1:
            value = payload[elems_at + run]
            for i in range(position, end):
                frame[i] = value
        else:
            for i in range(position, end):
                for b in range(elem_size):
                    frame[i * elem_size + b] = payload[elems_at + run * elem_size + b]
        position = end
    return position == n_elems
