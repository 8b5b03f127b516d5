"""``MemorySlotStore``: slots in memory, the store that arrays have by default."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.memory_estimate import MemoryEstimate, estimate_memory, tables_nbytes
from sb3_compressed.arrays.memory_log import MemoryLog
from sb3_compressed.arrays.slot_reader import AcceptedCodec, accepted_codec
from sb3_compressed.arrays.slot_store import SlotStore
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.common.memory import return_freed_memory

__all__ = ["MemorySlotStore"]


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

    def free_unused(self, n_references: int | None = None) -> None:
        """Free the memory of slots that no table refers to; see :meth:`SlotStore.free_unused`."""
        log = self.log
        if n_references is None or log.n_overwritten >= log.n_until_check:
            log.compact()
            self.reader.drop_cached(log.segments)  # which keeps the memory of segments alive
            if freed := log.unpickled - log.segments.keys():
                log.unpickled -= freed
                return_freed_memory()
        if n_references:
            log.n_overwritten += n_references

    def nbytes(self, *tables: NDArray[Any]) -> int:
        """Return the memory of all slots and codecs, and of tables, in bytes."""
        self.free_unused()
        return self._nbytes(tables)

    def _nbytes(self, tables: Sequence[NDArray[Any]]) -> int:
        return self.log.nbytes + sum(codec.nbytes for codec in self.codecs()) + tables_nbytes(tables)

    def codecs(self) -> Iterable[TrainableCodec]:
        """Return the different trained codecs of its payloads."""
        return [codec for codec in self.log.codecs.values() if isinstance(codec, TrainableCodec)]

    def estimate(self, tables: Sequence[NDArray[Any]], begin: int, n_rows: int, max_slots: int) -> MemoryEstimate:
        """Return the memory of tables; see :func:`~.memory_estimate.estimate_memory`."""
        estimate = estimate_memory(partial(self.gather, n_frames=0), tables, begin, n_rows, max_slots)
        nbytes = self._nbytes(tables)  # without freeing what is unused, which depends on the size of tables
        return replace(estimate, nbytes=nbytes, loaded_nbytes=nbytes, codecs=tuple(self.codecs()))

    def __getstate__(self) -> tuple[MemoryLog, AcceptedCodec | None]:
        return self.log, self.codec

    def __setstate__(self, state: tuple[MemoryLog, AcceptedCodec | None]) -> None:
        SlotStore.__init__(self, *state)
