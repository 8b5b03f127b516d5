"""Slots on disk: what an array keeps of an item, written to a log and read from it.

All that a slot needs is in the segment that it is in, so a segment can be deleted as soon as no table refers to one of
its slots. Every part has a checksum of its own, the lower 32 bits of an XXH64 of what follows it; its seed is the
part's own offset, and 2**32 more for a slot, XORed with the segment's id. Numbers are uint32, little-endian:

- a *payload*: checksum, number of bytes, the offset of the codec that wrote it (0 where the array's codec does not
  learn), the bytes;
- a *slot*: checksum, number of payloads, the offset of each, the oldest frame first;
- a *codec*: a record of its own, JSON as :func:`~sb3_compressed.codecs.config.codec_config` gives it.

A slot's address is its place in the log, ``segment << 32 | offset``; 0 stands for a slot that was never written.
"""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.payload_batch import MAX_CODECS, PayloadBatch, unpack_slot
from sb3_compressed.arrays.slots import Slot, pack_slot
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.codecs.config import codec_config, codec_from_config
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.codecs.registry import codec_class
from sb3_compressed.errors import CorruptPayload, CorruptStorage, StorageError
from sb3_compressed.storage.checksum import checksum
from sb3_compressed.storage.json_schema import load_json
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.log_slot_kernels import (
    CORRUPT,
    OTHER,
    PAYLOAD_HEADER,
    SLOT_HEADER,
    SLOT_SEED,
    locate_stored,
    put_checksums,
)
from sb3_compressed.storage.segment import Segment

__all__ = ["CODEC", "SLOTS", "SlotReader", "SlotWriter", "StoredSlots", "address_of"]

#: Kinds of records.
CODEC, SLOTS = 2, 3
NUMBER = struct.Struct("<I")
NUMBERS = struct.Struct("<II")


def address_of(segment: int, offset: int) -> int:
    """Return the place of a byte in a log as one integer."""
    return segment << 32 | offset


def short_checksum(data: bytes, seed: int) -> bytes:
    """Return the checksum of a part."""
    return (checksum(data, seed) & 0xFFFFFFFF).to_bytes(4, "little")


class SlotWriter:
    """Writes slots to a log, and each payload once, however many slots refer to it.

    Payloads and slots are known again by being the same objects, as arrays share them. Only the latest are remembered,
    in one segment: a frame that comes again later is written again, which costs bytes and nothing else.

    :param log: where to write
    """

    #: Rows of which slots and payloads are remembered: a stack refers to frames that are at most as old as it is long.
    REMEMBERED_ROWS = 24

    def __init__(self, log: Log) -> None:
        self._log = log
        self._segment = -1
        # Offsets by the id of a slot, or of a payload inverted, with the offset of the codec that wrote it; and the
        # objects, so that no other one gets the id.
        self._recent: dict[int, tuple[int, int, Any]] = {}
        self._older: dict[int, tuple[int, int, Any]] = {}
        self._codecs: dict[int, tuple[int, Codec]] = {}

    def write(self, slots: Sequence[Slot]) -> NDArray[np.int64]:
        """Write slots where they are not written yet, and return their addresses, ``(n,)``.

        :raises OSError: if the disk does not take them
        """
        segment = self._follow_log()
        try:
            written = self._written(slots, segment)
            while not isinstance(written, list):
                self._forget()  # what was to come where the codec is now
                self.place_of_codec(written)
                written = self._written(slots, segment)
        except BaseException:
            self._forget()  # what may not be there
            raise
        base = self._segment << 32
        return np.array([base | offset if offset else 0 for offset in written], dtype=np.int64)

    def place_of_codec(self, codec: Codec) -> int:
        """Return the address of a codec in the last segment, where it is written if need be."""
        segment = self._follow_log()
        if id(codec) not in self._codecs:
            offset = segment.append(CODEC, json.dumps(codec_config(codec)).encode())
            self._codecs[id(codec)] = (offset, codec)
        return address_of(self._segment, self._codecs[id(codec)][0])

    def _follow_log(self) -> Segment:
        segment = self._log.segment_to_write()
        if segment.number != self._segment:
            self._forget()
            self._codecs.clear()
            self._segment = segment.number  # only now: whatever interrupts this, no place in another one is known
        return segment

    def reset(self) -> None:
        """Forget all that was written, of which some is there no more."""
        self._segment = -1

    def _forget(self) -> None:
        self._recent, self._older = {}, {}

    def _written(self, slots: Sequence[Slot], segment: Segment) -> list[int] | Codec:
        """Write slots and return their offsets, 0 for unwritten ones; or return a codec to be written first."""
        if len(self._recent) > self.REMEMBERED_ROWS * len(slots):
            self._older, self._recent = self._recent, {}
        recent, older, codecs = self._recent, self._older, self._codecs
        # Where the content of the record will be: nobody else writes to the log.
        start = next_offset = segment.next_offset
        pieces: list[bytes] = []
        bounds: list[int] = []
        slot_parts: list[int] = []
        offsets: list[int] = []
        for slot in slots:
            if slot is None:
                offsets.append(0)
                continue
            found = recent.get(id(slot)) or older.get(id(slot))
            if found:
                offsets.append(found[0])
                continue
            places: list[int] = []
            codec = 0
            for part in slot if type(slot) is tuple else (slot,):
                if type(part) is not bytes:
                    if id(part) not in codecs:
                        return part  # type: ignore[no-any-return]
                    codec = codecs[id(part)][0]
                    continue
                key = ~id(part)  # where a payload is a whole slot, that has its place, too
                found = recent.get(key) or older.get(key)
                # One object may be two codecs' payload, such as the only one that Python has of a single byte.
                if found and found[1] == codec:
                    places.append(found[0])
                    continue
                places.append(next_offset)
                recent[key] = (next_offset, codec, part)
                bounds.append(next_offset - start)
                pieces += (NO_CHECKSUM, NUMBERS.pack(len(part), codec), part)
                next_offset += PAYLOAD_HEADER + len(part)
            recent[id(slot)] = (next_offset, 0, slot)
            offsets.append(next_offset)
            bounds.append(next_offset - start)
            slot_parts.append(len(bounds) - 1)
            pieces += (NO_CHECKSUM, NUMBER_LISTS[len(places)].pack(len(places), *places))
            next_offset += SLOT_HEADER + NUMBER.size * len(places)
        if pieces:
            data = bytearray().join(pieces)
            seeds = np.full(len(bounds), start, np.int64)
            seeds[slot_parts] += SLOT_SEED
            put_checksums(
                np.frombuffer(data, np.uint8), np.array([*bounds, len(data)], np.int64), seeds, np.uint64(segment.id)
            )
            if segment.append(SLOTS, data) != start:
                raise StorageError(f"somebody else wrote to {self._log.folder}")
        return offsets


NO_CHECKSUM = bytes(4)


class _NumberLists(dict[int, struct.Struct]):
    """How many numbers follow, and these, for each length that was met."""

    def __missing__(self, length: int) -> struct.Struct:
        self[length] = struct.Struct(f"<{1 + length}I")
        return self[length]


NUMBER_LISTS = _NumberLists()


class StoredSlots:
    """The slots of a log, as arrays use them.

    :param log: where they are
    :param codec: the name of the codec that wrote them, ``None`` for any
    """

    def __init__(self, log: Log, codec: str | None = None) -> None:
        self.writer, self.reader = SlotWriter(log), SlotReader(log)
        self._set_up(codec)

    def _set_up(self, codec: str | None) -> None:
        self.write = self.writer.write
        self.gather = partial(self.reader.gather, codec=codec)
        self.load = partial(self.reader.load, codec=codec)

    def of_codec(self, codec: str) -> StoredSlots:
        """Return the same for an array whose codec has this name, which refuses slots that another one wrote."""
        other = copy.copy(self)
        other._set_up(codec)
        return other


class SlotReader:
    """Reads slots from a log, and looks at the checksum of all that it reads.

    :param log: where they are
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._codecs: dict[int, Codec] = {}
        self._table: tuple[tuple[Any, ...], int, NDArray[np.int64]] = ((), 0, np.zeros((0, 3), np.int64))

    def codec(self, address: int) -> Codec:
        """Return the codec at an address of the log, always the same object.

        :raises CorruptStorage: if there is none
        """
        codec = self._codecs.get(address)  # once: another thread may forget codecs
        if codec is None:
            number, offset = address >> 32, address & 0xFFFFFFFF
            segment = self._log.segment(number)
            try:
                codec = self._codecs[address] = codec_from_config(load_json(segment.record_at(offset, CODEC).tobytes()))
            except CorruptStorage:
                raise
            except ValueError as error:  # as CodecError
                raise CorruptStorage(f"{segment.path}, the codec at byte {offset}: {error}") from error
        return codec

    def forget_others(self, segments: Collection[int]) -> None:
        """Let go of the codecs that are not in some segments."""
        self._codecs = {address: codec for address, codec in self._codecs.items() if address >> 32 in segments}

    def gather(self, addresses: NDArray[np.int64], n_frames: int, codec: str | None = None) -> PayloadBatch | None:
        """Return what is in slots of as many frames that learned codecs wrote, ``None`` if there are others too.

        :param addresses: contiguous, ``(n,)``
        :param codec: the name that all codecs must have
        :raises CorruptPayload: if a slot or one of its payloads is damaged, or of another codec; its ``index`` says
            which
        """
        try:
            mapped, first, table = self._mapped_segments(addresses)
        except CorruptStorage:
            self.load(addresses, codec)  # which says of which slot
            raise
        if table is None:
            return None
        places = np.empty((len(addresses) * n_frames, 3), dtype=np.int64)
        known = np.empty(min(len(addresses) * n_frames, MAX_CODECS), dtype=np.int64)
        n_codecs = locate_stored(addresses, n_frames, first, table, known, places)
        if n_codecs <= CORRUPT:
            index = CORRUPT - n_codecs
            raise CorruptPayload(self._what_is_wrong(int(addresses[index])), index)
        codecs = known[:n_codecs].tolist()
        if n_codecs == OTHER or any(not address & 0xFFFFFFFF for address in codecs):
            return None

        def get(index: int, mapped: Any = mapped) -> bytes:  # which stays as long as somebody refers to the payloads
            return unpack_slot(self.load(addresses[index // n_frames : index // n_frames + 1])[0])[1][index % n_frames]

        found = [self._learned(address) for address in codecs]
        if codec is not None and any(each.name != codec for each in found):
            self.load(addresses, codec)  # which says of which slot
        return PayloadBatch(found, Payloads(places, get), n_frames)

    def _learned(self, address: int) -> TrainableCodec:
        codec = self.codec(address)
        if not isinstance(codec, TrainableCodec):
            raise CorruptStorage(f"{self._log.folder}: the codec at {address:#x} is {codec!r}, which does not learn")
        return codec

    def _mapped_segments(self, addresses: NDArray[np.int64]) -> tuple[Any, int, NDArray[np.int64] | None]:
        """Return where the segments of some slots are in memory, as :func:`locate_stored` wants to know it.

        There is no table, but ``None``, where the numbers of segments are further apart than a ring's can be.
        """
        mapped, first, table = self._table
        numbers = addresses >> 32
        low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, -1)
        last = self._log.last
        is_there = mapped and mapped[-1] is last.bytes and first <= low and high < first + len(table)
        if is_there and table[low - first : high + 1 - first, 1].all():
            return self._table
        # One consistent look: another thread may begin segments and give others up.
        open_ones = {**self._log.segments}
        for number in np.unique(numbers[addresses != 0]).tolist():
            if number <= last.number:  # others are told of by their slots
                open_ones[number] = self._log.segment(number)
        segments = [open_ones[number] for number in sorted(open_ones)]
        first = segments[0].number
        if segments[-1].number - first > MAX_SPAN:
            return (), first, None
        table = np.zeros((segments[-1].number - first + 1, 3), dtype=np.int64)
        for segment in segments:
            segment_id = np.uint64(segment.id).view(np.int64)
            table[segment.number - first] = segment.bytes.ctypes.data, len(segment.bytes), segment_id
        self._table = (tuple(segment.bytes for segment in segments), first, table)
        return self._table

    def _what_is_wrong(self, address: int) -> str:
        try:
            self.load(np.array([address]))
        except CorruptPayload as error:
            return error.reason
        return f"slot {address:#x} of {self._log.folder} cannot be read"

    def load(self, addresses: NDArray[np.int64], codec: str | None = None) -> NDArray[Any]:
        """Return slots as arrays in memory keep them, those that share payloads sharing them again.

        :param addresses: ``(n,)``
        :param codec: the name of the codec that must have written them
        :return: object array ``(n,)``
        :raises CorruptPayload: if one is damaged or of another codec; the message names the file and the byte
        """
        learns = None if codec is None else issubclass(codec_class(codec), TrainableCodec)
        slots = np.empty(len(addresses), dtype=object)
        known, older = _Loaded({}, {}), _Loaded({}, {})
        for index, address in enumerate(addresses.tolist()):
            slot = known.slots.get(address) or older.slots.get(address)
            if slot is None and address:
                try:
                    slot = self._parse(address, known, older)
                    if codec is not None:
                        self._check_codec(slot, address, codec, learns=bool(learns))
                    known.slots[address] = slot
                except CorruptStorage as error:
                    raise CorruptPayload(str(error), index) from error
                if len(known.slots) > MAX_LOADED:
                    known, older = _Loaded({}, {}), known
            slots[index] = slot
        return slots

    def _check_codec(self, slot: Any, address: int, codec: str, *, learns: bool) -> None:
        """Raise if a slot is not one that a codec of some name can have written."""
        names = {part.name for part in slot if type(part) is not bytes} if type(slot) is tuple else set()
        if names != ({codec} if learns else set()):
            segment, offset = self._log.segment(address >> 32), address & 0xFFFFFFFF
            written = ", ".join(sorted(names)) or "no codec that learns"
            raise CorruptStorage(f"{segment.path}, the slot at byte {offset}, is by {written}, not by {codec}")

    def _parse(self, address: int, known: _Loaded, older: _Loaded) -> Slot:
        number, offset = address >> 32, address & 0xFFFFFFFF
        segment = self._log.segment(number)
        data = segment.bytes
        name = f"{segment.path}, the slot at byte {offset}"
        n = _number(data, offset + 4, name)
        header = _part(data, offset, SLOT_HEADER + 4 * n, name, (offset + SLOT_SEED) ^ segment.id)
        places = struct.unpack_from(f"<{n}I", header, SLOT_HEADER)
        codecs: list[Any] = []
        payloads: list[bytes] = []
        for place in places:
            name = f"{segment.path}, the payload at byte {place}"
            key = address_of(number, place)
            found = known.payloads.get(key) or older.payloads.get(key)
            if found is None:
                nbytes = _number(data, place + 4, name)
                whole = _part(data, place, PAYLOAD_HEADER + nbytes, name, place ^ segment.id)
                codec = NUMBER.unpack_from(whole, 8)[0]
                found = (codec and address_of(number, codec), whole[PAYLOAD_HEADER:])
                known.payloads[key] = found
            codecs.append(found[0] and self._learned(found[0]))
            payloads.append(found[1])
        if not payloads or (any(codecs) and not all(codecs)):
            raise CorruptStorage(f"{segment.path}, the slot at byte {offset}, makes no sense")
        if any(codecs):
            return pack_slot(codecs, payloads)
        return tuple(payloads) if len(payloads) > 1 else payloads[0]


class _Loaded(NamedTuple):
    """What was loaded, by addresses: slots, and payloads with the addresses of their codecs."""

    slots: dict[int, Any]
    payloads: dict[int, tuple[int, bytes]]


#: How far the numbers of segments may be apart for which there is one table.
MAX_SPAN = 1 << 20
#: Slots that are looked for among those loaded before.
MAX_LOADED = 1 << 16


def _number(data: NDArray[np.uint8], offset: int, name: str) -> int:
    if offset + 4 > len(data):
        raise CorruptStorage(f"{name}, is behind the end of the file")
    return int(NUMBER.unpack(data[offset : offset + 4].tobytes())[0])


def _part(data: NDArray[np.uint8], offset: int, nbytes: int, name: str, seed: int) -> bytes:
    """Return ``nbytes`` from an offset on, of which the first 4 are the checksum of the others."""
    if nbytes > len(data) - offset:
        raise CorruptStorage(f"{name}, is behind the end of the file")
    part = data[offset : offset + nbytes].tobytes()
    if short_checksum(part[4:], seed) != part[:4]:
        raise CorruptStorage(f"{name}, is damaged")
    return part
