"""``FolderSlotStore``: slots in the log of a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from sb3_compressed.arrays.memory_estimate import MemoryEstimate, estimate_memory, tables_nbytes
from sb3_compressed.arrays.slot_reader import accepted_codec
from sb3_compressed.arrays.slot_store import SlotStore
from sb3_compressed.codecs import Codec, TrainableCodec

__all__ = ["FolderSlotStore"]


class FolderSlotStore(SlotStore):
    """Slots on disk; in memory are only the tables."""

    is_in_memory = False

    def for_codec(self, codec: Codec) -> FolderSlotStore:
        """Return this store for an array with a codec."""
        other = FolderSlotStore.__new__(FolderSlotStore)
        other.__dict__.update(self.__dict__, codec=accepted_codec(codec))
        return other

    def watch(self, table: NDArray[Any]) -> None:
        """Do nothing: the log keeps what is stored."""

    def free_unused(self, n_references: int | None = None) -> None:
        """Do nothing: files that are not used are deleted at snapshots."""

    def nbytes(self, *tables: NDArray[Any]) -> int:
        """Return the memory of tables, in bytes; the slots are on disk."""
        return tables_nbytes(tables)

    def codecs(self) -> Iterable[TrainableCodec]:
        """Return nothing: codecs are on disk as well."""
        return ()

    def estimate(self, tables: Sequence[NDArray[Any]], begin: int, n_rows: int, max_slots: int) -> MemoryEstimate:
        """Estimate the sizes of slots; see :meth:`.SlotStore.estimate`."""
        return replace(
            estimate_memory(partial(self.gather, n_frames=0), tables, begin, n_rows, max_slots),
            nbytes=tables_nbytes(tables),
        )
