"""Memory for segments: maps of their own, a few of which are reused.

A ring frees a segment whenever it has begun another one, and a rollout buffer frees all of them after each rollout. The
first touch of each page of new memory would take longer than what is written there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.batch_pool import REFERENCES_ARE_COUNTED, is_unshared
from sb3_compressed.common.memory import mapped_memory

__all__ = ["keep_block", "new_block"]

#: The most bytes that are kept, in the whole process.
MAX_KEPT_NBYTES = 16 << 20

_kept: list[NDArray[np.uint8]] = []


def new_block(nbytes: int) -> NDArray[np.uint8]:
    """Return uninitialized memory of at least so many bytes, at least 1.

    :raises MemoryError: if there is not enough memory
    """
    if nbytes <= MAX_KEPT_NBYTES:  # few sizes, so that blocks that were freed fit
        step = 1 << max(nbytes.bit_length() - 4, 12)
        nbytes = -(-nbytes // step) * step
    for _ in range(len(_kept)):
        try:
            entry = 0, _kept.pop()  # the last one first, since it may still be in the cache
        except IndexError:  # a handler of a signal has taken it
            break
        if entry[1].size == nbytes and is_unshared(entry):
            return entry[1]
        _kept.insert(0, entry[1])
    return mapped_memory(nbytes)


def keep_block(block: NDArray[np.uint8]) -> None:
    """Reuse a block of :func:`new_block` as soon as nothing refers to it, unless too many bytes are kept already."""
    if REFERENCES_ARE_COUNTED and block.size <= MAX_KEPT_NBYTES:
        _kept.append(block)
        while sum(each.size for each in [*_kept]) > MAX_KEPT_NBYTES:
            _kept.pop(0)
