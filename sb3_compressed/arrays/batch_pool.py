"""``BatchPool``: reused memory for batches, and ``BatchArray``: arrays that own theirs.

A batch of images is so large that C's allocator returns its memory to the operating system and requests it anew each
time, and the first touch of each new page takes about as long as decoding what is written there.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.common.probes import holds, references_are_counted

__all__ = ["Batch", "BatchArray", "BatchPool", "sampling"]


class BatchArray(np.ndarray[Any, Any]):
    """An array of a batch that is being sampled. Views and copies of it do not own its memory.

    :ivar is_owned: whether nothing else refers to its memory, so that a tensor can take it over without a copy
    """

    is_owned = False


@dataclass
class Batch:
    """A batch that a thread is sampling.

    :param empty: returns uninitialized arrays for it, as :func:`numpy.empty` does
    :param partners: by the id of an array, the one that is read with the same index after it
    :param ahead: by the id of an array, what was decoded together with its partner: the index and the items
    :param deferred: ``None`` to decode items when they are read; otherwise, functions that decode what was read so far
    :param owners: with ``deferred``, the arrays that own the memory of these items
    """

    empty: Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]
    partners: Mapping[int, Any] = field(default_factory=dict)
    ahead: dict[int, tuple[tuple[Any, ...], NDArray[Any]]] = field(default_factory=dict)
    deferred: list[Callable[[], None]] | None = None
    owners: list[BatchArray] = field(default_factory=list)

    def own(self, array: NDArray[Any]) -> BatchArray:
        """Return an array of this batch as the owner of its memory."""
        owner: BatchArray = array.view(BatchArray)
        owner.is_owned = True
        if self.deferred is not None:
            self.owners.append(owner)
        return owner

    def decode(self, decode: Callable[[], None]) -> None:
        """Decode items of an array that :meth:`own` returns, now or when the rest of the batch is complete."""
        if self.deferred is None:
            decode()
        else:
            self.deferred.append(decode)

    def require_untouched(self) -> None:
        """Raise if anything but a tensor took over arrays that are not decoded yet.

        :raises RuntimeError: then, since their values may have been used
        """
        if any(owner.is_owned for owner in self.owners):
            raise RuntimeError(
                "observations were used before the batch was complete, so they cannot be prefetched; pass prefetch=0"
            )


class _Sampling(threading.local):
    """The batch that each thread is sampling.

    :ivar deferred: as for :class:`Batch`, for all batches that the thread begins
    """

    batch: Batch | None = None
    deferred: list[Callable[[], None]] | None = None


sampling = _Sampling()


class BatchPool:
    """Returns uninitialized arrays and reuses their memory when the last array or tensor on it is gone.

    >>> pool = BatchPool()
    >>> first = pool.empty((20, 84, 84), np.dtype(np.uint8))
    >>> address = first.__array_interface__["data"]
    >>> view = first[1]
    >>> del first
    >>> second = pool.empty((20, 84, 84), np.dtype(np.uint8))
    >>> second.__array_interface__["data"] == address  # the view still refers to it
    False
    >>> del view
    >>> third = pool.empty((20, 84, 84), np.dtype(np.uint8))
    >>> third.__array_interface__["data"] == address
    True

    A block of memory is a NumPy array, to which every array and tensor on it holds a reference: Python's reference
    count shows whether there are any. Blocks are kept for two batches, since the previous batch often still has a name
    while the next one is sampled. Several threads may use a pool at once: a block is taken out before it is examined.

    At most :attr:`MAX_NBYTES` are kept; the memory of larger batches is freed with them.

    :param n_kept: number of batches that blocks are kept for, more if batches are prefetched
    """

    #: The allocator keeps the memory of smaller arrays anyway.
    MIN_NBYTES = 128 * 1024
    #: Enough for two batches of 32 sequences of 120 observations of four frames of 84 by 84 pixels.
    MAX_NBYTES = 256 * 1024 * 1024

    def __init__(self, n_kept: int = 2) -> None:
        self._n_kept = n_kept
        self._blocks: dict[int, tuple[int, NDArray[np.uint8]]] = {}  # by id, with the last batch that used each
        self._n_batches = 0

    @property
    def nbytes(self) -> int:
        """The memory that is kept for later batches, in bytes, including that of batches in use."""
        return sum(block.nbytes for _, block in [*self._blocks.values()])

    def begin_batch(self, partners: Mapping[int, Any] | None = None) -> Batch:
        """Begin a batch, and free the memory that the last ones did not use.

        :param partners: see :class:`Batch`
        """
        self._n_batches += 1
        for key, (last_batch, _) in list(self._blocks.items()):
            if last_batch < self._n_batches - self._n_kept:
                self._blocks.pop(key, None)
        return Batch(self.empty, partners or {}, deferred=sampling.deferred)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array as :func:`numpy.empty` does."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < self.MIN_NBYTES or not REFERENCES_ARE_COUNTED:
            return np.empty(shape, dtype=dtype)
        for key in reversed(list(self._blocks)):  # the last used first, so that unneeded ones are freed
            entry = self._blocks.pop(key, None)
            if entry is None:  # another thread has it
                continue  # pragma: no cover  # only in a race, which a test with threads may lose
            last_batch, block = entry
            del entry
            if nbytes <= block.nbytes <= 2 * nbytes and sys.getrefcount(block) <= UNSHARED:
                break
            self._blocks[key] = last_batch, block
            del block
        else:
            if self.nbytes + nbytes > self.MAX_NBYTES:
                return np.empty(shape, dtype=dtype)
            block = np.empty(nbytes, dtype=np.uint8)
        array: NDArray[Any] = np.ndarray(shape, dtype, block)  # refers to it
        self._blocks[id(block)] = self._n_batches, block
        return array

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchPool, () if self._n_kept == 2 else (self._n_kept,)  # pickles and copies have no memory


def _count_of_unshared() -> int:
    block = np.empty(0)
    return sys.getrefcount(block)


#: Python's reference count of an object with one local name, which differs between versions.
UNSHARED = _count_of_unshared()

REFERENCES_ARE_COUNTED = holds(references_are_counted)
"""Whether Python's reference counts show that a block is unused; otherwise none is reused."""
