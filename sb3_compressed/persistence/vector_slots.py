"""Plain arrays of observations as slots.

In this package, vectors are all observations that are in plain arrays in memory, of any shape. On disk, they are
uncompressed payloads.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["is_stored_as_slots"]

#: Smaller items take less space in an array than the address of a slot.
MIN_STORED_NBYTES = 32


def is_stored_as_slots(item_shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether vectors of this shape and dtype are stored as slots."""
    return math.prod(item_shape) * dtype.itemsize >= MIN_STORED_NBYTES
