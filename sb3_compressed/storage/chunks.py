"""Going through large arrays piece by piece: memory that was never written to stays untouched, and takes none.

An array of zeros takes memory where it is written to only. A folder may declare many rows of which few are written, so
what goes through all of them must neither write to the others nor make a copy of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["addresses_in", "copy_changed", "row_chunks", "segments_of"]

CHUNK_NBYTES = 1 << 20


def row_chunks(array: Any, nbytes: int = CHUNK_NBYTES) -> Iterator[slice]:
    """Yield slices of the rows of an array, each of about so many bytes."""
    n_rows = max(1, nbytes // max(1, array[:1].nbytes))
    for first in range(0, len(array), n_rows):
        yield slice(first, min(first + n_rows, len(array)))


def copy_changed(source: NDArray[Any], target: Any) -> None:
    """Copy an array to another one of its shape and dtype, but for pieces that are equal already, bit for bit."""
    for rows in row_chunks(source):
        part = source[rows]
        if part.tobytes() != np.asarray(target[rows]).tobytes():
            target[rows] = part


def addresses_in(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the different addresses in a table, sorted; 0, which stands for none, is not among them."""
    found = [np.unique(table[rows]) for rows in row_chunks(table) if table[rows].any()]
    addresses = np.unique(np.concatenate([np.zeros(1, np.int64), *found]))
    without_none: NDArray[np.int64] = addresses[1:] if addresses[0] == 0 else addresses[addresses != 0]
    return without_none


def segments_of(table: NDArray[np.int64]) -> set[int]:
    """Return the numbers of the segments that the addresses in a table are in."""
    found: set[int] = set()
    for rows in row_chunks(table):
        part = table[rows]
        if part.any():
            found.update(np.unique(part[part != 0] >> 32).tolist())
    return found
