"""``EpisodeTable``: the episodes of hindsight replay, which samples from complete ones only.

SB3's ``HerReplayBuffer`` has three arrays besides those of every replay buffer. The functions here describe what adding
rows, another size and a repair change in them. No other module but the class of the buffer uses their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.errors import CorruptStorage
from sb3_compressed.storage.chunks import row_chunks

if TYPE_CHECKING:
    from sb3_compressed.storage.commit_writer import Change

__all__ = ["CURRENT", "EPISODE_ARRAYS", "EpisodeTable"]

#: The attributes of SB3's hindsight replay, in the order of the fields of :class:`EpisodeTable`.
EPISODE_ARRAYS = _, LENGTHS, CURRENT = "ep_start", "ep_length", "_current_ep_start"


class EpisodeTable(NamedTuple):
    """The arrays of a ring that contain its episodes; methods change them in place.

    :param starts: the row in which the episode of each transition begins, ``(n_rows, n_envs)``
    :param lengths: the number of its steps, 0 until it is complete, and after its first step was overwritten; likewise
    :param current: the row in which the current episode of each environment begins, ``(n_envs,)``
    """

    starts: NDArray[Any]
    lengths: NDArray[Any]
    current: NDArray[Any]

    @classmethod
    def among(cls, arrays: Mapping[str, Any]) -> EpisodeTable | None:
        """Return the table that is among some arrays, ``None`` if there is none."""
        return cls(*(arrays[name] for name in EPISODE_ARRAYS)) if arrays.keys() >= {*EPISODE_ARRAYS} else None

    @classmethod
    def of(cls, buffer: object) -> EpisodeTable | None:
        """Return the table of a buffer, ``None`` if it has no hindsight replay."""
        starts = getattr(buffer, EPISODE_ARRAYS[0], None)
        return None if starts is None else cls(starts, *(getattr(buffer, name) for name in EPISODE_ARRAYS[1:]))

    @property
    def is_complete(self) -> NDArray[np.bool_]:
        """Which transitions are those of complete episodes, ``(n_rows * n_envs,)``."""
        return self.lengths.reshape(-1) > 0

    def check(self, n_rows: int, what: str) -> None:
        """Raise if episodes are not within the rows of a ring.

        :param what: how the message begins
        :raises CorruptStorage: naming the array
        """
        for name, array, most in zip(EPISODE_ARRAYS, self, (n_rows - 1, n_rows, n_rows - 1), strict=True):
            for rows in row_chunks(array) if n_rows else ():
                values = array[rows]
                if array.dtype.kind != "i" or values.min(initial=0) < 0 or values.max(initial=0) > most:
                    raise CorruptStorage(
                        f"{what}: {name} must be integers from 0 to {most}, got {values.min()} to {values.max()}"
                    )

    def changes_of_row(self, row: int, done: Any) -> list[Change]:
        """Return what adding a row changes besides the row.

        Lengths are set where an episode ends, and to zero where one begins to be overwritten.

        :param done: whether episodes end with it, ``(n_envs,)``
        """
        n_rows = len(self.lengths)
        # SB3 does not take the end modulo the number of rows where an episode wraps around.
        overwritten = np.flatnonzero(self.lengths[row] > 0)
        spans = [(row, int(self.starts[row, env] + self.lengths[row, env]) - row) for env in overwritten]
        begins = [int(self.current[env]) for env in np.flatnonzero(done)]
        spans += [(begin, (row + 1 - begin) % n_rows or n_rows) for begin in begins]
        changes: list[Change] = [(CURRENT, 0, len(self.current))]
        for first, length in spans:
            last = first + min(max(length, 0), n_rows)
            changes.append((LENGTHS, first, min(last, n_rows)))
            if last > n_rows:
                changes.append((LENGTHS, 0, last - n_rows))
        return changes

    def all_changes(self) -> list[Change]:
        """Return that everything has changed."""
        return [(name, 0, len(array)) for name, array in zip(EPISODE_ARRAYS, self, strict=True)]

    def renumber(self, new_rows: NDArray[np.int64], n_kept: int, old_pos: int, new_pos: int) -> None:
        """Change the numbers of rows after they were moved to a ring of another size.

        An episode whose first row is lost cannot be sampled from.

        :param new_rows: the new number of each old row, -1 for those that are lost
        :param n_kept: the number of rows that are kept, from row 0 on
        :param old_pos: the row of the old ring that is written next
        :param new_pos: that of the new ring
        """
        starts, lengths = self.starts[:n_kept], self.lengths[:n_kept]
        starts[...] = new_rows[starts]
        is_cut = starts < 0
        starts[is_cut], lengths[is_cut] = 0, 0
        # The current episode begins with the next row, or with one that is kept, or its beginning is lost.
        self.current[...] = np.where(self.current == old_pos, new_pos, np.maximum(new_rows[self.current], 0))

    def exclude(self, is_damaged: NDArray[np.bool_], pos: int, dones: NDArray[Any]) -> None:
        """Exclude episodes that contain damaged steps; the current ones begin anew if they do.

        :param is_damaged: which transitions are damaged, ``(n_rows, n_envs)``
        :param pos: the row that is written next
        :param dones: nonzero where an episode ends, ``(n_rows, n_envs)``
        """
        n_rows, n_envs = is_damaged.shape
        envs = np.arange(n_envs)
        n_before = np.zeros((2 * n_rows + 1, n_envs), np.int64)  # damaged steps before a row, in two laps of the ring
        np.cumsum(np.concatenate([is_damaged, is_damaged]), axis=0, out=n_before[1:])
        # The array with the current episodes may be damaged, too.
        newest = (pos - 1) % n_rows
        is_open = ~is_damaged[newest] & (self.lengths[newest] == 0) & (dones[newest] == 0)
        begins = np.where(is_open, self.starts[newest], pos)
        ends = begins + (pos - begins) % n_rows
        self.current[...] = np.where(n_before[ends, envs] > n_before[begins, envs], pos, begins)
        has_damage = n_before[self.starts + self.lengths, envs] > n_before[self.starts, envs]
        self.lengths[has_damage | is_damaged] = 0
