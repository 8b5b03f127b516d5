"""``SlotWriter``: appends slots and payloads to a log."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.slot_format import (
    ELSEWHERE,
    PAYLOAD_HEADER,
    SLOT_SEED,
)
from sb3_compressed.arrays.slot_log import NO_ADDRESSES, REFERENCE, SlotLog, SlotSegment, address_of, slot_kernels
from sb3_compressed.arrays.slot_reader import SlotReader
from sb3_compressed.arrays.slots import Slot, slot_n_frames
from sb3_compressed.codecs import Codec
from sb3_compressed.codecs.codec import UINT8
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import StorageError

__all__ = ["SlotWriter"]

NUMBERS = struct.Struct("<II")

Cache = dict[int | bytes, tuple[int, int, Slot]]


class SlotWriter:
    """Writes slots to a log, and each payload once, however many slots refer to it.

    Equal payloads are written once, as are slots that are one object: :meth:`.SlotReader.load` returns shared ones so.
    Only the latest ones of a segment are cached: a frame that is repeated later is written again, which costs only
    bytes.

    :param log: the log to write to
    :param reader: reads from it
    """

    #: Rows of which slots and payloads are cached, at least; more for longer stacks, which refer to older frames.
    CACHED_ROWS = 12

    def __init__(self, log: SlotLog, reader: SlotReader) -> None:
        self._log, self._reader = log, reader
        self._segment, self._segment_id = -1, np.uint64(0)
        # What was appended to the segment: by its bytes, the offset of a payload and that of its codec; by its id, the
        # offset of a slot and the slot itself, so that no other one gets the id.
        self._recent: Cache = {}
        self._older: Cache = {}
        #: By the id of a codec, its offset in the segment, and the codec.
        self._codecs: dict[int, tuple[int, Codec]] = {}

    def write(self, slots: Sequence[Slot]) -> NDArray[np.int64]:
        """Write slots that are not cached, and return their addresses, ``(n,)``.

        :raises OSError: if they cannot be written
        """
        segment, *_ = self._log.reserve()
        if segment.number != self._segment:
            self._begin(segment)
        return np.array(self._written(slots, segment), dtype=REFERENCE)

    def address_of_codec(self, codec: Codec) -> int:
        """Return the address of a codec in the last segment, after writing it there if necessary."""
        segment, *_ = self._log.reserve()
        if segment.number != self._segment:
            self._begin(segment)
        return address_of(segment.number, self._offset_of(codec))

    def _offset_of(self, codec: Codec) -> int:
        """Return the offset of a codec in the last segment, after writing it there if necessary."""
        if id(codec) not in self._codecs:  # one that was read from the log may be equal to another one
            equal = (offset for offset, other in self._codecs.values() if other == codec)
            self._codecs[id(codec)] = next(equal, None) or self._log.append_codec(codec), codec
        return self._codecs[id(codec)][0]

    def _begin(self, segment: SlotSegment) -> None:
        """Drop what is cached of other segments."""
        self.clear_cache()
        self._codecs.clear()
        self._reader.drop_cached(self._log.segments)
        self._segment_id = np.uint64(segment.id)
        self._segment = segment.number  # only now: whatever interrupts this, no offset of another one is cached

    def clear_cache(self) -> None:
        """Drop the slots that it keeps."""
        self._recent, self._older = {}, {}

    def append(
        self,
        previous: NDArray[np.int64] | None,
        n_new: NDArray[np.int64],
        payloads: Payloads,
        encoder: FrameEncoder,
    ) -> NDArray[np.int64]:
        """Append the slots of rows of items that continue a row, which take fewer bytes than those of :meth:`write`.

        :param previous: references to the slots of the row before, ``(n_envs,)``; ``None`` if all frames are new
        :param n_new: the number of new frames of each item, ``(n_rows, n_envs)``; its other frames are the newest ones
            of the item before
        :param payloads: those of the new frames of the first environment, then those of the next one
        :param encoder: what encoded them
        :return: references, ``(n_rows, n_envs)``; none is stored if this raises
        :raises OSError: if they cannot be written
        """
        kernels, log = slot_kernels(), self._log
        n_frames, places = encoder.n_frames, payloads.places
        if previous is None:
            previous = NO_ADDRESSES
        references = np.empty(n_new.shape, REFERENCE)
        nbytes = 0
        while True:
            segment, room, at = log.reserve(nbytes)
            if segment.number != self._segment:
                self._begin(segment)
            codec = 0
            if encoder.is_trainable:
                cached = self._codecs.get(id(encoder.codec))
                codec = cached[0] if cached else self._offset_of(encoder.codec)
            nbytes = kernels.append_rows(
                previous, n_new, places, codec, n_frames, encoder.newest_first, log.checksum_nbytes, segment.bytes,
                segment.number, self._segment_id, segment.next_offset, room, at, references,
            )  # fmt: skip
            if 0 <= nbytes <= room.size - at:
                break
            if nbytes == ELSEWHERE:  # a slot refers to its own segment only
                continued = n_new[0] < n_frames  # of others, none is copied
                slots = [*self._reader.load(np.where(continued, previous, 0))]
                others = {slot_n_frames(slots[env]) for env in np.flatnonzero(continued)} - {n_frames}
                if others:
                    raise StorageError(f"items of {n_frames} frames cannot continue items of {others}")
                previous = np.array(self._written(slots, segment, is_copy=True), REFERENCE)
                nbytes = 0
        log.append_reserved(nbytes)
        return references

    def _written(self, slots: Sequence[Slot], segment: SlotSegment, *, is_copy: bool = False) -> list[int]:
        """Write slots, and return their addresses, 0 for unwritten ones.

        :param is_copy: whether another segment has them, too
        """
        n_frames = max((len(slot) for slot in slots if type(slot) is tuple), default=1)
        # Of both generations together, the last rows at least: a row has as many slots as new payloads.
        if len(self._recent) > 2 * max(self.CACHED_ROWS, n_frames) * len(slots):
            self._older, self._recent = self._recent, {}
        recent, older, codecs, base = self._recent, self._older, self._codecs, segment.number << 32
        for slot in slots:  # first, since a codec may be a record of its own in the log
            if type(slot) is tuple:
                for part in slot:
                    if type(part) is not bytes and id(part) not in codecs:
                        self._offset_of(part)
        # The offset of the content of the record: nothing else writes to the log.
        start = at = segment.next_offset
        skip = self._log.checksum_nbytes
        checksum = bytes(skip)
        pieces: list[bytes] = []
        parts: list[tuple[int, int]] = []
        addresses: list[int] = []
        new: Cache = {}
        for slot in slots:
            if slot is None:
                addresses.append(0)
                continue
            cached = new.get(id(slot)) or recent.get(id(slot)) or older.get(id(slot))
            if cached:
                addresses.append(base | cached[0])
                continue
            places: list[int] = []
            codec = 0
            for part in slot if type(slot) is tuple else (slot,):
                if type(part) is not bytes:
                    codec = codecs[id(part)][0]
                    continue
                cached = new.get(part) or recent.get(part) or older.get(part)
                if cached and cached[1] == codec:  # payloads of two codecs may be equal
                    places.append(cached[0])
                    continue
                places.append(at)
                new[part] = at, codec, None
                parts.append((at, 0))
                pieces += (checksum, NUMBERS.pack(len(part), codec), part)
                at += skip + PAYLOAD_HEADER + len(part)
            new[id(slot)] = at, 0, slot
            addresses.append(base | at)
            parts.append((at, SLOT_SEED))
            record = _number_list(len(places))
            pieces += (checksum, record.pack(len(places), *places))
            at += skip + record.size
        if pieces:
            data = np.frombuffer(bytearray().join(pieces), UINT8)
            if skip:
                begins, seeds = np.array(parts, np.int64).T
                slot_kernels().put_checksums(
                    data, np.append(begins - start, len(data)), start + seeds, self._segment_id
                )
            _, room, first = self._log.reserve(data.size)
            room[first : first + data.size] = data
            self._log.append_reserved(data.size, is_copy=is_copy)
            recent.update(new)  # only now: whatever interrupts this, nothing else is in the log
        return addresses


@cache
def _number_list(length: int) -> struct.Struct:
    """Return the struct of a number of integers and that many integers."""
    return struct.Struct(f"<{1 + length}I")
