"""``LogSlotStore``: slots in a log on disk.

All that a slot refers to is in the same segment, so a segment can be deleted as soon as no table refers to one of its
slots. Every part has its own checksum, the lower 32 bits of an XXH64 of the bytes after it; its seed is the part's
offset, plus 2**32 for a slot, XORed with the segment's id. Numbers are uint32, little-endian:

- a *payload*: checksum, number of bytes, the offset of the codec that wrote it (0 if the array's codec is not
  trainable), the bytes;
- a *slot*: checksum, number of payloads, the offset of each, the oldest frame first;
- a *codec*: a record of its own, the JSON of its :meth:`~sb3_compressed.codecs.Codec.get_config`.

A slot's address is its position in the log, ``segment << 32 | offset``; 0 is a slot that was never written.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.memory_estimate import MemoryEstimate, estimate_memory, tables_nbytes
from sb3_compressed.arrays.memory_slot_store import gather_in_python
from sb3_compressed.arrays.payload_batch import MAX_CODECS, PayloadBatch
from sb3_compressed.arrays.slot_store import (
    AcceptedCodec,
    Slot,
    accepted_codec,
    pack_slot,
    reference_dtype,
    slot_n_frames,
)
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.codecs.registry import codec_class, codec_from_config
from sb3_compressed.errors import CorruptPayload, CorruptStorage, StorageError
from sb3_compressed.storage.checksum import checksum
from sb3_compressed.storage.json_schema import load_json
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.record_format import CORRUPT, PAYLOAD_HEADER, SLOT_HEADER, SLOT_SEED, TOO_MANY_CODECS
from sb3_compressed.storage.record_kinds import CODEC, SLOTS
from sb3_compressed.storage.segment import Segment

__all__ = ["LogSlotStore", "SlotReader", "SlotWriter", "address_of"]

REFERENCE = reference_dtype(np.int64)

NUMBER = struct.Struct("<I")
NUMBERS = struct.Struct("<II")


def address_of(segment: int, offset: int) -> int:
    """Return the position of a byte in a log as one integer."""
    return segment << 32 | offset


def short_checksum(data: bytes, seed: int) -> bytes:
    """Return the checksum of a part."""
    return (checksum(data, seed) & 0xFFFFFFFF).to_bytes(4, "little")


class SlotWriter:
    """Writes slots to a log, and each payload once, however many slots refer to it.

    Payloads and slots are identified by being the same objects, as arrays share them. Only the latest ones of a segment
    are cached: a frame that is repeated later is written again, which costs bytes and nothing else.

    :param log: the log to write to
    """

    #: Rows of which slots and payloads are cached: a stack refers to frames that are at most as old as it is long.
    CACHED_ROWS = 24

    def __init__(self, log: Log) -> None:
        self._log = log
        self._segment = -1
        # By the id of a slot, or the inverted id of a payload: its offset, that of the codec that wrote it, and the
        # object itself, so that no other one gets the id.
        self._recent: dict[int, tuple[int, int, Any]] = {}
        self._older: dict[int, tuple[int, int, Any]] = {}
        self._codecs: dict[int, tuple[int, Codec]] = {}

    def write(self, slots: Sequence[Slot]) -> NDArray[np.int64]:
        """Write slots that are not cached, and return their addresses, ``(n,)``.

        :raises OSError: if they cannot be written
        """
        segment = self._follow_log()
        try:
            written = self._written(slots, segment)
            while not isinstance(written, list):
                self._clear()  # these offsets are taken by the codec
                self.place_of_codec(written)
                written = self._written(slots, segment)
        except BaseException:
            self._clear()  # what may not be written
            raise
        base = self._segment << 32
        return np.array([base | offset if offset else 0 for offset in written], dtype=REFERENCE)

    def place_of_codec(self, codec: Codec) -> int:
        """Return the address of a codec in the last segment, after writing it there if necessary."""
        segment = self._follow_log()
        if id(codec) not in self._codecs:
            offset = segment.append(CODEC, json.dumps(codec.get_config()).encode())
            self._codecs[id(codec)] = (offset, codec)
        return address_of(self._segment, self._codecs[id(codec)][0])

    def _follow_log(self) -> Segment:
        segment = self._log.segment_to_write()
        if segment.number != self._segment:
            self._clear()
            self._codecs.clear()
            self._segment = segment.number  # only now: whatever interrupts this, no offset of another one is cached
        return segment

    def reset(self) -> None:
        """Clear the cache after the log was truncated."""
        self._segment = -1

    def _clear(self) -> None:
        self._recent, self._older = {}, {}

    def _written(self, slots: Sequence[Slot], segment: Segment) -> list[int] | Codec:
        """Write slots and return their offsets, 0 for unwritten ones; or return a codec to be written first."""
        if len(self._recent) > self.CACHED_ROWS * len(slots):
            self._older, self._recent = self._recent, {}
        recent, older, codecs = self._recent, self._older, self._codecs
        # The offset of the content of the record: nothing else writes to the log.
        start = next_offset = segment.next_offset
        pieces: list[bytes] = []
        bounds: list[int] = []
        slot_parts: list[int] = []
        offsets: list[int] = []
        for slot in slots:
            if slot is None:
                offsets.append(0)
                continue
            cached = recent.get(id(slot)) or older.get(id(slot))
            if cached:
                offsets.append(cached[0])
                continue
            places: list[int] = []
            codec = 0
            for part in slot if type(slot) is tuple else (slot,):
                if type(part) is not bytes:
                    if id(part) not in codecs:
                        return part  # type: ignore[no-any-return]
                    codec = codecs[id(part)][0]
                    continue
                key = ~id(part)  # not that of a slot, which the payload may be as well
                cached = recent.get(key) or older.get(key)
                # Python may use one object for equal payloads of two codecs, as for all payloads of one byte.
                if cached and cached[1] == codec:
                    places.append(cached[0])
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
            from sb3_compressed.storage.log_slot_kernels import put_checksums

            data = bytearray().join(pieces)
            seeds = np.full(len(bounds), start, np.int64)
            seeds[slot_parts] += SLOT_SEED
            put_checksums(
                np.frombuffer(data, np.uint8), np.array([*bounds, len(data)], np.int64), seeds, np.uint64(segment.id)
            )
            if segment.append(SLOTS, data) != start:
                raise StorageError(f"another process wrote to {self._log.folder}")
        return offsets


NO_CHECKSUM = bytes(4)


class _NumberLists(dict[int, struct.Struct]):
    """Structs of a number of integers and that many integers, by number."""

    def __missing__(self, length: int) -> struct.Struct:
        self[length] = struct.Struct(f"<{1 + length}I")
        return self[length]


NUMBER_LISTS = _NumberLists()


class LogSlotStore:
    """Slots in a log. A reference is an address, a table an array of int64.

    :param log: the log
    :param codec: slots of codecs of other names are refused; ``None`` to read those of every trainable codec
    """

    unwritten: NDArray[Any] = np.array(0, dtype=np.int64)

    def __init__(self, log: Log, codec: AcceptedCodec | None = None) -> None:
        from sb3_compressed.storage import log_slot_kernels, record_kernels  # noqa: F401  # compile now, not in a training

        self.writer, self.reader = SlotWriter(log), SlotReader(log)
        self.codec = codec
        self.write = self.writer.write

    def for_codec(self, codec: Codec) -> LogSlotStore:
        """Return this store for an array with a codec."""
        other = LogSlotStore.__new__(LogSlotStore)
        other.__dict__.update(self.__dict__, codec=accepted_codec(codec))
        return other

    def new_table(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Return a table of unwritten slots."""
        return np.zeros(shape, dtype=np.int64)

    def gather(self, references: NDArray[np.int64], n_frames: int) -> PayloadBatch:
        """Return the payloads of slots; see :meth:`SlotStore.gather`."""
        return self.reader.gather(np.ascontiguousarray(references), n_frames, self.codec)

    def load(self, references: NDArray[np.int64]) -> NDArray[Any]:
        """Return slots as an object array ``(n,)``; see :meth:`SlotStore.load`."""
        return self.reader.load(references, None if self.codec is None else self.codec.name)

    def nbytes(self, *tables: NDArray[Any]) -> int:
        """Return the memory that tables take, in bytes; the slots are on disk."""
        return tables_nbytes(tables)

    def codecs(self, *tables: NDArray[Any]) -> Iterable[TrainableCodec]:
        """Return nothing: codecs are on disk as well."""
        return ()

    def estimate(self, tables: Sequence[NDArray[Any]], begin: int, n_rows: int, max_slots: int) -> MemoryEstimate:
        """Estimate the sizes of slots; see :func:`~.memory_estimate.estimate_memory`. In memory are only the tables."""
        return replace(estimate_memory(self.load, tables, begin, n_rows, max_slots), nbytes=tables_nbytes(tables))


class SlotReader:
    """Reads slots from a log, and verifies the checksum of all that it reads.

    :param log: the log to read from
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._codecs: dict[int, Codec] = {}
        self._table: tuple[tuple[Any, ...], int, NDArray[np.int64]] = ((), 0, np.zeros((0, 3), np.int64))

    def codec(self, address: int) -> Codec:
        """Return the codec at an address of the log, each time the same object.

        :raises CorruptStorage: if there is none
        """
        codec = self._codecs.get(address)  # once: another thread may drop codecs
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

    def drop_codecs_outside(self, segments: Collection[int]) -> None:
        """Drop the codecs that are not in these segments."""
        self._codecs = {address: codec for address, codec in self._codecs.items() if address >> 32 in segments}

    def gather(self, addresses: NDArray[np.int64], n_frames: int, codec: AcceptedCodec | None = None) -> PayloadBatch:
        """Return the payloads of slots; see :meth:`SlotStore.gather`.

        :param addresses: contiguous, ``(n,)``
        :param codec: as :attr:`LogSlotStore.codec`
        """
        from sb3_compressed.storage.log_slot_kernels import locate_stored

        name = None if codec is None else codec.name
        try:
            segments, first, table = self._mapped_segments(addresses)
        except CorruptStorage:
            self.load(addresses, name)  # which names the slot
            raise
        if table is None:
            return gather_in_python(self.load(addresses, name), codec, n_frames)
        places = np.empty((len(addresses) * n_frames, 3), dtype=np.int64)
        offsets = np.empty(len(addresses) + 1, dtype=np.int64)
        found = np.empty(min(len(addresses) * n_frames, MAX_CODECS), dtype=np.int64)
        n_codecs = locate_stored(addresses, n_frames, first, table, found, offsets, places)
        if n_codecs <= CORRUPT:
            index = CORRUPT - n_codecs
            raise CorruptPayload(self._what_is_wrong(int(addresses[index]), name, n_frames), index)
        if n_codecs == TOO_MANY_CODECS:
            return gather_in_python(self.load(addresses, name), codec, n_frames)
        is_trainable = not isinstance(codec, Codec)
        codecs: list[Codec] = [codec] * n_codecs if isinstance(codec, Codec) else []
        for address in found[:n_codecs].tolist():
            if bool(address & 0xFFFFFFFF) != is_trainable:
                return gather_in_python(self.load(addresses, name), codec, n_frames)  # which names the slot
            if is_trainable:
                codecs.append(self._trained(address))
        if name is not None and any(each.name != name for each in codecs):
            self.load(addresses, name)  # which names the slot
        return PayloadBatch(codecs, Payloads(places[: offsets[-1]], segments), n_frames, offsets)

    def _trained(self, address: int) -> TrainableCodec:
        codec = self.codec(address)
        if not isinstance(codec, TrainableCodec):
            raise CorruptStorage(f"{self._log.folder}: the codec at {address:#x} is {codec!r}, which is not trainable")
        return codec

    def _mapped_segments(self, addresses: NDArray[np.int64]) -> tuple[Any, int, NDArray[np.int64] | None]:
        """Return the memory of the segments of some slots, its owners, and the number of the first segment.

        There is no table, but ``None``, if the numbers of segments are further apart than those of a ring.
        """
        owners, first, table = self._table
        numbers = addresses >> 32
        if not addresses.all():  # unwritten slots are in no segment
            numbers = numbers[addresses != 0]
        low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, -1)
        last = self._log.last
        is_there = owners and owners[-1] is last.bytes and first <= low and high < first + len(table)
        if is_there and table[low - first : high + 1 - first, 1].all():
            return self._table
        # One consistent copy: another thread may begin segments and drop others.
        open_ones = {**self._log.segments}
        for number in np.unique(numbers).tolist():
            if number <= last.number:  # the slots of others are reported as damaged
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

    def _what_is_wrong(self, address: int, codec: str | None, n_frames: int) -> str:
        try:
            [slot] = self.load(np.array([address]), codec)
            n_payloads = slot_n_frames(slot)
        except CorruptPayload as error:
            return error.reason
        return f"it has {n_payloads} payloads, and items have {n_frames} frames"

    def load(self, addresses: NDArray[np.int64], codec: str | None = None) -> NDArray[Any]:
        """Return slots as objects in memory; payloads that they share are the same objects.

        :param addresses: ``(n,)``
        :param codec: the name of the codec that must have written them
        :return: object array ``(n,)``
        :raises CorruptPayload: if one is damaged or of another codec; the message names the file and the byte
        """
        is_trainable = codec is not None and issubclass(codec_class(codec), TrainableCodec)
        slots = np.empty(len(addresses), dtype=object)
        recent, older = _Loaded({}, {}), _Loaded({}, {})
        for index, address in enumerate(addresses.tolist()):
            slot = recent.slots.get(address) or older.slots.get(address)
            if slot is None and address:
                try:
                    slot = self._parse(address, recent, older)
                    if codec is not None:
                        self._check_codec(slot, address, codec, is_trainable=is_trainable)
                    recent.slots[address] = slot
                except CorruptStorage as error:
                    raise CorruptPayload(str(error), index) from error
                if len(recent.slots) > MAX_LOADED:
                    recent, older = _Loaded({}, {}), recent
            slots[index] = slot
        return slots

    def _check_codec(self, slot: Any, address: int, codec: str, *, is_trainable: bool) -> None:
        """Raise if a codec of that name cannot have written a slot."""
        names = {part.name for part in slot if type(part) is not bytes} if type(slot) is tuple else set()
        if names != ({codec} if is_trainable else set()):
            segment, offset = self._log.segment(address >> 32), address & 0xFFFFFFFF
            written = ", ".join(sorted(names)) or "no trainable codec"
            raise CorruptStorage(f"{segment.path}, the slot at byte {offset}, is by {written}, not by {codec}")

    def _parse(self, address: int, recent: _Loaded, older: _Loaded) -> Slot:
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
            found = recent.payloads.get(key) or older.payloads.get(key)
            if found is None:
                nbytes = _number(data, place + 4, name)
                whole = _part(data, place, PAYLOAD_HEADER + nbytes, name, place ^ segment.id)
                codec = NUMBER.unpack_from(whole, 8)[0]
                found = (codec and address_of(number, codec), whole[PAYLOAD_HEADER:])
                recent.payloads[key] = found
            codecs.append(found[0] and self._trained(found[0]))
            payloads.append(found[1])
        if not payloads or (any(codecs) and not all(codecs)):
            raise CorruptStorage(f"{segment.path}, the slot at byte {offset}, is invalid")
        if any(codecs):
            return pack_slot(codecs, payloads)
        return tuple(payloads) if len(payloads) > 1 else payloads[0]


class _Loaded(NamedTuple):
    """Loaded objects by their addresses: slots, and payloads with the addresses of their codecs."""

    slots: dict[int, Any]
    payloads: dict[int, tuple[int, bytes]]


#: The largest difference of numbers of segments in one table.
MAX_SPAN = 1 << 20
#: Loaded slots in the cache of :meth:`SlotReader.load`.
MAX_LOADED = 1 << 16


def _number(data: NDArray[np.uint8], offset: int, name: str) -> int:
    if offset + 4 > len(data):
        raise CorruptStorage(f"{name}, is beyond the end of the file")
    return int(NUMBER.unpack(data[offset : offset + 4].tobytes())[0])


def _part(data: NDArray[np.uint8], offset: int, nbytes: int, name: str, seed: int) -> bytes:
    """Return ``nbytes`` from an offset on, of which the first 4 are the checksum of the others."""
    if nbytes > len(data) - offset:
        raise CorruptStorage(f"{name}, is beyond the end of the file")
    part = data[offset : offset + nbytes].tobytes()
    if short_checksum(part[4:], seed) != part[:4]:
        raise CorruptStorage(f"{name}, is damaged")
    return part
