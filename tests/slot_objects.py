"""Slots as Python objects, to compare kernels with, and to write slots that no codec would.

A slot is ``None``, the ``bytes`` of a payload, or a tuple of payloads; if they are of a trainable codec, each codec
precedes the payloads that it wrote: ``(codec, p0, p1)``, or ``(older, p0, newer, p1)`` just after it was trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.encoding import AcceptedCodec
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_copying import SlotCopier
from sb3_compressed.arrays.slot_log import SlotLog
from sb3_compressed.codecs import Codec, TrainableCodec, get_codec
from sb3_compressed.codecs.payloads import Payloads

Slot = bytes | tuple[Any, ...] | None


class LogOfCodec(NamedTuple):
    """A log, and the codec that its slots must have."""

    log: SlotLog
    codec: Codec

    @property
    def accepted(self) -> AcceptedCodec:
        return type(self.codec) if isinstance(self.codec, TrainableCodec) else self.codec

    def gather(self, references: NDArray[np.int64], n_frames: int) -> PayloadBatch:
        return self.log.gather(references, n_frames, self.accepted)

    def copier_from(self, source: LogOfCodec) -> SlotCopier:
        return self.log.copier_from(source.log, self.accepted)

    def append_items(self, *args: Any) -> NDArray[np.int64]:
        return self.log.append_items(*args)

    def new_table(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        return self.log.new_table(shape)


def slot_n_frames(slot: Slot) -> int:
    """Return the number of payloads of a slot."""
    return len(payloads_of(slot))


def payloads_of(slot: Slot) -> list[bytes]:
    """Return the payloads of a slot, the oldest frame first."""
    return [part for part in (slot if type(slot) is tuple else (slot,)) if type(part) is bytes]


def slot_of(codecs: Sequence[TrainableCodec | None], payloads: Sequence[bytes]) -> Slot:
    """Return the slot of an item, given the codec that wrote each payload, ``None`` if it is not trainable."""
    if not payloads:
        return None
    if codecs[0] is None:
        return tuple(payloads) if len(payloads) > 1 else payloads[0]
    parts: list[Any] = []
    previous = None
    for codec, payload in zip(codecs, payloads, strict=True):
        parts += [payload] if codec is previous else [codec, payload]
        previous = codec
    return tuple(parts)


def batch_of(slots: Sequence[Slot], n_frames: int, codec: Codec | None = None) -> PayloadBatch:
    """Return the payloads of slots; equal ones are in one place.

    :param n_frames: the number of frames of an item
    :param codec: the codec of payloads that name none
    """
    codecs: list[Codec] = [get_codec("none") if codec is None else codec]
    numbers: dict[int, int] = {}
    distinct: dict[bytes, int] = {}
    indices, writers, offsets = [], [], [0]
    for slot in slots:
        writer = 0
        for part in slot if type(slot) is tuple else () if slot is None else (slot,):
            if type(part) is bytes:
                indices.append(distinct.setdefault(part, len(distinct)))
                writers.append(writer)
                continue
            writer = numbers.setdefault(id(part), len(codecs))
            codecs += [part] * (writer == len(codecs))
        offsets.append(len(indices))
    payloads = Payloads.of([*distinct])[np.array(indices, np.int64)]
    payloads.places[:, 2] = writers
    return PayloadBatch(codecs, payloads, n_frames, np.array(offsets))


def load_slots(store: SlotLog | LogOfCodec, references: Any) -> NDArray[Any]:
    """Return slots as objects, in the shape of the references; payloads that they share are the same objects.

    :raises CorruptPayload: if one is damaged
    """
    references = np.asarray(references)
    batch = store.gather(references.flatten(), 0)
    _, first, numbers = np.unique(batch.payloads.places[:, 0], return_index=True, return_inverse=True)
    distinct = [*batch.payloads[first]]
    payloads = [distinct[number] for number in numbers.tolist()]
    trained = [codec if isinstance(codec, TrainableCodec) else None for codec in batch.codecs]
    codecs = [trained[writer] for writer in batch.payloads.writers.tolist()]
    slots = np.empty(references.size, object)
    for index, (begin, end) in enumerate(pairwise(batch.offsets.tolist())):
        slots[index] = slot_of(codecs[begin:end], payloads[begin:end])
    return slots.reshape(references.shape)


def write_slots(store: SlotLog | LogOfCodec, slots: Sequence[Slot] | NDArray[Any]) -> NDArray[np.int64]:
    """Write slots to a store, equal payloads once; return references to them, in their shape."""
    shape = slots.shape if isinstance(slots, np.ndarray) else (len(slots),)
    batch = batch_of(slots.reshape(-1).tolist() if isinstance(slots, np.ndarray) else slots, 0)
    return store.append_items(batch, np.arange(batch.n_items)).reshape(shape)


def slots_at(array: Any, rows: Any) -> NDArray[Any]:
    """Return the slots of some rows of a compressed array as objects."""
    return load_slots(array.stream.log, array.references[rows])


def put_slots(array: Any, rows: Any, slots: NDArray[Any]) -> None:
    """Write slots to some rows of a compressed array."""
    array.put_references(rows, write_slots(array.stream.log, slots))
