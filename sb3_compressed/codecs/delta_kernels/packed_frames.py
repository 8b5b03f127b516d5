"""Frames that are stored as packed differences, see :mod:`sb3_compressed.codecs.packed`."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.codecs.delta_headers import PACKED
from sb3_compressed.codecs.packed_kernels import unpack_frame
from sb3_compressed.kernels.byte_kernels import number_at
from sb3_compressed.kernels.jit import BYTE_ROWS, BYTES, INT_ROWS, READ_INTS, kernel

__all__ = ["decode_packed"]


@kernel(types.void, INT_ROWS, READ_INTS, BYTES, BYTE_ROWS, BYTES)
def decode_packed(
    places: NDArray[np.int64],
    layout: NDArray[np.int64],
    scratch: NDArray[np.uint8],
    frames: NDArray[np.uint8],
    done: NDArray[np.uint8],
) -> None:
    """Decode the valid payloads among those of packed differences.

    :param places: see :func:`.decode_deltas`; so are ``frames`` and ``done``
    :param layout: the :attr:`.PictureLayout.numbers` of the frames
    :param scratch: scratch memory, ``(scratch_nbytes,)``
    """
    n_frames, size = frames.shape
    for k in range(n_frames):
        payload, nbytes = places[k, 0], places[k, 1]
        if done[k] == 0 and 1 < nbytes <= size and number_at(payload) == PACKED:
            frame = frames.ctypes.data + k * size
            done[k] = unpack_frame(payload + 1, nbytes - 1, layout, scratch.ctypes.data, frame)
