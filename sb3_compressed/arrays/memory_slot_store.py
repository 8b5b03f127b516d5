"""``MemorySlotStore``: slots as Python objects in memory, the store that arrays have by default."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.codec_handle import codec_of
from sb3_compressed.arrays.decoding import decode, payload_kernels
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.memory_estimate import MemoryEstimate, estimate_memory, slots_nbytes, tables_nbytes
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_store import AcceptedCodec, Slot, accepted_codec
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CorruptPayload

__all__ = ["MemorySlotStore", "gather_in_python"]


class MemorySlotStore:
    """Slots in memory. A reference is the slot itself, a table an object array.

    The Python objects are all there is: a payload is freed with the last slot that contains it, a codec with the last
    payload that it wrote, and ring buffers overwrite slots without any bookkeeping.

    :param codec: payloads of other classes of codecs are refused
    """

    unwritten: NDArray[Any] = np.array(None, dtype=object)

    def __init__(self, codec: Codec) -> None:
        self.codec = accepted_codec(codec)

    def new_table(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a table of unwritten slots."""
        return np.empty(shape, dtype=object)

    def write(self, slots: Sequence[Slot]) -> NDArray[Any]:
        """Return references to slots, ``(n,)``."""
        # fromiter, since NumPy would make a second axis of tuples of one length.
        return np.fromiter(slots, object, len(slots))

    def read(
        self, references: NDArray[Any], layout: FrameLayout | None, out: NDArray[Any], num_threads: int = 1
    ) -> None:
        """Decode slots into ``out``; see :meth:`SlotStore.read`."""
        decode(self.gather(references, 1 if layout is None else layout.n_frames), layout, out, num_threads)

    def gather(self, references: NDArray[Any], n_frames: int) -> PayloadBatch:
        """Return the payloads of slots; see :meth:`SlotStore.gather`."""
        kernels = payload_kernels()
        if not kernels.LAYOUT_IS_KNOWN:
            return gather_in_python(references, self.codec, n_frames)
        if not references.flags.c_contiguous:
            references = references.copy()
        n_slots = len(references)
        places = np.empty((n_slots * n_frames, 3), dtype=np.int64)
        offsets = np.empty(n_slots + 1, dtype=np.int64)
        found = np.empty((n_slots * n_frames, 3), dtype=np.int64)
        addresses = np.frombuffer(references, dtype=np.int64)  # the memory of an object array
        n_codecs = kernels.locate_payloads(
            addresses, n_frames, int(isinstance(self.codec, Codec)), kernels.TYPE_ADDRESSES, found, offsets, places
        )
        if n_codecs < 0:
            return gather_in_python(references, self.codec, n_frames)  # which names what is wrong
        codecs: list[Codec] = []
        if isinstance(self.codec, Codec):
            codecs = [self.codec]
        else:
            for _, slot, position in found[:n_codecs].tolist():
                codec = codec_of(references[slot][position])
                if type(codec) is not self.codec:
                    return gather_in_python(references, self.codec, n_frames)
                codecs.append(codec)
        return PayloadBatch(codecs, Payloads(places[: int(offsets[-1])], references), n_frames, offsets)

    def load(self, references: NDArray[Any]) -> NDArray[Any]:
        """Return slots as an object array ``(n,)``."""
        return np.array(references, dtype=object)

    def nbytes(self, *tables: NDArray[Any]) -> int:
        """Return the memory that tables and the slots they refer to take, in bytes; shared objects count once."""
        return tables_nbytes(tables) + slots_nbytes(*[table for table in tables if table.flags.writeable])

    def codecs(self, *tables: NDArray[Any]) -> Iterable[TrainableCodec]:
        """Return the different codecs of the payloads in tables."""
        slots = (slot for table in tables for slot in table.ravel().tolist() if type(slot) is tuple)
        handles = {id(part): part for slot in slots for part in slot if type(part) is not bytes}
        return {id(codec): codec for codec in map(codec_of, handles.values())}.values()

    def estimate(self, tables: Sequence[NDArray[Any]], begin: int, n_rows: int, max_slots: int) -> MemoryEstimate:
        """Estimate the memory of tables; see :func:`~.memory_estimate.estimate_memory`."""
        return estimate_memory(self.load, tables, begin, n_rows, max_slots)


def gather_in_python(slots: NDArray[Any], codec: AcceptedCodec | None, n_frames: int) -> PayloadBatch:
    """Return the payloads of slots in memory without the kernel.

    :param slots: object array ``(n,)``
    :param codec: as :attr:`SlotStore.codec`
    :param n_frames: the number of frames of an item
    :raises CorruptPayload: for an invalid slot; ``index`` is its position
    """
    is_trainable = not isinstance(codec, Codec)
    codecs: list[Any] = [] if is_trainable else [codec]
    numbers: dict[int, int] = {}
    payloads: list[bytes] = []
    writers: list[int] = []
    offsets = [0]
    for index, slot in enumerate(slots.tolist()):
        writer = -1 if is_trainable else 0
        if type(slot) not in (bytes, tuple, type(None)):
            raise CorruptPayload(f"a slot cannot be {type(slot).__name__}", index)
        for part in slot if type(slot) is tuple else () if slot is None else (slot,):
            if type(part) is bytes:
                if writer < 0:
                    raise CorruptPayload("it does not name the codec that wrote its payloads", index)
                payloads.append(part)
                writers.append(writer)
                continue
            written_by = codec_of(part)
            if not isinstance(written_by, TrainableCodec) or not (codec is None or type(written_by) is codec):
                name = codec.name if codec else "trainable"
                found = part if written_by is None else written_by
                raise CorruptPayload(f"{found!r} wrote it, and the codec of its array is {name}", index)
            writer = numbers.setdefault(id(written_by), len(codecs))
            codecs += [written_by] * (writer == len(codecs))
        n_payloads = len(payloads) - offsets[-1]
        offsets.append(len(payloads))
        if slot is not None and n_payloads not in (1, n_frames):
            raise CorruptPayload(f"it has {n_payloads} payloads, and items have {n_frames} frames", index)
    return PayloadBatch(codecs, Payloads.of(payloads, np.array(writers, dtype=np.int64)), n_frames, np.array(offsets))
