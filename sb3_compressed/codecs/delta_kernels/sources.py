"""Sources of a delta: where bytes are taken from, as the encoder and the decoder both count it.

*Bank* are the bytes of all reference frames, one after the other; the bytes of the frame itself follow, as far as they
are known. The *source* of the byte at ``position`` of the frame is that at ``shift + position`` of all these.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.byte_kernels import INT, STEP
from sb3_compressed.jit import INTS, kernel

__all__ = ["FIRST_REFERENCE", "LONG", "N_RECENT", "PAIR", "address_of", "n_readable", "remember_shift"]

FIRST_REFERENCE = 2  # header bytes below are those of zstd payloads
LONG = 255  # a number that does not fit one byte: two bytes follow
N_RECENT = 4  # shifts that a change of source can name by one byte
PAIR = types.UniTuple(types.int64, 2)  # type: ignore[no-untyped-call]


@kernel(types.void, INTS, INT, INT)
def remember_shift(recent: NDArray[np.int64], place: int, shift: int) -> None:
    """Put a shift that is left before the recent ones, and take the one at ``place`` out of them."""
    for k in range(place, 0, -1):
        recent[k] = recent[k - 1]
    recent[0] = shift


@kernel(INT, INT, INT, INT, INT)
def n_readable(source: int, bank_size: int, position: int, size: int) -> int:
    """Return for how many bytes from ``position`` on a source can be read, 0 if it cannot be.

    Of the frame itself only what lies a whole step back can: closer bytes may not be there when a step is copied.
    """
    if source < 0:
        return 0
    if source < bank_size:
        return min(bank_size - source, size - position)
    return size - position if source - bank_size + STEP <= position else 0


@kernel(INT, INT, INT, INT, INT)
def address_of(source: int, bank: int, bank_size: int, frame: int) -> int:
    """Return where a source is in memory."""
    return bank + source if source < bank_size else frame + source - bank_size
