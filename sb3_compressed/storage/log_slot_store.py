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
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.codec_handle import handle_of
from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.memory_estimate import MemoryEstimate, estimate_memory, tables_nbytes
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_store import (
    AcceptedCodec,
    Slot,
    accepted_codec,
    pack_slot,
)
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.codecs.registry import codec_from_config
from sb3_compressed.errors import CorruptPayload, CorruptStorage, StorageError
from sb3_compressed.storage.json_schema import load_json
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.record_format import (
    DAMAGED_PAYLOAD,
    INVALID_SLOT,
    NO_SEGMENT,
    PAYLOAD_HEADER,
    SLOT_HEADER,
    SLOT_SEED,
    TOO_MANY_PAYLOADS,
)
from sb3_compressed.storage.record_kinds import CODEC, SLOTS
from sb3_compressed.storage.segment import Segment

__all__ = ["LogSlotStore", "SlotReader", "SlotWriter", "address_of"]

REFERENCE = np.dtype(np.int64)

NUMBER = struct.Struct("<I")
NUMBERS = struct.Struct("<II")
#: The lower bits of an address.
OFFSET = 0xFFFFFFFF
#: Payloads of a slot for which :meth:`SlotReader.load` has room at first.
FEW_PAYLOADS = 4
NO_ADDRESSES = np.zeros(0, np.int64)


def address_of(segment: int, offset: int) -> int:
    """Return the position of a byte in a log as one integer."""
    return segment << 32 | offset


class SlotWriter:
    """Writes slots to a log, and each payload once, however many slots refer to it.

    Payloads and slots are identified by being the same objects, as arrays share them. Only the latest ones of a segment
    are cached: a frame that is repeated later is written again, which costs bytes and nothing else.

    :param log: the log to write to
    :ivar n_failed: how often slots could not be written, as on a full disk
    """

    #: Rows of which slots and payloads are cached: a stack refers to frames that are at most as old as it is long.
    CACHED_ROWS = 24

    def __init__(self, log: Log) -> None:
        self._log = log
        self.n_failed = 0
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
            for slot in slots:
                for part in slot if type(slot) is tuple else ():
                    if type(part) is not bytes and id(codec := part.item()) not in self._codecs:  # a handle of it
                        self.place_of_codec(codec)
            written = self._written(slots, segment)
        except BaseException as error:
            self._clear()  # what may not be written
            self.n_failed += isinstance(error, OSError)
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

    def _written(self, slots: Sequence[Slot], segment: Segment) -> list[int]:
        """Write slots, whose codecs are in the segment, and return their offsets, 0 for unwritten ones."""
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
                    codec = codecs[id(part.item())][0]  # of its handle
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
            pieces += (NO_CHECKSUM, _number_list(len(places)).pack(len(places), *places))
            next_offset += SLOT_HEADER + NUMBER.size * len(places)
        if pieces:
            from sb3_compressed.storage.log_slot_kernels import put_checksums

            data = bytearray().join(pieces)
            seeds = np.full(len(bounds), start, np.int64)
            seeds[slot_parts] += SLOT_SEED
            put_checksums(
                np.frombuffer(data, np.uint8), np.array([*bounds, len(data)], np.int64), seeds, np.uint64(segment.id)
            )
            if segment.append(SLOTS, data) != start:  # pragma: no cover  # only if two threads write at once
                raise StorageError(f"another process wrote to {self._log.folder}")
        return offsets


NO_CHECKSUM = bytes(4)


@cache
def _number_list(length: int) -> struct.Struct:
    """Return the struct of a number of integers and that many integers."""
    return struct.Struct(f"<{1 + length}I")


class LogSlotStore:
    """Slots in a log. A reference is an address, a table an array of int64.

    :param log: the log
    :param codec: slots of codecs of other names are refused; ``None`` to read those of every trainable codec
    """

    unwritten: NDArray[Any] = np.array(0, dtype=np.int64)

    def __init__(self, log: Log, codec: AcceptedCodec | None = None) -> None:
        self.writer, self.reader = SlotWriter(log), SlotReader(log)
        self.codec = codec
        self.write = self.writer.write

    @staticmethod
    def prepare() -> None:
        """Import and compile everything that writing and reading need, rather than at the first step of a training."""
        from sb3_compressed.storage import log_slot_kernels, record_kernels  # noqa: F401

    def for_codec(self, codec: Codec) -> LogSlotStore:
        """Return this store for an array with a codec."""
        other = LogSlotStore.__new__(LogSlotStore)
        other.__dict__.update(self.__dict__, codec=accepted_codec(codec))
        return other

    def new_table(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Return a table of unwritten slots."""
        return np.zeros(shape, dtype=np.int64)

    def read(
        self, references: NDArray[np.int64], layout: FrameLayout | None, out: NDArray[Any], num_threads: int = 1
    ) -> None:
        """Decode slots into ``out``; see :meth:`SlotStore.read`."""
        decode(self.gather(references, 1 if layout is None else layout.n_frames), layout, out, num_threads)

    def gather(self, references: NDArray[np.int64], n_frames: int) -> PayloadBatch:
        """Return the payloads of slots; see :meth:`SlotStore.gather`."""
        return self.reader.gather(np.ascontiguousarray(references), n_frames, self.codec)

    def load(self, references: NDArray[np.int64]) -> NDArray[Any]:
        """Return slots as an object array ``(n,)``; see :meth:`SlotStore.load`."""
        return self.reader.load(references, _class_of(self.codec))

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
        self._table: tuple[tuple[Any, ...], NDArray[np.int64]] = (), np.zeros((0, 4), np.int64)

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
        located = self.locate(addresses, n_frames, _class_of(codec))
        if isinstance(codec, Codec):
            codecs: Sequence[Codec] = [codec] * len(located.codecs)
        else:
            codecs = [each for each in located.codecs if each is not None]
            if len(codecs) < len(located.codecs):
                index = located.first_slot(located.codecs.index(None))
                raise CorruptPayload("it does not name the codec that wrote its payloads", index)
        return PayloadBatch(codecs, Payloads(located.places, located.owner), n_frames, located.offsets)

    def load(self, addresses: NDArray[np.int64], kind: type[Codec] | None = None) -> NDArray[Any]:
        """Return slots as objects in memory; payloads that they share are the same objects.

        :param addresses: ``(n,)``
        :param kind: as for :meth:`locate`
        :return: object array ``(n,)``
        :raises CorruptPayload: if one is damaged or of another codec; the message names the file and the byte
        """
        distinct, first, inverse = np.unique(addresses, return_index=True, return_inverse=True)
        try:
            located = self.locate(distinct, 0, kind)
        except CorruptPayload as error:
            raise CorruptPayload(error.reason, int(first[error.index])) from error
        _, first, numbers = np.unique(located.places[:, 0], return_index=True, return_inverse=True)
        objects = [*Payloads(located.places[first], located.owner)]
        payloads = [objects[number] for number in numbers.tolist()]
        codecs = [located.codecs[writer] for writer in located.places[:, 2].tolist()]
        slots = np.empty(len(distinct), dtype=object)
        for index, (begin, end) in enumerate(pairwise(located.offsets.tolist())):
            if begin < end:
                slots[index] = _slot(codecs[begin:end], payloads[begin:end])
        loaded: NDArray[Any] = slots[inverse]
        return loaded

    def locate(self, addresses: NDArray[np.int64], n_frames: int, kind: type[Codec] | None = None) -> _Located:
        """Verify slots and their payloads and return where these are.

        :param addresses: contiguous, ``(n,)``
        :param n_frames: the number of payloads of each slot, unless it has one; 0 for any number
        :param kind: the class of the codecs that must have written them; ``None`` for any
        :raises CorruptPayload: if one is damaged or of another codec; the message names the file and the byte
        """
        from sb3_compressed.storage.log_slot_kernels import locate_stored  # on first use: importing numba is slow

        owner, table = self._table
        if not owner or owner[-1] is not self._log.last.bytes:
            owner, table = self._map_segments()
        offsets, problem = np.empty(len(addresses) + 1, dtype=np.int64), np.empty(2, dtype=np.int64)
        n_places = len(addresses) * (n_frames or FEW_PAYLOADS)
        while True:
            places, found = np.empty((n_places, 3), dtype=np.int64), np.empty(n_places, dtype=np.int64)
            result = locate_stored(addresses, n_frames, table, found, offsets, places, problem)
            if result >= 0:
                break
            if result == NO_SEGMENT:
                owner, table = self._map_segments(addresses)
            elif result == TOO_MANY_PAYLOADS:
                n_places *= 2
            else:
                index, offset = problem.tolist()
                raise CorruptPayload(self._what_is_wrong(result, int(addresses[index]) >> 32, offset, n_frames), index)
        located = _Located(places[: offsets[-1]], offsets, [], owner)
        for number, address in enumerate(found[:result].tolist()):
            try:
                located.codecs.append(self._trained(address) if address & OFFSET else None)
            except CorruptStorage as error:
                raise CorruptPayload(str(error), located.first_slot(number)) from error
            if kind is not None:
                self._check_codec(located, number, addresses, kind)
        return located

    def _check_codec(self, located: _Located, number: int, addresses: NDArray[np.int64], kind: type[Codec]) -> None:
        """Raise if a codec that was found is of another class than it must be."""
        written = located.codecs[number]
        if type(written) is kind if issubclass(kind, TrainableCodec) else written is None:
            return
        index = located.first_slot(number)
        path, offset = self._log.segment(int(addresses[index]) >> 32).path, int(addresses[index]) & OFFSET
        name = "no trainable codec" if written is None else written.name
        raise CorruptPayload(f"{path}, the slot at byte {offset}, is by {name}, not by {kind.name}", index)

    def _trained(self, address: int) -> TrainableCodec:
        codec = self.codec(address)
        if not isinstance(codec, TrainableCodec):
            raise CorruptStorage(f"{self._log.folder}: the codec at {address:#x} is {codec!r}, which is not trainable")
        return codec

    def _map_segments(self, addresses: NDArray[np.int64] = NO_ADDRESSES) -> tuple[tuple[Any, ...], NDArray[np.int64]]:
        """Return the memory of all open segments, and the table for the kernel.

        :param addresses: slots whose segments are opened if necessary
        :raises CorruptPayload: if one cannot be opened
        """
        # One consistent copy: another thread may begin segments and drop others.
        open_ones = {**self._log.segments}
        numbers, indices = np.unique(addresses[addresses != 0] >> 32, return_index=True)
        for number, index in zip(numbers.tolist(), indices.tolist(), strict=True):
            try:
                open_ones[number] = self._log.segment(number)
            except CorruptStorage as error:  # noqa: PERF203  # there are few
                raise CorruptPayload(str(error), int(np.flatnonzero(addresses)[index])) from error
        segments = [open_ones[number] for number in sorted(open_ones)]
        table = np.empty((len(segments), 4), dtype=np.int64)
        for row, segment in zip(table, segments, strict=True):
            segment_id = np.uint64(segment.id).view(np.int64)
            row[:] = segment.bytes.ctypes.data, len(segment.bytes), segment_id, segment.number
        self._table = tuple(segment.bytes for segment in segments), table
        return self._table

    def _what_is_wrong(self, problem: int, number: int, offset: int, n_frames: int) -> str:
        """Return a description of a problem that the kernel found.

        :param number: the number of the segment
        :param offset: where the slot or payload begins
        """
        segment = self._log.segment(number)
        part = f"{segment.path}, the {'payload' if problem == DAMAGED_PAYLOAD else 'slot'} at byte {offset}"
        if problem != INVALID_SLOT:
            return f"{part}, is {'damaged' if offset < len(segment.bytes) else 'beyond the end of the file'}"
        n_payloads = int.from_bytes(segment.bytes[offset + 4 : offset + SLOT_HEADER].tobytes(), "little")
        if n_frames and n_payloads not in (0, 1, n_frames):
            return f"it has {n_payloads} payloads, and items have {n_frames} frames"
        return f"{part}, is invalid"


class _Located(NamedTuple):
    """Where the payloads of slots are.

    :ivar places: as for :class:`Payloads`
    :ivar offsets: as for :class:`PayloadBatch`
    :ivar codecs: the codecs; ``None`` stands for one that is not trainable
    :ivar owner: what keeps the memory of the payloads alive
    """

    places: NDArray[np.int64]
    offsets: NDArray[np.int64]
    codecs: list[TrainableCodec | None]
    owner: object

    def first_slot(self, number: int) -> int:
        """Return the index of the first slot with a payload by a codec."""
        payload = int(np.argmax(self.places[:, 2] == number))
        return int(np.searchsorted(self.offsets, payload, side="right")) - 1


def _class_of(codec: AcceptedCodec | None) -> type[Codec] | None:
    return type(codec) if isinstance(codec, Codec) else codec


def _slot(codecs: Sequence[TrainableCodec | None], payloads: Sequence[bytes]) -> Slot:
    """Return the slot that has these payloads; either all or none have a trainable codec."""
    handles = [handle_of(codec) for codec in codecs if codec is not None]
    if handles:
        return pack_slot(handles, payloads)
    return tuple(payloads) if len(payloads) > 1 else payloads[0]
