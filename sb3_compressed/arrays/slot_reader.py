"""``SlotReader``: finds the payloads of slots in a log."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_format import NO_SEGMENT, OFFSET, TOO_MANY_PAYLOADS
from sb3_compressed.arrays.slot_log import NO_ADDRESSES, SlotLog, damage_of, segment_table, slot_kernels
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CorruptPayload, CorruptStorage

__all__ = ["AcceptedCodec", "SlotReader", "accepted_codec"]

#: Payloads of a slot for which there is room at first, if their number is not known.
FEW_PAYLOADS = 4

AcceptedCodec = Codec | type[Codec]
"""The codec that wrote the payloads of a store; if it is trainable, its class."""


def accepted_codec(codec: Codec) -> AcceptedCodec:
    """Return what a store keeps: of a trainable codec its class, so that the codec is freed with its last payload."""
    return type(codec) if isinstance(codec, TrainableCodec) else codec


class SlotReader:
    """Reads slots from a log, and verifies checksums where the log has them.

    :param log: the log to read from
    """

    def __init__(self, log: SlotLog) -> None:
        self.log = log
        self._codecs: dict[int, Codec] = {}
        self._table: tuple[tuple[Any, ...], NDArray[Any]] = (), segment_table((), 0)

    def codec(self, address: int) -> Codec:
        """Return the codec at an address of the log, each time the same object.

        :raises CorruptStorage: if there is none
        """
        codec = self._codecs.get(address)
        if codec is None:
            codec = self._codecs[address] = self.log.codec_at(address >> 32, address & OFFSET)
        return codec

    def drop_cached(self, segments: Collection[int]) -> None:
        """Drop the cached codecs that are not records of these segments, and the memory of all segments."""
        self._table = (), segment_table((), 0)
        self._codecs = {address: codec for address, codec in self._codecs.items() if address >> 32 in segments}

    def gather(self, addresses: NDArray[np.int64], n_frames: int, codec: AcceptedCodec | None = None) -> PayloadBatch:
        """Verify slots, and return their payloads, which stay where they are in the log.

        :param addresses: contiguous, ``(n,)``
        :param n_frames: the number of payloads of each slot, unless it has one; 0 for any number
        :param codec: as :attr:`.SlotStore.codec`; if it is ``None``, so is the codec of payloads that do not name one
        :raises CorruptPayload: if one is damaged or of another codec; the message names the file and the byte
        """
        owner, table = self._table
        if not owner or owner[-1] is not self.log.last.bytes:
            owner, table = self._map_segments()
        offsets, problem = np.empty(len(addresses) + 1, dtype=np.int64), np.empty(2, dtype=np.int64)
        n_places = len(addresses) * (n_frames or FEW_PAYLOADS)
        while True:
            places, found = np.empty((n_places, 3), dtype=np.int64), np.empty(n_places, dtype=np.int64)
            result = slot_kernels().locate_stored(addresses, n_frames, table, found, offsets, places, problem)
            if result >= 0:
                break
            if result == NO_SEGMENT:
                owner, table = self._map_segments(addresses)
            elif result == TOO_MANY_PAYLOADS:
                n_places *= 2
            else:
                index, offset = problem.tolist()
                number = int(addresses[index]) >> 32
                raise CorruptPayload(damage_of(self.log, result, number, offset, n_frames), index)
        places, codecs = places[: offsets[-1]], []
        for number, address in enumerate(found[:result].tolist()):
            writer: Any = self._codecs.get(address)
            if type(writer) is not codec:  # otherwise it is one that was read before
                try:
                    writer = self.accepted(address, codec)
                except CorruptStorage as error:
                    payload = int(np.argmax(places[:, 2] == number))
                    index = int(np.searchsorted(offsets, payload, side="right")) - 1
                    slot, name = int(addresses[index]) & OFFSET, self.log.name(int(addresses[index]) >> 32)
                    raise CorruptPayload(f"{name}, the slot at byte {slot}: {error}", index) from error
            codecs.append(writer)
        return PayloadBatch(codecs, Payloads(places, owner), n_frames, offsets)

    def accepted(self, address: int, accepted: AcceptedCodec | None) -> Codec | None:
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

    def _map_segments(self, addresses: NDArray[np.int64] = NO_ADDRESSES) -> tuple[tuple[Any, ...], NDArray[Any]]:
        """Return the memory of all open segments, and the table for the kernel.

        :param addresses: slots whose segments are opened if necessary
        :raises CorruptPayload: if one cannot be opened
        """
        open_ones = {**self.log.mapped_segments}
        numbers, indices = np.unique(addresses[addresses != 0] >> 32, return_index=True)
        for number, index in zip(numbers.tolist(), indices.tolist(), strict=True):
            try:
                open_ones[number] = self.log.segment(number)
            except CorruptStorage as error:  # noqa: PERF203  # there are few
                raise CorruptPayload(str(error), int(np.flatnonzero(addresses)[index])) from error
        segments = [(open_ones[number], open_ones[number].bytes) for number in sorted(open_ones)]
        self._table = tuple(data for _, data in segments), segment_table(segments, self.log.checksum_nbytes)
        return self._table
