"""The state of a buffer in one of another size: the newest that fits, the oldest in the first row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.errors import CorruptStorage
from sb3_compressed.storage.chunks import row_chunks

__all__ = ["EPISODE_BEGINS", "Resized", "check_episodes", "rows_by_age"]

EPISODE_BEGINS = "_current_ep_start"


def rows_by_age(pos: int, rows: int, *, full: bool) -> NDArray[np.int64]:
    """Return the rows of a ring that are written, the oldest first."""
    return np.roll(np.arange(rows), -pos) if full else np.arange(pos)


def check_episodes(arrays: Mapping[str, Any], rows: int, what: str) -> None:
    """Raise if hindsight's episodes are not within the rows of a ring.

    :param what: what to name in the message
    :raises CorruptStorage: naming the array
    """
    for name, most in (("ep_start", rows - 1), ("ep_length", rows), (EPISODE_BEGINS, rows - 1)):
        for part in row_chunks(arrays[name]) if name in arrays and rows else ():
            values = arrays[name][part]
            if values.min(initial=0) < 0 or values.max(initial=0) > most:
                raise CorruptStorage(f"{what}: {name} must be from 0 to {most}, got {values.min()} to {values.max()}")


class Resized:
    """Where the rows of one ring are in another.

    :param pos: where the old ring is written next
    :param full: whether all of its rows are written
    :param old: rows of the old ring
    :param new: rows of the new one
    :param looks_ahead: whether the next observation of a row is the observation of the row behind it, as SB3 has it
        with ``optimize_memory_usage``; then the row to be written next holds that of the newest, and no transition
    """

    def __init__(self, pos: int, old: int, new: int, *, full: bool, looks_ahead: bool = False) -> None:
        kept = rows_by_age(pos, old, full=full)
        if looks_ahead:
            kept = (kept[1:] if full else kept)[-(new - 1) :] if new > 1 else kept[:0]
        #: The old rows that are kept; they come to the first new ones, in this order.
        self.kept = kept[-new:]
        n_kept = len(self.kept)
        self.pos, self.full = n_kept % new, n_kept == new
        self._ahead = (pos, n_kept) if looks_ahead else None
        self._old_pos = pos
        self._new_row = np.full(old, -1)
        self._new_row[self.kept] = np.arange(n_kept)

    def arrays(self, old: Mapping[str, NDArray[Any]], new: Mapping[str, NDArray[Any]]) -> None:
        """Copy arrays of the old ring to those of the new one, which are zeros."""
        for name, array in old.items():
            if name == EPISODE_BEGINS:
                # An episode begins with the next row, or with one that is kept, or lost its beginning.
                begins = np.where(array == self._old_pos, self.pos, np.maximum(self._new_row[array], 0))
                new[name][...] = begins
                continue
            new[name][: len(self.kept)] = array[self.kept]
            if self._ahead and name.startswith("observations"):
                new[name][self._ahead[1]] = array[self._ahead[0]]
        if "ep_start" in new:
            self._cut_episodes(new["ep_start"][: len(self.kept)], new["ep_length"][: len(self.kept)])

    def _cut_episodes(self, start: NDArray[Any], length: NDArray[Any]) -> None:
        """Say of hindsight's episodes where they begin now; one whose beginning is gone cannot be sampled from."""
        start[...] = self._new_row[start]
        is_cut = start < 0
        start[is_cut], length[is_cut] = 0, 0
