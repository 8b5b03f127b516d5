"""``ChangeFlags``: which slots of an array were written."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ChangeFlags"]


class ChangeFlags:
    """Records which slots of an array were written.

    Writes of encoded rows, with :meth:`.CompressedArray.write_encoded`, set :attr:`added`; all others are
    direct writes and set :attr:`flags`. After :meth:`track`, both are the same array; after
    :meth:`track_direct_writes`, writes of encoded rows are not recorded.

    :ivar added: the flags to set for encoded rows, ``(rows, n_envs)``; ``None`` if these changes are not tracked
    """

    def __init__(self) -> None:
        self.added: NDArray[np.bool_] | None = None
        self._own: NDArray[np.bool_] | None = None
        self._lazy_shape: tuple[int, ...] | None = None

    @property
    def flags(self) -> NDArray[np.bool_] | None:
        """The flags to set for direct writes, ``(rows, n_envs)``; ``None`` if changes are not tracked."""
        if self._own is None and self._lazy_shape is not None:
            self._own = np.zeros(self._lazy_shape, dtype=np.bool_)
        return self._own

    def mark(self, slot_index: Any) -> None:
        """Set the flags of slots, before they are written, so that no interrupt loses a change."""
        if (flags := self.flags) is not None:
            flags[slot_index] = True

    def track(self, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Return new flags of a shape that all writes set from now on."""
        self._own = self.added = np.zeros(shape, dtype=np.bool_)
        return self._own

    def track_direct_writes(self, shape: tuple[int, ...]) -> None:
        """Track direct writes only, in flags that take no memory before the first one."""
        self._own, self.added, self._lazy_shape = None, None, shape

    def take_rows(self) -> NDArray[np.int64]:
        """Return the rows that are set, and reset the flags."""
        flags, self._own = self._own, None
        return np.zeros(0, np.int64) if flags is None else np.flatnonzero(flags.any(axis=1))
