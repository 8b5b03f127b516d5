"""Resizing replay buffers: the newest rows that fit stay, the oldest of them in the first row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.samplers.episode_table import EpisodeTable

__all__ = ["RingResize", "rows_by_age"]


def rows_by_age(pos: int, rows: int, *, full: bool) -> NDArray[np.int64]:
    """Return the rows of a ring that are written, the oldest first."""
    return np.roll(np.arange(rows), -pos) if full else np.arange(pos)


class RingResize:
    """Which rows of a ring come to which rows of another.

    :param pos: the row of the old ring that is written next
    :param old: number of rows of the old ring
    :param new: number of rows of the new ring
    :param full: whether all rows of the old ring are written
    :param looks_ahead: whether the next observation of a row is the observation of the following row, as in SB3 with
        ``optimize_memory_usage``; then the row to be written next contains that of the newest, and no transition
    """

    def __init__(self, pos: int, old: int, new: int, *, full: bool, looks_ahead: bool = False) -> None:
        kept = rows_by_age(pos, old, full=full)
        if looks_ahead:
            kept = (kept[1:] if full else kept)[-(new - 1) :] if new > 1 else kept[:0]
        #: The old rows that are kept, in the order of the new ones, from row 0 on.
        self.kept = kept[-new:]
        n_kept = len(self.kept)
        self.pos, self.full = n_kept % new, n_kept == new
        self._ahead = (pos, n_kept) if looks_ahead else None
        self._old_pos, self._n_rows = pos, new
        self._new_row = np.full(old, -1)
        self._new_row[self.kept] = np.arange(n_kept)

    def moved(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array of the old ring as one of the new ring, whose other rows are zeros."""
        result = np.zeros((self._n_rows, *array.shape[1:]), array.dtype)
        result[: len(self.kept)] = array[self.kept]
        return result

    def copy_arrays(self, old: Mapping[str, NDArray[Any]], new: Mapping[str, NDArray[Any]]) -> None:
        """Copy arrays of the old ring to those of the new one, which are zeros."""
        for name, array in old.items():
            if array.ndim == 1:  # one element for each environment
                new[name][...] = array
                continue
            new[name][: len(self.kept)] = array[self.kept]
            if self._ahead and name.startswith("observations"):
                new[name][self._ahead[1]] = array[self._ahead[0]]
        if (episodes := EpisodeTable.among(new)) is not None:
            episodes.renumber(self._new_row, len(self.kept), self._old_pos, self.pos)
