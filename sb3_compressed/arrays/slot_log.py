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

from collections.abc import Callable, Collection
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.batch_pool import Empty, checked_empty
from sb3_compressed.arrays.compaction import compaction_kernels
from sb3_compressed.arrays.decoding import decode, payload_kernels
from sb3_compressed.arrays.encoding import AcceptedCodec, FrameEncoder
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.segment_log import REFERENCE, SegmentLog, SlotSegment, segment_table
from sb3_compressed.arrays.slot_copying import SlotCopier, copying_kernels
from sb3_compressed.arrays.slot_format import (
    APPENDED_ROWS,
    ELSEWHERE,
    NO_SEGMENT,
    OFFSET,
    PAYLOAD_HEADER,
    SLOT_HEADER,
    TOO_MANY_PAYLOADS,
)
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CorruptPayload, CorruptStorage, StorageError

__all__ = ["NO_ADDRESSES", "SlotLog", "SlotOf", "slot_kernels"]

NO_ADDRESSES = np.zeros(0, REFERENCE)
#: Payloads of a slot for which there is room at first, if their number is not known.
FEW_PAYLOADS = 4

SlotOf = Callable[[int], tuple[int, ...]]
"""Returns the index of the slot at a position of a batch, for errors."""


class RowAppender(NamedTuple):
    """How rows of an encoder are appended to a segment; valid as long as these are the same objects.

    :param data: the bytes of the segment
    :param codec: the codec of the encoder
    :param layout: its layout
    :param record: what the kernel reads, ``(1,)`` of :data:`.APPENDED_ROWS`
    """

    data: NDArray[np.uint8]
    codec: Codec
    layout: FrameLayout | None
    record: NDArray[Any]


class SlotLog(SegmentLog):
    """Appends slots with their payloads to segments in memory, on a device or on disk, and reads them."""

    def __init__(self) -> None:
        super().__init__()
        #: The memory of segments, their table for the kernel, and codecs by their addresses, as they were read.
        self._mapped: tuple[tuple[Any, ...], NDArray[Any]] = (), segment_table((), 0)
        self._read_codecs: dict[int, Codec] = {}
        #: The number of the segment that was appended to last, by the id of each codec that was written to it, its
        #: offset there and the codec, and by the id of each encoder, how its rows are appended there.
        self._appended_to = -1
        self._written_codecs: dict[int, tuple[int, Codec]] = {}
        self._appenders: dict[int, RowAppender] = {}

    @staticmethod
    def prepare() -> None:
        """Import and compile what writing and reading need, rather than at the first step of a training."""
        slot_kernels()
        payload_kernels()
        compaction_kernels()
        copying_kernels()

    # -- reading -----------------------------------------------------------------------------------------------

    def read(
        self,
        references: NDArray[np.int64],
        encoder: FrameEncoder,
        dtype: np.dtype[Any],
        slot_of: SlotOf | None = None,
        *,
        empty: Empty = checked_empty,
        num_threads: int = 1,
        to_host: bool = True,
    ) -> Any:
        """Decode slots.

        :param references: ``(n,)``
        :param encoder: what encoded them
        :param dtype: dtype of the result
        :param slot_of: returns the index of the slot at a position among the references, for the error
        :param empty: allocates memory, as :func:`numpy.empty` does
        :param num_threads: the number of threads that may decode
        :param to_host: whether the result is an array also if the slots are on a device
        :return: a new array ``(n, *item_shape)``; a tensor if the slots are on a device
        :raises CorruptPayload: as :meth:`gather`; on a device, if an earlier batch could not be decoded
        :raises MemoryError: if there is not enough memory
        """
        out = empty((len(references), *encoder.item_shape), dtype)
        stored = out if dtype == encoder.dtype else np.empty(out.shape, encoder.dtype)
        try:
            batch = self.gather(references, encoder.n_frames, encoder.accepted)
            decode(batch, encoder.layout, stored, num_threads)
        except CorruptPayload as error:
            slot = None if slot_of is None else slot_of(error.index)
            raise CorruptPayload(error.reason, error.index, slot) from error
        if stored is not out:
            out[...] = stored
        return out

    def gather(
        self, references: NDArray[np.int64], n_frames: int, accepted: AcceptedCodec | None = None
    ) -> PayloadBatch:
        """Verify slots, and return their payloads, which stay where they are in the log.

        :param references: ``(n,)``
        :param n_frames: the number of payloads of each slot, unless it has one or none; 0 for any number
        :param accepted: the codec, or class of codecs, whose payloads are accepted; ``None`` for every trainable codec
        :raises CorruptPayload: if one is damaged, has another number of payloads, or another codec wrote it; ``index``
            is its position, and the message names the file and the byte
        """
        addresses = np.ascontiguousarray(references)
        owner, table = self._mapped
        if not owner or owner[-1] is not self.last.bytes:
            owner, table = self._map_segments()
        offsets, problem = np.empty(len(addresses) + 1, np.int64), np.empty(2, np.int64)
        n_places = len(addresses) * (n_frames or FEW_PAYLOADS)
        while True:
            places, found = np.empty((n_places, 3), np.int64), np.empty(n_places, np.int64)
            n_shared = 0 if n_frames == 1 else n_places  # frames of stacks repeat, whole items rarely do
            first_same = np.empty(n_shared, np.int64)
            result = slot_kernels().locate_stored(
                addresses, n_frames, table, found, offsets, places, first_same, problem
            )
            if result >= 0:
                break
            if result == NO_SEGMENT:
                owner, table = self._map_segments(addresses)
            elif result == TOO_MANY_PAYLOADS:
                n_places *= 2
            else:
                index, offset = problem.tolist()
                number = int(addresses[index]) >> 32
                raise CorruptPayload(self.describe_damage(result, number, offset, n_frames), index)
        places, codecs = places[: offsets[-1]], []
        for number, address in enumerate(found[:result].tolist()):
            writer: Any = self._read_codecs.get(address)
            if type(writer) is not accepted:  # otherwise it is one that was read before
                try:
                    writer = self.accepted_codec_at(address, accepted)
                except CorruptStorage as error:
                    payload = int(np.argmax(places[:, 2] == number))
                    index = int(np.searchsorted(offsets, payload, side="right")) - 1
                    slot, name = int(addresses[index]) & OFFSET, self.name(int(addresses[index]) >> 32)
                    raise CorruptPayload(f"{name}, the slot at byte {slot}: {error}", index) from error
            codecs.append(writer)
        same = None if n_frames == 1 else first_same[: len(places)]
        return PayloadBatch(codecs, Payloads(places, owner), n_frames, offsets, same)

    def codec(self, address: int) -> Codec:
        """Return the codec at an address, each time the same object.

        :raises CorruptStorage: if there is none
        """
        codec = self._read_codecs.get(address)
        if codec is None:
            codec = self._read_codecs[address] = self.codec_at(address >> 32, address & OFFSET)
        return codec

    def accepted_codec_at(self, address: int, accepted: AcceptedCodec | None) -> Codec | None:
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

    def drop_cached(self, segments: Collection[int]) -> None:
        """Drop the cached codecs that are not records of these segments, and the memory of all segments."""
        self._mapped, self._appenders = ((), segment_table((), 0)), {}
        read = [*self._read_codecs.items()]  # at once: a handler of a signal may read others meanwhile
        self._read_codecs = {address: each for address, each in read if address >> 32 in segments}

    def _map_segments(self, addresses: NDArray[np.int64] = NO_ADDRESSES) -> tuple[tuple[Any, ...], NDArray[Any]]:
        """Return the memory of all open segments, and the table for the kernel.

        :param addresses: slots whose segments are opened if necessary
        :raises CorruptPayload: if one cannot be opened
        """
        open_ones = {**self.mapped_segments}
        numbers, indices = np.unique(addresses[addresses != 0] >> 32, return_index=True)
        for number, index in zip(numbers.tolist(), indices.tolist(), strict=True):
            try:
                open_ones[number] = self.segment(number)
            except CorruptStorage as error:  # noqa: PERF203  # there are few
                raise CorruptPayload(str(error), int(np.flatnonzero(addresses)[index])) from error
        segments = [(open_ones[number], open_ones[number].bytes) for number in sorted(open_ones)]
        self._mapped = tuple(data for _, data in segments), segment_table(segments, self.checksum_nbytes)
        return self._mapped

    # -- writing -----------------------------------------------------------------------------------------------

    def append(
        self,
        previous: NDArray[np.int64] | None,
        n_new: NDArray[np.int64],
        payloads: Payloads,
        encoder: FrameEncoder,
    ) -> NDArray[np.int64]:
        """Append the slots of rows of items that continue a row, which share frames with it.

        :param previous: references to the slots of the row before, ``(n_envs,)``; ``None`` if all frames are new
        :param n_new: the number of new frames of each item, ``(n_rows, n_envs)``; its other frames are the newest ones
            of the item before
        :param payloads: those of the new frames of the first environment, then those of the next one
        :param encoder: what encoded them
        :return: references, ``(n_rows, n_envs)``; none is stored if this raises
        :raises OSError: if they cannot be written
        """
        n_frames, places, skipped = encoder.n_frames, payloads.places, self.checksum_nbytes
        if previous is None:
            previous = NO_ADDRESSES
        references = np.empty(n_new.shape, REFERENCE)
        # At most, since an item without new frames needs no slot.
        nbytes = payloads.nbytes + len(places) * (skipped + PAYLOAD_HEADER)
        nbytes += n_new.size * (skipped + SLOT_HEADER + 4 * n_frames)
        while True:
            claim = self.claim(nbytes)
            appender = self._appenders.get(id(encoder))
            if (
                appender is None
                or appender.data is not claim.segment.bytes
                or appender.codec is not encoder.codec
                or appender.layout is not encoder.layout
            ):
                self.append_claimed(claim, 0)  # the codec may be written there first
                self._add_appender(encoder)
                continue
            written = slot_kernels().append_rows(
                previous, n_new, places, appender.record, claim.offset, claim.room, references
            )
            if written != ELSEWHERE:
                break
            self.append_claimed(claim, 0)
            # A slot refers to its own segment only. This is repeated if a handler of a signal has copied the buffer
            # meanwhile, which ends the segment.
            continued = np.where(n_new[0] < n_frames, previous, 0)  # of others, none is copied
            if (continued[continued != 0] >> 32 == claim.segment.number).all():
                raise StorageError(f"items of {n_frames} frames cannot continue items of another number of frames")
            with self.copier_from(self, is_copy=True) as copier:
                previous = copier.copy(continued)
        self.append_claimed(claim, written)
        return references

    def append_items(
        self, batch: PayloadBatch, items: NDArray[np.int64], previous: NDArray[np.int64] = NO_ADDRESSES
    ) -> NDArray[np.int64]:
        """Append items that another encoder has encoded; payloads in one place, and items that have the same, once.

        :param batch: the items
        :param items: the numbers of the items in the batch, in the order in which they are written, ``(n,)``
        :param previous: references to slots that the first items may repeat, ``(at most n,)``
        :return: references to slots, ``(n,)``
        :raises OSError: if they cannot be written
        """
        places, skipped = batch.payloads.places, self.checksum_nbytes
        first_same = batch.first_same
        # At most, in one part: if the disk is full, nothing is left there.
        nbytes = int(places[first_same == np.arange(len(places)), 1].sum())
        nbytes += (skipped + PAYLOAD_HEADER + 4) * len(places) + (skipped + SLOT_HEADER) * len(items)
        codecs = np.array([self._name_of(codec) for codec in batch.codecs], np.int64)
        places = np.column_stack((places[:, :2], codecs[places[:, 2]]))
        references, written = np.empty(len(items), REFERENCE), np.full((len(places), 3), -1)
        claim = self.claim(nbytes)
        nbytes = copying_kernels().append_items(
            previous, items, references, places, batch.offsets, first_same, claim.record(skipped), written
        )
        self.append_claimed(claim, nbytes)
        return references

    def copier_from(self, source: SlotLog, accepted: AcceptedCodec | None = None, **options: Any) -> SlotCopier:
        """Return what copies slots of another log to this one.

        :param source: the log that contains them
        :param accepted: the codec that they must have, as for :meth:`gather`
        :param options: ``is_copy`` and ``before_claim`` of :class:`.SlotCopier`
        """

        def codec_here(address: int) -> int:
            codec = source.accepted_codec_at(address, accepted)
            return 0 if codec is None else self._name_of(codec)

        return SlotCopier(source, self, codec_here, **options)

    def address_of_codec(self, codec: Codec) -> int:
        """Return the address of a codec in the last segment, after writing it there if necessary."""
        segment, written = self._begin_appending(), self._written_codecs
        if id(codec) not in written:  # one that was read from the log may be equal to another one
            equal = (offset for offset, other in written.values() if other == codec)
            written[id(codec)] = next(equal, None) or self.append_codec(codec), codec
        return segment.number << 32 | written[id(codec)][0]

    def _name_of(self, codec: Codec) -> int:
        """Return how payloads in the last segment name their codec, 0 for one that is not trainable."""
        return self.address_of_codec(codec) & OFFSET if isinstance(codec, TrainableCodec) else 0

    def _add_appender(self, encoder: FrameEncoder) -> None:
        """Find out how rows of an encoder are appended to the last segment."""
        segment, appenders = self._begin_appending(), self._appenders
        codec, layout = encoder.codec, encoder.layout
        name = self._name_of(codec)
        data = segment.bytes  # only now: a folder maps it again when it writes a codec
        record = np.zeros(1, APPENDED_ROWS)
        record["segment"] = segment_table([(segment, data)], self.checksum_nbytes)
        record["codec"], record["n_frames"], record["newest_first"] = name, encoder.n_frames, encoder.newest_first
        appenders[id(encoder)] = RowAppender(data, codec, layout, record)

    def _begin_appending(self) -> SlotSegment:
        """Return the segment to append to, and drop what is cached of another one."""
        segment = self.segment_to_write()
        if segment.number != self._appended_to:
            self._written_codecs = {}
            self.drop_cached(self.segments)
            self._appended_to = segment.number  # only now: whatever interrupts this, no offset of another one is cached
        return segment


@cache
def slot_kernels() -> ModuleType:
    """Import the kernels on first use: importing numba is slow."""
    from sb3_compressed.arrays import slot_kernels

    return slot_kernels
