"""Process large arrays in chunks of rows, so that pages that were never written stay unallocated.

The operating system allocates the pages of ``np.zeros`` when they are written. A folder may declare many rows of which
few are written, so code that visits all rows must neither write to the others nor copy the whole array.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["addresses_in", "copy_changed", "row_chunks", "segments_of"]

CHUNK_NBYTES = 1 << 20


def row_chunks(array: Any, nbytes: int = CHUNK_NBYTES) -> Iterator[slice]:
    """Yield slices that cover the rows of an array, each of about ``nbytes`` bytes."""
    n_rows = max(1, nbytes // max(1, array[:1].nbytes))
    for first in range(0, len(array), n_rows):
        yield slice(first, min(first + n_rows, len(array)))


def copy_changed(source: NDArray[Any], target: Any) -> None:
    """Copy an array to another of the same shape and dtype, skipping chunks whose bytes are equal already."""
    for rows in row_chunks(source):
        part = source[rows]
        if part.tobytes() != np.asarray(target[rows]).tobytes():
            target[rows] = part


def addresses_in(*tables: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct addresses in some tables, sorted, without 0, which marks unwritten slots."""
    found = [np.unique(part) for table in tables for part in _written(table)]
    addresses = np.unique(np.concatenate([np.zeros(1, np.int64), *found]))
    written: NDArray[np.int64] = addresses[addresses != 0]
    return written


def segments_of(table: NDArray[np.int64]) -> set[int]:
    """Return the numbers of the segments that the addresses in a table point to."""
    return {number for part in _written(table) for number in np.unique(part[part != 0] >> 32).tolist()}


def _written(table: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the chunks of a table that contain addresses."""
    return (part for rows in row_chunks(table) if (part := table[rows]).any())
