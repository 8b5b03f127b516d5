"""Gathering: from slots that learned codecs wrote to their payloads, with the codec of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs import TrainableCodec
from sb3_compressed.codecs.base import frame_bytes
from sb3_compressed.codecs.payloads import Payloads

__all__ = ["MAX_CODECS", "PayloadBatch", "gather", "gather_in_python", "unpack_slot"]

TUPLE_TYPE, BYTES_TYPE = id(tuple), id(bytes)
#: Codecs in one batch for which there is room.
MAX_CODECS = 256


@cache
def kernels() -> ModuleType:
    """Import the kernels when they are first needed, since numba takes long."""
    from sb3_compressed.arrays import payload_kernels

    return payload_kernels


@dataclass
class PayloadBatch:
    """The payloads of a batch of slots, and who wrote each.

    :param codecs: the different codecs
    :param payloads: ``n`` payloads, those of one slot together
    :param n_frames: how many payloads a slot has
    :param frames: the frames of all payloads, ``(n, *frame_shape)``, once they are decoded
    """

    codecs: Sequence[TrainableCodec]
    payloads: Payloads
    n_frames: int
    frames: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        if len(self.payloads) % self.n_frames:  # kernels read all payloads of a slot
            raise ValueError(f"{len(self.payloads)} payloads are no slots of {self.n_frames}")

    def decode(self, start: int, end: int, frames: NDArray[Any], before: PayloadBatch | None = None) -> None:
        """Decode the payloads from ``start`` to ``end``.

        :param frames: array for the frames of all payloads, ``(n, *frame_shape)``
        :param before: what was decoded before and is still as it was
        """
        if len(frames) != len(self.payloads):
            raise ValueError(f"out has room for {len(frames)} frames, got {len(self.payloads)} payloads")
        payloads, part, done = self.payloads, frames, None
        if before is not None and before.frames is not None and before.frames.shape == frames.shape:
            done = self._copy_known(start, end, frames, before, before.frames)
        if end - start < len(payloads):
            payloads, part = payloads[start:end], frames[start:end]
        type(self.codecs[0]).decode_batch(self.codecs, payloads, part, done)

    def _copy_known(
        self, start: int, end: int, frames: NDArray[Any], before: PayloadBatch, known: NDArray[Any]
    ) -> NDArray[np.uint8]:
        """Copy those frames that the slots at the same places had before; return which are there then.

        An observation and the one that follows it have all but one frame in common, and copying these out of the
        cache takes less than decoding them.
        """
        # For each codec, the one of those before that it is.
        same = [next((i for i, other in enumerate(before.codecs) if other is codec), -1) for codec in self.codecs]
        done = np.zeros(end - start, dtype=np.uint8)
        kernels().copy_known(
            start,
            self.n_frames,
            self.payloads.places,
            np.array(same, dtype=np.int64),
            before.payloads.places,
            frame_bytes(known),
            frame_bytes(frames),
            done,
        )
        return done


def gather(slots: NDArray[Any], n_frames: int) -> PayloadBatch | None:
    """Return what is in an array ``(n,)`` of slots that learned codecs wrote, ``None`` if there are others too."""
    payload_kernels = kernels()
    if not payload_kernels.LAYOUT_IS_KNOWN:
        return None
    if not slots.flags.c_contiguous:
        slots = slots.copy()
    n_slots = len(slots)
    places = np.empty((n_slots * n_frames, 3), dtype=np.int64)
    known = np.empty((min(n_slots * n_frames, MAX_CODECS), 2), dtype=np.int64)
    address = slots.__array_interface__["data"][0]
    n_codecs = payload_kernels.locate_payloads(address, n_slots, n_frames, TUPLE_TYPE, BYTES_TYPE, known, places)
    if not n_codecs:
        return None

    def get(index: int) -> bytes:
        return unpack_slot(slots[index // n_frames])[1][index % n_frames]

    codecs = [unpack_slot(slots[index // n_frames])[0][index % n_frames] for index in known[:n_codecs, 1].tolist()]
    return PayloadBatch(codecs, Payloads(places, get), n_frames)


def gather_in_python(slots: NDArray[Any], codec: TrainableCodec, n_frames: int) -> PayloadBatch:
    """Return the same for slots of any kind that have as many payloads each; plain bytes are of ``codec``."""
    codecs: list[TrainableCodec] = []
    payloads: list[bytes] = []
    for slot in slots:
        slot_codecs, slot_payloads = unpack_slot(slot) if type(slot) is tuple else ([codec], [slot])
        codecs += slot_codecs
        payloads += slot_payloads
    distinct = {id(codec): codec for codec in codecs}
    numbers = {key: number for number, key in enumerate(distinct)}
    writers = np.array([numbers[id(codec)] for codec in codecs], dtype=np.int64)
    return PayloadBatch(list(distinct.values()), Payloads.of(payloads, writers), n_frames)


def unpack_slot(slot: Any) -> tuple[Sequence[TrainableCodec], Sequence[bytes]]:
    """Return the payloads of a slot of a codec that learns, and the codec of each."""
    codec: TrainableCodec = slot[0]
    codecs: list[TrainableCodec] = []
    payloads: list[bytes] = []
    for part in slot:
        if type(part) is bytes:
            payloads.append(part)
            codecs.append(codec)
        else:
            codec = part
    return codecs, payloads
