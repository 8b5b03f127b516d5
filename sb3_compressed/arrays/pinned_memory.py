"""``empty_pinned``: memory from which CUDA devices copy batches in the background."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.checked_empty import checked_empty

__all__ = ["empty_pinned"]

#: Larger arrays are not pinned, since PyTorch never frees pinned memory: it is enough for 2048 observations of four
#: frames of 84 by 84 pixels.
MAX_PINNED_NBYTES = 64 * 1024 * 1024


def empty_pinned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:  # pragma: no cover  # needs CUDA
    """Return an uninitialized array in pinned memory, from which CUDA devices copy in the background.

    PyTorch's allocator reuses such memory once nothing refers to it and all copies from it are complete
    (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-pinning).
    """
    import torch as th

    nbytes = math.prod(shape) * dtype.itemsize
    if not 0 < nbytes <= MAX_PINNED_NBYTES:
        return checked_empty(shape, dtype)
    pinned: NDArray[np.uint8] = th.empty(nbytes, dtype=th.uint8, pin_memory=True).numpy()
    return pinned.view(dtype).reshape(shape)
