"""``PinnedMemory``: memory for batches on their way to a CUDA device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

__all__ = ["PinnedMemory"]


class PinnedMemory:
    """Hands out uninitialised arrays in page-locked memory, from which a device copies while the processor goes on.

    PyTorch's own allocator keeps such memory: it hands it out again once nobody refers to it and all copies from it
    that were begun are done (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-pinning). It never frees
    it, so arrays above :attr:`MAX_NBYTES` are in usual memory, from which a device copies as well, only not meanwhile.
    """

    #: The largest array in page-locked memory: 2048 observations of four frames of 84 by 84 pixels have room.
    MAX_NBYTES = 64 * 1024 * 1024

    def begin_batch(self) -> None:
        """Do nothing; as :meth:`~sb3_compressed.arrays.batch_pool.BatchPool.begin_batch`."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array as :func:`numpy.empty` does."""
        nbytes = math.prod(shape) * dtype.itemsize
        if not 0 < nbytes <= self.MAX_NBYTES:
            return np.empty(shape, dtype=dtype)
        pinned: NDArray[np.uint8] = th.empty(nbytes, dtype=th.uint8, pin_memory=True).numpy()
        return pinned.view(dtype).reshape(shape)
