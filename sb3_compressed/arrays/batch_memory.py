"""``BatchMemory``: memory for batches that is used again once nobody refers to the batch before.

A batch of images is so large that C's allocator gives its memory back to the operating system and asks for it anew each
time, and the first touch of each new page takes about as long as decoding what is written there.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import weakref
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BatchMemory"]


class BatchMemory:
    """Hands out uninitialised arrays; their memory comes back when the last array or tensor on it is gone.

    >>> memory = BatchMemory()
    >>> first = memory.empty((2, 84, 84), np.dtype(np.uint8))
    >>> place = first.ctypes.data
    >>> view = first[1]
    >>> del first
    >>> memory.empty((2, 84, 84), np.dtype(np.uint8)).ctypes.data == place  # the view still refers to it
    False
    >>> del view
    >>> memory.empty((2, 84, 84), np.dtype(np.uint8)).ctypes.data == place
    True

    What is kept for later is at most one batch: the arrays handed out since :meth:`begin_batch`. Several threads may
    use it at once; each block is handed out once.
    """

    #: Arrays below this come from memory that the allocator does not give back.
    MIN_NBYTES = 128 * 1024

    def __init__(self) -> None:
        self._free: list[NDArray[np.uint8]] = []
        self._lent: dict[int, weakref.ref[Any]] = {}  # by the id of the block
        self._batch_nbytes = 0  # of this batch
        self._keep_nbytes = 0  # of a whole batch

    def begin_batch(self) -> None:
        """Say that the arrays handed out from here on belong to another batch."""
        self._keep_nbytes = self._batch_nbytes
        self._batch_nbytes = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array as :func:`numpy.empty` does."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < self.MIN_NBYTES:
            return np.empty(shape, dtype=dtype)
        self._batch_nbytes += nbytes
        block = self._take(nbytes)
        # Every array and tensor on the block refers, by way of the first one, to this object.
        loan = _loan_type(nbytes).from_buffer(block)
        key = id(block)
        self._lent[key] = weakref.ref(loan, lambda _: self._give_back(key, block))
        return np.ndarray(shape, dtype, loan)

    def _take(self, nbytes: int) -> NDArray[np.uint8]:
        for position, block in enumerate(self._free):
            if nbytes <= block.nbytes <= 2 * nbytes:
                with contextlib.suppress(IndexError):  # another thread may be faster, and this one get another block
                    taken = self._free.pop(position)
                    if nbytes <= taken.nbytes:
                        return taken
                break
        return np.empty(nbytes, dtype=np.uint8)

    def _give_back(self, key: int, block: NDArray[np.uint8]) -> None:
        del self._lent[key]
        self._free.append(block)
        kept = max(self._keep_nbytes, self._batch_nbytes)
        while sum(free.nbytes for free in self._free) > kept and self._free:
            del self._free[:1]  # a slice, since another thread may be faster

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchMemory, ()  # pickles and copies begin with none


@lru_cache(maxsize=16)
def _loan_type(nbytes: int) -> Any:
    """Return a type of objects that stand for the memory they are made from, as ``memoryview``, and can be watched."""
    return type("Loan", (ctypes.c_ubyte * nbytes,), {})
