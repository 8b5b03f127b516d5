"""The inverse of the filter of smooth pictures, see :mod:`sb3_compressed.codecs.filtering`."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.codecs.delta_headers import FILTERED
from sb3_compressed.kernels.byte_kernels import INT, number_at
from sb3_compressed.kernels.jit import BYTE_ROWS, INT_ROWS, INTS, helper, kernel
from sb3_compressed.kernels.plane_kernels import add_bytes

__all__ = ["is_filtered", "skip_filter_headers", "unfilter", "unfilter_rows"]


@helper(types.boolean, INT, INT, INT, INT, INT)
def is_filtered(payload: int, payload_size: int, line: int, plane: int, size: int) -> bool:
    """Return whether a payload is of a filtered frame, and its codec has lines and planes that such frames consist of.

    :param payload: address of the payload, of ``payload_size`` bytes
    :param line: bytes of a line
    :param plane: bytes of a plane
    :param size: bytes of the frame
    """
    if payload_size == 0 or number_at(payload) != FILTERED:
        return False
    return 0 < line <= plane <= size and plane % line == 0 and size % plane == 0


@helper(types.void, INT, INT, INT, INT)
def unfilter(frame: int, line: int, plane: int, size: int) -> None:
    """Undo the filter of one frame of ``size`` bytes at an address."""
    for start in range(frame, frame + size, plane):
        for at in range(start + line, start + plane, line):
            add_bytes(at - line, at, line)
    if size == 3 * plane:
        add_bytes(frame + plane, frame, plane)
        add_bytes(frame + plane, frame + 2 * plane, plane)


@kernel(types.void, INT, INT, BYTE_ROWS)
def unfilter_rows(line: int, plane: int, frames: NDArray[np.uint8]) -> None:
    """Undo the filter of frames ``(n, frame_nbytes)``, which consist of such planes."""
    n_frames, size = frames.shape
    for k in range(n_frames):
        unfilter(frames.ctypes.data + k * size, line, plane, size)


@kernel(types.void, INTS, INT_ROWS, INT, INT_ROWS)
def skip_filter_headers(
    indices: NDArray[np.int64], locations: NDArray[np.int64], size: int, places: NDArray[np.int64]
) -> None:
    """Change the places of payloads of filtered frames to those of what follows their header byte.

    :param indices: the indices of the payloads to look at
    :param locations: see :func:`.decode_deltas`, which has checked the codec indices
    :param size: bytes of a frame
    :param places: for each payload its address, its size in bytes, and the index of its codec, ``(n, 3)``
    """
    for k in indices:
        line, plane = locations[places[k, 2], 7:]
        if is_filtered(places[k, 0], places[k, 1], line, plane, size):
            places[k, 0] += 1
            places[k, 1] -= 1
