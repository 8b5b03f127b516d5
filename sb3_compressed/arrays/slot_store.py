"""``SlotStore``: the protocol of stores, and slots as Python objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.memory_estimate import MemoryEstimate
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.codecs.payloads import Payloads

__all__ = [
    "AcceptedCodec",
    "Slot",
    "SlotStore",
    "accepted_codec",
    "are_equal_slots",
    "slot_n_frames",
    "slot_of",
    "slots_of_pickle",
]

Slot = bytes | tuple[Any, ...] | None
"""One encoded item as a Python object, to copy it from one store to another.

- ``bytes``: the payload of a whole item;
- a tuple: the payloads of its frames, in the order of the stack. If they are of a trainable codec, each codec precedes
  the payloads that it wrote: ``(codec, p0, p1, p2, p3)``, or ``(older, p0, p1, newer, p2, p3)`` just after it was
  trained. A codec and one payload encode a whole item;
- ``None``: not written yet.
"""

AcceptedCodec = Codec | type[TrainableCodec]
"""The codec that wrote the payloads of a store; if it is trainable, its class."""


def accepted_codec(codec: Codec) -> AcceptedCodec:
    """Return what a store keeps: of a trainable codec its class, so that the codec is freed with its last payload."""
    return type(codec) if isinstance(codec, TrainableCodec) else codec


class SlotStore(Protocol):
    """Stores slots. Tables ``(rows, n_envs)`` have one reference to a slot for each item.

    A reference is an address in a log. Code outside of a store only copies and compares references; equal ones refer to
    equal slots.

    :ivar unwritten: the reference to a slot that was never written, an array without axes
    :cvar is_in_memory: whether the slots are in memory, where copies and pickles share or contain them
    """

    unwritten: NDArray[Any]
    is_in_memory: bool

    @property
    def codec(self) -> AcceptedCodec | None:
        """The codec, or class of codecs, whose payloads are accepted; ``None`` for every trainable codec."""
        ...

    def new_table(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a table of unwritten slots."""
        ...

    def watch(self, table: NDArray[Any]) -> None:
        """Keep the slots that an array refers to as long as it lives, like those of tables."""
        ...

    def write(self, slots: Sequence[Slot]) -> NDArray[Any]:
        """Store slots and return references to them, ``(n,)``; none is stored if this raises."""
        ...

    def free_unused(self) -> None:
        """Free the memory of slots that no table refers to, so that other references become invalid.

        If most of the memory is unused, since rows were overwritten in another order than they were written, slots are
        moved together, and the references of tables change.
        """
        ...

    def close_if_large(self) -> None:
        """Begin another block of memory with the next slots unless the last one is small.

        For the end of a rollout, after which nothing refers to its slots.
        """
        ...

    @property
    def state(self) -> object:
        """An object that is replaced when references of tables may be invalid, as after a truncated log.

        References can be copied between tables whose stores have the same one.
        """
        ...

    def append(
        self,
        previous: NDArray[Any] | None,
        n_new: NDArray[np.int64],
        payloads: Payloads,
        encoder: FrameEncoder,
    ) -> NDArray[Any]:
        """Store the slots of rows of items that continue a row, which take fewer bytes than those of :meth:`write`.

        :param previous: references to the slots of the row before, ``(n_envs,)``; ``None`` if all frames are new
        :param n_new: the number of new frames of each item, ``(n_rows, n_envs)``; its other frames are the newest ones
            of the item before
        :param payloads: those of the new frames of the first environment, then those of the next one
        :param encoder: what encoded them
        :return: references, ``(n_rows, n_envs)``; none is stored if this raises
        """
        ...

    def read(
        self, references: NDArray[Any], layout: FrameLayout | None, out: NDArray[Any], num_threads: int = 1
    ) -> None:
        """Decode slots.

        :param references: ``(n,)``
        :param layout: how items are divided into frames; ``None`` if they are not
        :param out: C-contiguous array ``(n, *item_shape)`` of the dtype that frames were encoded in
        :param num_threads: the number of threads that may decode
        :raises CorruptPayload: as :meth:`gather`
        """
        ...

    def gather(self, references: NDArray[Any], n_frames: int) -> PayloadBatch:
        """Return the payloads of slots.

        :param references: ``(n,)``, which must not change during the call
        :param n_frames: the number of frames of an item; whole items and unwritten ones are allowed among them
        :raises CorruptPayload: if one is damaged, has another number of payloads, or another codec wrote it; ``index``
            is its position
        """
        ...

    def load(self, references: NDArray[Any]) -> NDArray[Any]:
        """Return slots as an object array ``(n,)``; payloads that they share are the same objects.

        :raises CorruptPayload: if one is damaged; ``index`` is its position
        """
        ...

    def nbytes(self, *tables: NDArray[Any]) -> int:
        """Return the memory of tables and of the slots of the store, in bytes."""
        ...

    def codecs(self) -> Iterable[TrainableCodec]:
        """Return the different trained codecs that it keeps in memory."""
        ...

    def estimate(self, tables: Sequence[NDArray[Any]], begin: int, n_rows: int, max_slots: int) -> MemoryEstimate:
        """Estimate the memory of tables from some of their rows, see :func:`~.memory_estimate.estimate_memory`."""
        ...


def slot_n_frames(slot: Slot) -> int:
    """Return the number of payloads of a slot."""
    if type(slot) is not tuple:
        return 0 if slot is None else 1
    return [*map(type, slot)].count(bytes)


def slot_of(codecs: Sequence[TrainableCodec | None], payloads: Sequence[bytes]) -> Slot:
    """Return the slot of an item.

    :param codecs: the codec that wrote each payload, ``None`` for all if it is not trainable
    :param payloads: the oldest frame first; none for an item that was not written
    """
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


def are_equal_slots(slot: Slot, other: Slot) -> bool:
    """Return whether slots have the same payloads by equal codecs, so that their items are equal.

    Different payloads may decode to equal items, too; this is not found.
    """
    if type(slot) is not tuple or type(other) is not tuple:
        return slot is other or (type(slot) is type(other) is bytes and slot == other)
    return len(slot) == len(other) and all(mine is yours or mine == yours for mine, yours in zip(slot, other))


def slots_of_pickle(slots: NDArray[Any]) -> NDArray[Any]:
    """Return the slots of a pickle: those of 0.3 contain codecs in arrays without axes."""
    converted: dict[int, Slot] = {}
    for slot in slots.flat:
        is_tuple = type(slot) is tuple
        converted[id(slot)] = tuple(p[()] if type(p) is np.ndarray else p for p in slot) if is_tuple else slot
    with_codecs = np.empty(slots.shape, object)
    for index, slot in np.ndenumerate(slots):
        with_codecs[index] = converted[id(slot)]
    return with_codecs
