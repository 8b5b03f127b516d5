"""``SlotLog``: the log that slots are written to, in memory or on disk, and its format.

A log consists of segments, which are only appended to. All that a slot refers to is in the same segment, so a segment
can be deleted as soon as no table refers to one of its slots. Numbers are uint32, little-endian:

- a *payload*: checksum, number of bytes, the offset of the codec that wrote it (0 if the array's codec is not
  trainable), the bytes;
- a *slot*: checksum, number of payloads, the offset of each, the oldest frame first;
- a *codec*, on disk only: a record of its own, the JSON of its :meth:`~sb3_compressed.codecs.Codec.get_config`.

On disk, every part has its own checksum, the lower 32 bits of an XXH64 of the bytes after it; its seed is the part's
offset, plus 2**32 for a slot, XORed with the segment's id. In memory, parts have no checksum, and codecs have numbers
in the log instead of offsets.

A slot's address is its position in the log, ``segment << 32 | offset``; 0 is a slot that was never written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.slot_format import DAMAGED_PAYLOAD, INVALID_SLOT, SEGMENT, SLOT_HEADER
from sb3_compressed.codecs import Codec

__all__ = [
    "NO_ADDRESSES",
    "REFERENCE",
    "Claim",
    "KeptSlots",
    "SlotLog",
    "SlotSegment",
    "address_of",
    "damage_of",
    "segment_table",
    "slot_kernels",
]

#: The dtype of addresses.
REFERENCE = np.dtype(np.int64)
NO_ADDRESSES = np.zeros(0, REFERENCE)


class SlotSegment(Protocol):
    """A part of a log, which is only appended to."""

    @property
    def number(self) -> int:
        """Its number in the log."""
        ...

    @property
    def id(self) -> int:
        """A random number, with which the seeds of checksums are XORed."""
        ...

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """Its memory, which may be replaced by a larger copy."""
        ...

    @property
    def next_offset(self) -> int:
        """Where the next bytes will be appended."""
        ...


class KeptSlots:
    """A block in which a log neither frees nor moves slots, not even in a handler of a signal that interrupts it.

    References are valid in it that no table has. An object that is not used as a block keeps slots as long as it lives.

    :param keepers: those of the log
    """

    def __init__(self, keepers: WeakSet[Any]) -> None:
        self._keepers = keepers
        keepers.add(self)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._keepers.discard(self)


class Claim(NamedTuple):
    """Memory for the next slots and payloads of a log.

    :param segment: the segment that they are appended to
    :param offset: where they begin in it
    :param room: the memory, ``(nbytes,)``
    """

    segment: SlotSegment
    offset: int
    room: NDArray[np.uint8]


class SlotLog(Protocol):
    """What slots are written to: :class:`~.memory_log.MemoryLog` or :class:`~sb3_compressed.storage.log.Log`.

    :cvar checksum_nbytes: the bytes of the checksum with which each part begins, which is verified; 0 for none
    :ivar n_deletions: how often segments were deleted to which only references in no table may refer
    """

    checksum_nbytes: int
    n_deletions: int

    @property
    def segments(self) -> Mapping[int, SlotSegment]:
        """The open segments, by number."""
        ...

    @property
    def mapped_segments(self) -> Mapping[int, SlotSegment]:
        """Those whose bytes are in the memory of the process."""
        ...

    @property
    def last(self) -> SlotSegment:
        """The last segment."""
        ...

    def keep_slots(self) -> KeptSlots:
        """Return a block in which nothing is freed or moved."""
        ...

    def has_segments(self, references: NDArray[np.int64]) -> bool:
        """Return whether the segments of all slots that references refer to are there."""
        ...

    def name(self, number: int) -> str:
        """Return the name of a segment, for messages."""
        ...

    def segment(self, number: int) -> SlotSegment:
        """Return a segment, which is opened if necessary; raise ``CorruptStorage`` if it is missing or damaged."""
        ...

    def reserve(self, nbytes: int = 0) -> tuple[SlotSegment, NDArray[np.uint8], int]:
        """Return the segment to append to, begun if necessary, memory for its next bytes, and where in it these begin.

        :param nbytes: for at least so many bytes
        """
        ...

    def append_reserved(self, nbytes: int) -> None:
        """Append slots and payloads that were written to the memory that :meth:`reserve` returned last."""
        ...

    def claim(self, nbytes: int) -> Claim:
        """Return memory as :meth:`reserve` does, which a handler of a signal does not overwrite meanwhile."""
        ...

    def append_claimed(self, claim: Claim, nbytes: int, copy_nbytes: int = 0) -> None:
        """Append slots and payloads that were written to claimed memory.

        :param nbytes: how much of it was used
        :param copy_nbytes: if they are copies of a row that is continued, the bytes of all copies so far: the segment
            is not full before it has several times as many
        """
        ...

    def append_codec(self, codec: Codec) -> int:
        """Store a codec in the last segment, and return its offset there, or its number in the log; never 0."""
        ...

    def codec_at(self, number: int, offset: int) -> Codec:
        """Return the codec of a segment by what :meth:`append_codec` returned; raise ``CorruptStorage`` without one."""
        ...


def address_of(segment: int, offset: int) -> int:
    """Return the position of a byte in a log as one integer."""
    return segment << 32 | offset


def segment_table(segments: Iterable[tuple[SlotSegment, NDArray[np.uint8]]], checksum_nbytes: int) -> NDArray[Any]:
    """Return segments as kernels read them, sorted by their numbers.

    :param segments: each with its bytes, which must live as long as kernels read them
    :param checksum_nbytes: that of their log
    :return: records :data:`~.slot_format.SEGMENT`, ``(n,)``
    """
    rows = [(data.ctypes.data, data.size, segment.id, segment.number, checksum_nbytes) for segment, data in segments]
    return np.array(sorted(rows, key=lambda row: row[3]), SEGMENT)


def damage_of(log: SlotLog, problem: int, number: int, offset: int, n_frames: int = 0) -> str:
    """Return a description of a problem that a kernel found.

    :param problem: :data:`~.slot_format.INVALID_SLOT`, :data:`~.slot_format.DAMAGED_SLOT` or
        :data:`~.slot_format.DAMAGED_PAYLOAD`
    :param number: the number of the segment
    :param offset: where the slot or payload begins
    :param n_frames: the number of payloads that a slot must have, unless it has one; 0 for any number
    """
    segment = log.segment(number)
    part = f"{log.name(number)}, the {'payload' if problem == DAMAGED_PAYLOAD else 'slot'} at byte {offset}"
    if problem != INVALID_SLOT:
        return f"{part}, is {'damaged' if offset < len(segment.bytes) else 'beyond the end of the file'}"
    begin = offset + log.checksum_nbytes
    n_payloads = int.from_bytes(segment.bytes[begin : begin + SLOT_HEADER].tobytes(), "little")
    if n_frames and n_payloads not in (0, 1, n_frames):
        return f"it has {n_payloads} payloads, and items have {n_frames} frames"
    return f"{part}, is invalid"


@cache
def slot_kernels() -> ModuleType:
    """Import the kernels on first use: importing numba is slow."""
    from sb3_compressed.arrays import slot_kernels

    return slot_kernels
