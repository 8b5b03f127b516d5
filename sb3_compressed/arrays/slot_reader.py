"""``SlotReader``: finds the payloads of slots in a log."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_format import (
    DAMAGED_PAYLOAD,
    INVALID_SLOT,
    NO_SEGMENT,
    OFFSET,
    SLOT_HEADER,
    TOO_MANY_PAYLOADS,
)
from sb3_compressed.arrays.slot_log import NO_ADDRESSES, SlotLog, slot_kernels
from sb3_compressed.arrays.slots import AcceptedCodec, slot_of
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CorruptPayload, CorruptStorage

__all__ = ["SlotReader"]

#: Payloads of a slot for which :meth:`SlotReader.load` has room at first.
FEW_PAYLOADS = 4


class SlotReader:
    """Reads slots from a log, and verifies checksums where the log has them.

    :param log: the log to read from
    """

    def __init__(self, log: SlotLog) -> None:
        self._log = log
        self._codecs: dict[int, Codec] = {}
        self._table: tuple[tuple[Any, ...], NDArray[np.int64]] = (), np.zeros((0, 4), np.int64)

    def codec(self, address: int) -> Codec:
        """Return the codec at an address of the log, each time the same object.

        :raises CorruptStorage: if there is none
        """
        codec = self._codecs.get(address)
        if codec is None:
            codec = self._codecs[address] = self._log.codec_at(address >> 32, address & OFFSET)
        return codec

    def drop_cached(self, segments: Collection[int]) -> None:
        """Drop the cached codecs that are not records of these segments, and the memory of all segments."""
        self._table = (), np.zeros((0, 4), np.int64)
        self._codecs = {address: codec for address, codec in self._codecs.items() if address >> 32 in segments}

    def load(self, addresses: NDArray[np.int64], codec: AcceptedCodec | None = None) -> NDArray[Any]:
        """Return slots as objects in memory; payloads that they share are the same objects.

        :param addresses: ``(n,)``
        :param codec: as :attr:`.SlotStore.codec`
        :return: object array ``(n,)``
        :raises CorruptPayload: if one is damaged or of another codec; the message names the file and the byte
        """
        distinct, first, inverse = np.unique(addresses, return_index=True, return_inverse=True)
        try:
            batch = self.gather(distinct, 0, codec)
        except CorruptPayload as error:
            raise CorruptPayload(error.reason, int(first[error.index])) from error
        places = batch.payloads.places
        _, first, numbers = np.unique(places[:, 0], return_index=True, return_inverse=True)
        objects = [*batch.payloads[first]]
        payloads = [objects[number] for number in numbers.tolist()]
        trained = [each if isinstance(each, TrainableCodec) else None for each in batch.codecs]
        codecs = [trained[writer] for writer in places[:, 2].tolist()]
        slots = np.empty(len(distinct), dtype=object)
        for index, (begin, end) in enumerate(pairwise(batch.offsets.tolist())):
            if begin < end:
                slots[index] = slot_of(codecs[begin:end], payloads[begin:end])
        loaded: NDArray[Any] = slots[inverse]
        return loaded

    def gather(self, addresses: NDArray[np.int64], n_frames: int, codec: AcceptedCodec | None = None) -> PayloadBatch:
        """Verify slots, and return their payloads, which stay where they are in the log.

        :param addresses: contiguous, ``(n,)``
        :param n_frames: the number of payloads of each slot, unless it has one; 0 for any number
        :param codec: as :attr:`.SlotStore.codec`; if it is ``None``, so is the codec of payloads that do not name one
        :raises CorruptPayload: if one is damaged or of another codec; the message names the file and the byte
        """
        skipped = self._log.checksum_nbytes
        owner, table = self._table
        if not owner or owner[-1] is not self._log.last.bytes:
            owner, table = self._map_segments()
        offsets, problem = np.empty(len(addresses) + 1, dtype=np.int64), np.empty(2, dtype=np.int64)
        n_places = len(addresses) * (n_frames or FEW_PAYLOADS)
        while True:
            places, found = np.empty((n_places, 3), dtype=np.int64), np.empty(n_places, dtype=np.int64)
            result = slot_kernels().locate_stored(addresses, n_frames, skipped, table, found, offsets, places, problem)
            if result >= 0:
                break
            if result == NO_SEGMENT:
                owner, table = self._map_segments(addresses)
            elif result == TOO_MANY_PAYLOADS:
                n_places *= 2
            else:
                index, offset = problem.tolist()
                raise CorruptPayload(self._what_is_wrong(result, int(addresses[index]) >> 32, offset, n_frames), index)
        places, codecs = places[: offsets[-1]], []
        for number, address in enumerate(found[:result].tolist()):
            writer: Any = self._codecs.get(address)
            if type(writer) is not codec:  # otherwise it is one that was read before
                try:
                    writer = self._accepted(address, codec)
                except CorruptStorage as error:
                    payload = int(np.argmax(places[:, 2] == number))
                    index = int(np.searchsorted(offsets, payload, side="right")) - 1
                    slot, name = int(addresses[index]) & OFFSET, self._log.name(int(addresses[index]) >> 32)
                    raise CorruptPayload(f"{name}, the slot at byte {slot}: {error}", index) from error
            codecs.append(writer)
        return PayloadBatch(codecs, Payloads(places, owner), n_frames, offsets)

    def _accepted(self, address: int, accepted: AcceptedCodec | None) -> Codec | None:
        """Return the codec that wrote payloads, which name its address in the log unless it is not trainable.

        :raises CorruptStorage: if it cannot be read, or is not the one that is accepted
        """
        codec = self.codec(address) if address & OFFSET else None
        if accepted is None:
            is_accepted, expected = codec is None or isinstance(codec, TrainableCodec), "a trainable codec"
        else:
            is_trainable = isinstance(accepted, type) and issubclass(accepted, TrainableCodec)
            is_accepted, expected = type(codec) is accepted if is_trainable else codec is None, accepted.name
        if not is_accepted:
            raise CorruptStorage(f"it is by {'no trainable codec' if codec is None else codec.name}, not by {expected}")
        return accepted if isinstance(accepted, Codec) else codec

    def _map_segments(self, addresses: NDArray[np.int64] = NO_ADDRESSES) -> tuple[tuple[Any, ...], NDArray[np.int64]]:
        """Return the memory of all open segments, and the table for the kernel.

        :param addresses: slots whose segments are opened if necessary
        :raises CorruptPayload: if one cannot be opened
        """
        open_ones = {**self._log.mapped_segments}
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
        part = f"{self._log.name(number)}, the {'payload' if problem == DAMAGED_PAYLOAD else 'slot'} at byte {offset}"
        if problem != INVALID_SLOT:
            return f"{part}, is {'damaged' if offset < len(segment.bytes) else 'beyond the end of the file'}"
        begin = offset + self._log.checksum_nbytes
        n_payloads = int.from_bytes(segment.bytes[begin : begin + SLOT_HEADER].tobytes(), "little")
        if n_frames and n_payloads not in (0, 1, n_frames):
            return f"it has {n_payloads} payloads, and items have {n_frames} frames"
        return f"{part}, is invalid"
