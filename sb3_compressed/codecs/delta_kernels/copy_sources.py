"""Sources of a delta: the positions that bytes are copied from, shared by the encoder and the decoder.

Source positions count the bytes of all reference frames, one after the other, followed by the bytes of the frame that
are decoded already. The source of the byte at ``position`` of the frame is at ``offset + position``.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT, STEP
from sb3_compressed.kernels.jit import INTS, helper, stack_ints

__all__ = ["LONG", "N_RECENT", "PAIR", "address_of", "n_readable", "new_recent", "push_offset"]

LONG = 255  # marks a number of two bytes, which follow
N_RECENT = 4  # recent offsets that one byte can select
PAIR = types.UniTuple(types.int64, 2)  # type: ignore[no-untyped-call]
new_recent = stack_ints(N_RECENT)
"""Return scratch memory for the recent offsets."""


@helper(types.void, INTS, INT, INT)
def push_offset(recent: NDArray[np.int64], index: int, offset: int) -> None:
    """Insert an offset before the recent ones, and remove the one at ``index``."""
    for k in range(index, 0, -1):
        recent[k] = recent[k - 1]
    recent[0] = offset


@helper(INT, INT, INT, INT, INT)
def n_readable(source: int, references_size: int, position: int, size: int) -> int:
    """Return how many bytes of a source are readable for the frame from ``position`` on; 0 if it is invalid.

    Bytes of the frame itself are readable from a whole step back: closer ones may not be written yet when a step is
    copied.
    """
    if source < 0:
        return 0
    if source < references_size:
        return min(references_size - source, size - position)
    return size - position if source - references_size + STEP <= position else 0


@helper(INT, INT, INT, INT, INT)
def address_of(source: int, references: int, references_size: int, frame: int) -> int:
    """Return the address of a source position."""
    return references + source if source < references_size else frame + source - references_size
