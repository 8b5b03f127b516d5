"""Slots as Python objects, to copy them from one store to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs import Codec, TrainableCodec

__all__ = [
    "AcceptedCodec",
    "Slot",
    "accepted_codec",
    "are_equal_slots",
    "slot_n_frames",
    "slot_of",
    "slots_of_pickle",
]

Slot = bytes | tuple[Any, ...] | None
"""One encoded item.

- ``bytes``: the payload of a whole item;
- a tuple: the payloads of its frames, in the order of the stack. If they are of a trainable codec, each codec precedes
  the payloads that it wrote: ``(codec, p0, p1, p2, p3)``, or ``(older, p0, p1, newer, p2, p3)`` just after it was
  trained. A codec and one payload encode a whole item;
- ``None``: not written yet.
"""

AcceptedCodec = Codec | type[Codec]
"""The codec that wrote the payloads of a store; if it is trainable, its class."""


def accepted_codec(codec: Codec) -> AcceptedCodec:
    """Return what a store keeps: of a trainable codec its class, so that the codec is freed with its last payload."""
    return type(codec) if isinstance(codec, TrainableCodec) else codec


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
