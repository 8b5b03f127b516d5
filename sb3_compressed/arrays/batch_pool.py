"""``BatchPool``: memory for batches that is used again once nobody refers to the batch before.

A batch of images is so large that C's allocator gives its memory back to the operating system and asks for it anew each
time, and the first touch of each new page takes about as long as decoding what is written there.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.probes import holds, references_are_counted

__all__ = ["BatchPool"]


class BatchPool:
    """Hands out uninitialised arrays; their memory comes back when the last array or tensor on it is gone.

    >>> memory = BatchPool()
    >>> first = memory.empty((20, 84, 84), np.dtype(np.uint8))
    >>> place = first.__array_interface__["data"]
    >>> view = first[1]
    >>> del first
    >>> second = memory.empty((20, 84, 84), np.dtype(np.uint8))
    >>> second.__array_interface__["data"] == place  # the view still refers to it
    False
    >>> del view
    >>> third = memory.empty((20, 84, 84), np.dtype(np.uint8))
    >>> third.__array_interface__["data"] == place
    True

    A block of memory is a NumPy array, and every array and tensor on it holds a reference to it: Python's own count of
    references says whether there are any. Blocks are kept for two batches, since while one is made, the one before
    often still has a name. Several threads may use it at once: a block is taken out before it is looked at.

    At most :attr:`MAX_NBYTES` are kept; the memory of larger batches is freed with them.
    """

    #: Arrays below this come from memory that the allocator does not give back.
    MIN_NBYTES = 128 * 1024
    #: What is kept at most: enough for batches of 1024 transitions of four frames of 84 by 84 pixels.
    MAX_NBYTES = 128 * 1024 * 1024

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[int, NDArray[np.uint8]]] = {}  # with the last batch each was used in, by id
        self._batch = 0

    @property
    def nbytes(self) -> int:
        """The memory that is kept for later batches, in bytes; a batch that somebody still has may be on it."""
        return sum(block.nbytes for _, block in [*self._blocks.values()])

    def begin_batch(self) -> None:
        """Say that the arrays handed out from here on belong to another batch."""
        self._batch += 1
        for key, (last_batch, _) in list(self._blocks.items()):
            if last_batch < self._batch - 2:
                self._blocks.pop(key, None)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array as :func:`numpy.empty` does."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < self.MIN_NBYTES or not REFERENCES_ARE_COUNTED:
            return np.empty(shape, dtype=dtype)
        block = self._take(nbytes)
        if block is None:
            if self.nbytes + nbytes > self.MAX_NBYTES:
                return np.empty(shape, dtype=dtype)
            block = np.empty(nbytes, dtype=np.uint8)
        array: NDArray[Any] = np.ndarray(shape, dtype, block)  # refers to it
        self._blocks[id(block)] = self._batch, block
        return array

    def _take(self, nbytes: int) -> NDArray[np.uint8] | None:
        for key in reversed(list(self._blocks)):  # the last used first, so that what is not needed goes unused
            entry = self._blocks.pop(key, None)
            if entry is None:  # another thread has it
                continue
            last_batch, block = entry
            del entry
            if nbytes <= block.nbytes <= 2 * nbytes and sys.getrefcount(block) <= UNSHARED:
                return block
            self._blocks[key] = last_batch, block
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchPool, ()  # pickles and copies begin with none


def _count_of_unshared() -> int:
    block = np.empty(0)
    return sys.getrefcount(block)


#: What Python counts where a local name is the only one, which is not the same in all versions.
UNSHARED = _count_of_unshared()

REFERENCES_ARE_COUNTED = holds(references_are_counted)
"""Whether Python's count of references to a block says that nobody can see it any more; else none is used again."""
