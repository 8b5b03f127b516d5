"""``MemorySlotStore``: slots in memory, the store that arrays have by default."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.memory_estimate import MemoryEstimate, estimate_memory, tables_nbytes
from sb3_compressed.arrays.memory_log import MemoryLog
from sb3_compressed.arrays.slot_store import SlotStore
from sb3_compressed.arrays.slots import AcceptedCodec, Slot, accepted_codec
from sb3_compressed.codecs import Codec, TrainableCodec

__all__ = ["MemorySlotStore"]

#: Slots that are moved in one call.
SLOTS_PER_WRITE = 1024


class MemorySlotStore(SlotStore):
    """Slots in a :class:`~.memory_log.MemoryLog`.

    :param codec: the codec of an array
    """

    is_in_memory = True
    log: MemoryLog

    def __init__(self, codec: Codec) -> None:
        super().__init__(MemoryLog(), accepted_codec(codec))

    def watch(self, table: NDArray[np.int64]) -> None:
        """Keep the slots that an array refers to as long as it lives, like those of tables."""
        self.log.watch(table)

    def free_unused(self) -> None:
        """Free the memory of slots that no table refers to; see :meth:`SlotStore.free_unused`."""
        if self.log.has_grown:  # otherwise there is little to free
            self._free_unused()

    def close_if_large(self) -> None:
        """Begin another segment with the next slots unless the last one is small."""
        self.log.close_if_large()

    def write(self, slots: Sequence[Slot]) -> NDArray[np.int64]:
        """Store slots; see :meth:`SlotStore.write`."""
        self.log.has_grown = True  # by what the writer caches, too
        return super().write(slots)

    def _free_unused(self) -> None:
        if sparse := self.log.free_unused():
            self._move_slots(sparse)
            self.log.free_unused()
        self.writer.clear_cache()
        self.reader.drop_cached(self.log.segments)  # which keeps the memory of segments alive

    def _move_slots(self, segments: Sequence[int]) -> None:
        """Move the slots of some segments to new ones; slots that tables share stay the same."""
        tables = [table.reshape(-1) for table in self.log.live_tables()]  # views, since tables are contiguous
        selected = [np.flatnonzero(np.isin(table >> 32, segments)) for table in tables]
        old = np.unique(np.concatenate([table[index] for table, index in zip(tables, selected, strict=True)]))
        new = np.empty_like(old)
        self.log.close_last()
        for first in range(0, len(old), SLOTS_PER_WRITE):
            part = slice(first, first + SLOTS_PER_WRITE)
            new[part] = self.write([*self.load(old[part])])
        for table, index in zip(tables, selected, strict=True):
            table[index] = new[np.searchsorted(old, table[index])]

    def nbytes(self, *tables: NDArray[Any]) -> int:
        """Return the memory of all slots and codecs, and of tables, in bytes."""
        self._free_unused()
        return self._nbytes(tables)

    def _nbytes(self, tables: Sequence[NDArray[Any]]) -> int:
        return self.log.nbytes + sum(codec.nbytes for codec in self.codecs()) + tables_nbytes(tables)

    def codecs(self) -> Iterable[TrainableCodec]:
        """Return the different trained codecs of its payloads."""
        return [codec for codec in self.log.codecs.values() if isinstance(codec, TrainableCodec)]

    def estimate(self, tables: Sequence[NDArray[Any]], begin: int, n_rows: int, max_slots: int) -> MemoryEstimate:
        """Return the memory of tables; see :func:`~.memory_estimate.estimate_memory`."""
        estimate = estimate_memory(self.load, tables, begin, n_rows, max_slots)
        nbytes = self._nbytes(tables)  # without freeing what is unused, which depends on the size of tables
        return replace(estimate, nbytes=nbytes, loaded_nbytes=nbytes, codecs=tuple(self.codecs()))

    def __getstate__(self) -> tuple[MemoryLog, AcceptedCodec | None]:
        return self.log, self.codec

    def __setstate__(self, state: tuple[MemoryLog, AcceptedCodec | None]) -> None:
        SlotStore.__init__(self, *state)
