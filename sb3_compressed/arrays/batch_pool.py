"""Memory for decoded observations: checked against what is available, pinned for CUDA, and reused by ``BatchPool``.

A batch of images is so large that C's allocator returns its memory to the operating system and requests it anew each
time, and the first touch of each new page takes about as long as decoding what is written there.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.common.memory import available_memory, keep_freed_memory

__all__ = ["ALIGNMENT", "BatchPool", "Empty", "checked_empty"]

Empty = Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]
"""Returns an uninitialized array, as :func:`numpy.empty` does."""

Entry = tuple[int, NDArray[np.uint8]]
"""The last batch that used a block of memory, and the block."""

#: The memory of PyTorch's tensors begins at a multiple of so many bytes, and so do blocks.
ALIGNMENT = 64
#: Smaller arrays do not check the available memory.
MIN_CHECKED_NBYTES = 1 << 28
#: Larger arrays are not pinned, since PyTorch never frees pinned memory: it is enough for 2048 observations of four
#: frames of 84 by 84 pixels.
MAX_PINNED_NBYTES = 64 * 1024 * 1024


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


def empty_pinned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:  # pragma: no cover  # needs CUDA
    """Return an uninitialized array in pinned memory, from which CUDA devices copy in the background.

    PyTorch's allocator reuses such memory once nothing refers to it and all copies from it are complete
    (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-pinning).
    """
    import torch as th

    nbytes = math.prod(shape) * dtype.itemsize
    if not 0 < nbytes <= MAX_PINNED_NBYTES:
        return checked_empty(shape, dtype)
    pinned: NDArray[np.uint8] = th.empty(nbytes, dtype=th.uint8, device="cpu", pin_memory=True).numpy()
    return pinned.view(dtype).reshape(shape)


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
    while the next one is sampled.

    At most :attr:`MAX_NBYTES` are kept; the memory of larger batches is freed with them.

    :param n_kept: number of batches that blocks are kept for
    """

    #: The allocator keeps the memory of smaller arrays anyway.
    MIN_NBYTES = 128 * 1024
    #: Enough for two batches of 32 sequences of 120 observations of four frames of 84 by 84 pixels.
    MAX_NBYTES = 256 * 1024 * 1024

    def __init__(self, n_kept: int = 2) -> None:
        self._n_kept = n_kept
        self._blocks: dict[int, Entry] = {}  # by the id of the block
        self._n_batches = 0
        keep_freed_memory()  # for what the training allocates itself

    @property
    def nbytes(self) -> int:
        """The memory that is kept for later batches, in bytes, including that of batches in use."""
        return sum(block.nbytes for _, block in [*self._blocks.values()])

    def begin_batch(self, device: str = "cpu") -> Empty:
        """Begin a batch, and free the memory that the last ones did not use.

        :param device: the type of the device that it is copied to
        :return: a function that allocates its memory
        """
        if device == "cuda":  # pragma: no cover  # needs CUDA
            return empty_pinned
        self._n_batches += 1
        for key, (last_batch, _) in list(self._blocks.items()):
            if last_batch < self._n_batches - self._n_kept:
                self._blocks.pop(key, None)
        return self.empty

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array as :func:`numpy.empty` does."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < self.MIN_NBYTES or not REFERENCES_ARE_COUNTED:
            return checked_empty(shape, dtype)
        for key in reversed(list(self._blocks)):  # the last used first, so that unneeded ones are freed
            entry = self._blocks.pop(key, None)
            if entry is None:  # a handler of a signal, which interrupted this call, has it
                continue
            if nbytes <= entry[1].nbytes - ALIGNMENT <= 2 * nbytes and is_unshared(entry):
                block = entry[1]
                break
            self._blocks[key] = entry
        else:
            if self.nbytes + nbytes > self.MAX_NBYTES:
                return checked_empty(shape, dtype)
            block = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
        # It refers to the block; to a view of it, it would not.
        array: NDArray[Any] = np.ndarray(shape, dtype, block, offset=-block.ctypes.data % ALIGNMENT)
        self._blocks[id(block)] = self._n_batches, block
        return array

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchPool, () if self._n_kept == 2 else (self._n_kept,)  # pickles and copies have no memory


def is_unshared(entry: Entry) -> bool:
    """Return whether nothing but its entry refers to a block.

    A count includes temporary references, whose number differs between versions of Python and with debuggers, and since
    3.14 it does not include every variable. So the block is compared with one that nothing else can refer to, and no
    variable refers to either.
    """
    unshared = 0, np.empty(0, np.uint8)
    return sys.getrefcount(entry[1]) <= sys.getrefcount(unshared[1])


def references_are_counted() -> bool:
    """Return whether Python immediately counts all references to an array, including those of views on it."""
    entry = 0, np.empty(64, dtype=np.uint8)
    holders: list[object] = [np.ndarray((8, 8), np.uint8, entry[1])]
    unshared = [is_unshared(entry)]
    for make_holder in (
        lambda: holders[0][2:4],  # type: ignore[index]
        lambda: np.ndarray((2, 4), np.float64, entry[1]).reshape(-1).view(np.int64),
        lambda: entry[1].data,
        lambda: np.asarray(entry[1].data[8:]),
        lambda: [entry[1]],
    ):
        holders.append(make_holder())
        del holders[0]
        unshared.append(is_unshared(entry))
    holders.clear()
    return not any(unshared) and is_unshared(entry)


FORCE_FALLBACKS = os.environ.get("SB3_COMPRESSED_FORCE_FALLBACKS", "0") not in ("", "0")
"""Whether batches always get new memory, for tests."""
REFERENCES_ARE_COUNTED = not FORCE_FALLBACKS and references_are_counted()
"""Whether Python's reference counts show that a block is unused; otherwise none is reused."""
