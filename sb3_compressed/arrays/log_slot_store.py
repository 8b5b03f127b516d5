"""``LogSlotStore``: slots in a log; see :mod:`sb3_compressed.arrays.slot_log` for the format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.memory_estimate import MemoryEstimate, estimate_memory, tables_nbytes
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_log import SlotLog, slot_kernels
from sb3_compressed.arrays.slot_reader import SlotReader
from sb3_compressed.arrays.slot_store import AcceptedCodec, accepted_codec
from sb3_compressed.arrays.slot_writer import SlotWriter
from sb3_compressed.codecs import Codec, TrainableCodec

__all__ = ["LogSlotStore"]

LogType = TypeVar("LogType", bound=SlotLog)


class LogSlotStore(Generic[LogType]):
    """Slots in a log. A reference is an address, a table an array of int64.

    :param log: the log
    :param codec: slots of codecs of other names are refused; ``None`` to read those of every trainable codec
    """

    unwritten: NDArray[Any] = np.array(0, dtype=np.int64)
    is_in_memory = False

    def __init__(self, log: LogType, codec: AcceptedCodec | None = None) -> None:
        self.log = log
        self.reader = SlotReader(log)
        self.writer = SlotWriter(log, self.reader)
        self.codec = codec
        self.write, self.append = self.writer.write, self.writer.append

    @staticmethod
    def prepare() -> None:
        """Import and compile everything that writing and reading need, rather than at the first step of a training."""
        slot_kernels()

    def for_codec(self, codec: Codec) -> LogSlotStore[LogType]:
        """Return this store for an array with a codec."""
        other: LogSlotStore[LogType] = LogSlotStore.__new__(LogSlotStore)
        other.__dict__.update(self.__dict__, codec=accepted_codec(codec))
        return other

    def free_unused(self) -> None:
        """Do nothing: a folder deletes files that are not used."""

    def close_if_large(self) -> None:
        """Do nothing: a folder is not for rollouts."""

    def new_table(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Return a table of unwritten slots."""
        return np.zeros(shape, dtype=np.int64)

    def watch(self, table: NDArray[np.int64]) -> None:
        """Do nothing: the log keeps what is stored."""

    @property
    def state(self) -> object:
        """What changes when references may become invalid; see :attr:`SlotStore.state`."""
        return self.writer.state

    def read(
        self, references: NDArray[np.int64], layout: FrameLayout | None, out: NDArray[Any], num_threads: int = 1
    ) -> None:
        """Decode slots into ``out``; see :meth:`SlotStore.read`."""
        n_frames = 1 if layout is None else layout.n_frames
        batch = self.reader.gather(np.ascontiguousarray(references), n_frames, self.codec)
        decode(batch, layout, out, num_threads)

    def gather(self, references: NDArray[np.int64], n_frames: int) -> PayloadBatch:
        """Return the payloads of slots; see :meth:`SlotStore.gather`."""
        return self.reader.gather(np.ascontiguousarray(references), n_frames, self.codec)

    def load(self, references: NDArray[np.int64]) -> NDArray[Any]:
        """Return slots as an object array ``(n,)``; see :meth:`SlotStore.load`."""
        return self.reader.load(references, self.codec)

    def nbytes(self, *tables: NDArray[Any]) -> int:
        """Return the memory that tables take, in bytes; the slots are on disk."""
        return tables_nbytes(tables)

    def codecs(self) -> Iterable[TrainableCodec]:
        """Return nothing: codecs are on disk as well."""
        return ()

    def estimate(self, tables: Sequence[NDArray[Any]], begin: int, n_rows: int, max_slots: int) -> MemoryEstimate:
        """Estimate the sizes of slots; see :func:`~.memory_estimate.estimate_memory`. In memory are only the tables."""
        return replace(estimate_memory(self.load, tables, begin, n_rows, max_slots), nbytes=tables_nbytes(tables))
