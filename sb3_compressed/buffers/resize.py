"""The state of a buffer in one of another size: the newest that fits, the oldest in the first row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Resized", "rows_by_age"]


def rows_by_age(pos: int, rows: int, *, full: bool) -> NDArray[np.int64]:
    """Return the rows of a ring that are written, the oldest first."""
    return np.roll(np.arange(rows), -pos) if full else np.arange(pos)


class Resized:
    """Where the rows of one ring are in another.

    :param pos: where the old ring is written next
    :param full: whether all of its rows are written
    :param old: rows of the old ring
    :param new: rows of the new one
    """

    def __init__(self, pos: int, old: int, new: int, *, full: bool) -> None:
        #: The old rows that are kept; they come to the first new ones, in this order.
        self.kept = rows_by_age(pos, old, full=full)[-new:] if new else np.arange(0)
        self.pos, self.full = len(self.kept) % max(new, 1), len(self.kept) == new
        self._new_row = np.full(old, -1)
        self._new_row[self.kept] = np.arange(len(self.kept))

    def arrays(self, old: Mapping[str, NDArray[Any]], new: Mapping[str, NDArray[Any]]) -> None:
        """Copy arrays of the old ring to those of the new one, which are zeros."""
        for name, array in old.items():
            if name == "_current_ep_start":
                new[name][...] = np.maximum(self._new_row[array], 0)
            else:
                new[name][: len(self.kept)] = array[self.kept]
        if "ep_start" in new:
            self._cut_episodes(new["ep_start"][: len(self.kept)], new["ep_length"][: len(self.kept)])

    def _cut_episodes(self, start: NDArray[Any], length: NDArray[Any]) -> None:
        """Say of hindsight's episodes where they begin now; one whose beginning is gone cannot be sampled from."""
        start[...] = self._new_row[start]
        is_cut = start < 0
        start[is_cut], length[is_cut] = 0, 0
