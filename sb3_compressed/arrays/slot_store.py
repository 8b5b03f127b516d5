"""``SlotStore``: where the slots of arrays are, and what decodes them: the base of the stores in memory and on disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.batch_pool import Empty
from sb3_compressed.arrays.compaction import compaction_kernels
from sb3_compressed.arrays.decoding import decode, payload_kernels
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.memory_estimate import MemoryEstimate
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_copying import SlotCopier, copying_kernels
from sb3_compressed.arrays.slot_log import REFERENCE, KeptSlots, SlotLog, slot_kernels
from sb3_compressed.arrays.slot_reader import AcceptedCodec, SlotReader
from sb3_compressed.arrays.slot_writer import SlotWriter
from sb3_compressed.codecs import TrainableCodec
from sb3_compressed.errors import CorruptPayload

__all__ = ["SlotOf", "SlotStore"]

SlotOf = Callable[[int], tuple[int, ...]]
"""Returns the index of the slot at a position of a batch, for errors."""


class SlotStore(ABC):
    """Slots in a log. Tables ``(rows, n_envs)`` have one reference to a slot for each item: its address in the log.

    Equal references refer to equal slots.

    :param log: the log
    :param codec: the codec, or class of codecs, whose payloads are accepted; ``None`` for every trainable codec
    :cvar unwritten: the reference to a slot that was never written, an array without axes
    :cvar is_in_memory: whether the slots are in memory, where copies and pickles share or contain them
    :ivar writer: appends slots, also those of rows that continue a row
    :cvar is_on_device: whether they are on a device, which decodes batches to tensors
    """

    unwritten: ClassVar[NDArray[Any]] = np.array(0, REFERENCE)
    is_in_memory: ClassVar[bool]
    is_on_device: ClassVar[bool] = False

    def __init__(self, log: SlotLog, codec: AcceptedCodec | None = None) -> None:
        self.log = log
        self.codec = codec
        self.reader = SlotReader(log)
        self.writer = SlotWriter(log, self.reader)

    @property
    def device_nbytes(self) -> int:
        """The memory that it takes on a device, in bytes."""
        return 0

    def new_table(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Return a table of unwritten slots, which keeps the slots that it refers to as long as it lives."""
        table = np.zeros(shape, REFERENCE)
        self.watch(table)
        return table

    @staticmethod
    def prepare() -> None:
        """Import and compile what writing and reading need, rather than at the first step of a training."""
        slot_kernels()
        payload_kernels()
        compaction_kernels()
        copying_kernels()

    @abstractmethod
    def watch(self, table: NDArray[np.int64]) -> None:
        """Keep the slots that an array refers to as long as it lives, like those of tables."""

    def keep_slots(self) -> KeptSlots:
        """Return a block in which references that are in no table stay valid; see :class:`.KeptSlots`."""
        return self.log.keep_slots()

    @abstractmethod
    def free_unused(self, n_references: int | None = None) -> None:
        """Free the memory of slots that no table refers to, so that other references become invalid.

        If most of the memory is unused, since rows were overwritten in another order than they were written, slots are
        moved together, and the references of tables change.

        :param n_references: how many references of tables will be overwritten next: most calls only count them, until
            the memory that may be unused is worth it; ``None`` to free it in any case
        """

    def copier_from(self, source: SlotStore) -> SlotCopier:
        """Return what copies slots of another store to this one, which accepts only those of its codec."""
        return self.writer.copier(source.reader, self.codec)

    def read(
        self,
        references: NDArray[np.int64],
        encoder: FrameEncoder,
        dtype: np.dtype[Any],
        slot_of: SlotOf,
        empty: Empty,
        num_threads: int,
    ) -> Any:
        """Decode slots for a batch.

        :param references: ``(n,)``
        :param encoder: what encoded them
        :param dtype: dtype of the result
        :param slot_of: returns the index of the slot at a position among the references, for the error
        :param empty: allocates memory, as :func:`numpy.empty` does
        :param num_threads: the number of threads that may decode
        :return: a new array ``(n, *item_shape)``; a tensor if the store is on a device
        :raises CorruptPayload: as :meth:`gather`; on a device, if an earlier batch could not be decoded. The error
            names the slot
        :raises MemoryError: if there is not enough memory
        """
        out = empty((len(references), *encoder.item_shape), dtype)
        self.read_into(out, references, encoder, slot_of, num_threads)
        return out

    def read_into(
        self,
        out: NDArray[Any],
        references: NDArray[np.int64],
        encoder: FrameEncoder,
        slot_of: SlotOf | None = None,
        num_threads: int = 1,
    ) -> None:
        """Decode slots into an array; the other arguments are those of :meth:`read`.

        :param out: C-contiguous array ``(n, *item_shape)``
        :raises CorruptPayload: as :meth:`gather`; the error names the slot
        """
        stored = out if out.dtype == encoder.dtype else np.empty(out.shape, encoder.dtype)
        try:
            batch = self.reader.gather(np.ascontiguousarray(references), encoder.n_frames, self.codec)
            decode(batch, encoder.layout, stored, num_threads)
        except CorruptPayload as error:
            slot = None if slot_of is None else slot_of(error.index)
            raise CorruptPayload(error.reason, error.index, slot) from error
        if stored is not out:
            out[...] = stored

    def gather(self, references: NDArray[np.int64], n_frames: int) -> PayloadBatch:
        """Return the payloads of slots.

        :param references: ``(n,)``
        :param n_frames: the number of frames of an item; whole items and unwritten ones are allowed among them
        :raises CorruptPayload: if one is damaged, has another number of payloads, or another codec wrote it; ``index``
            is its position
        """
        return self.reader.gather(np.ascontiguousarray(references), n_frames, self.codec)

    @abstractmethod
    def nbytes(self, *tables: NDArray[Any]) -> int:
        """Return the memory of tables and of the slots of the store, in bytes."""

    @abstractmethod
    def codecs(self) -> Iterable[TrainableCodec]:
        """Return the different trained codecs that it keeps in memory."""

    @abstractmethod
    def estimate(self, tables: Sequence[NDArray[Any]], begin: int, n_rows: int, max_slots: int) -> MemoryEstimate:
        """Estimate the memory of tables from some of their rows, see :func:`~.memory_estimate.estimate_memory`."""
