"""``checked_empty``: memory for decoded observations, requested only if there is enough."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.common.memory import available_memory

__all__ = ["checked_empty"]

#: Smaller arrays do not check the available memory.
MIN_CHECKED_NBYTES = 1 << 28


def checked_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an uninitialized array as :func:`numpy.empty` does, but raise before the system kills the process.

    :raises MemoryError: if there is not enough memory
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes > MIN_CHECKED_NBYTES and nbytes > (available := available_memory()):
        raise MemoryError(
            f"decoded observations of shape {shape} take {nbytes / 1e9:.1f} GB, and {available / 1e9:.1f} GB of memory "
            "are available; decode parts, as in array[start : start + 1000]"
        )
    return np.empty(shape, dtype)
