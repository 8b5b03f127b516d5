"""The kernel that writes where payloads in contiguous memory are."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.jit import INT_ROWS, INTS, READ_BYTES, kernel

__all__ = ["put_places"]


@kernel(types.void, READ_BYTES, INTS, INT_ROWS)
def put_places(data: NDArray[np.uint8], lengths: NDArray[np.int64], places: NDArray[np.int64]) -> None:
    """Write the places of payloads, as of :class:`~sb3_compressed.codecs.payloads.Payloads`, all of codec 0.

    :param data: the bytes of the payloads, one after the other
    :param lengths: the number of bytes of each, ``(n,)``
    :param places: receives the places, ``(n, 3)``
    """
    address = data.ctypes.data
    for k in range(lengths.size):
        places[k, 0], places[k, 1], places[k, 2] = address, lengths[k], 0
        address += lengths[k]
