"""``SlotWriter``: appends slots and payloads to a log."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_copying import SlotCopier, copying_kernels
from sb3_compressed.arrays.slot_format import ELSEWHERE, OFFSET, PAYLOAD_HEADER, SLOT_HEADER
from sb3_compressed.arrays.slot_log import (
    NO_ADDRESSES,
    REFERENCE,
    SlotLog,
    SlotSegment,
    address_of,
    segment_table,
    slot_kernels,
)
from sb3_compressed.arrays.slot_reader import AcceptedCodec, SlotReader
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import StorageError

__all__ = ["SlotWriter"]

NO_BYTES = np.empty(0, np.uint8)


class SlotWriter:
    """Writes slots to a log, and each payload once, however many slots refer to it.

    :param log: the log to write to
    :param reader: reads from it
    """

    def __init__(self, log: SlotLog, reader: SlotReader) -> None:
        self._log, self._reader = log, reader
        self._segment, self._target = -1, segment_table((), 0)
        #: By the id of a codec, its offset in the segment, and the codec.
        self._codecs: dict[int, tuple[int, Codec]] = {}

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
        places, skipped = batch.payloads.places, self._log.checksum_nbytes
        _, first_same, _ = batch.find_repeated()
        nbytes = int(places[first_same == np.arange(len(places)), 1].sum()) + (skipped + PAYLOAD_HEADER + 4) * len(
            places
        )
        nbytes += (skipped + SLOT_HEADER) * len(
            items
        )  # at most, in one part: if the disk is full, nothing is left there
        codecs = np.array([self._number_of(codec) for codec in batch.codecs], np.int64)
        claim = self._log.claim(nbytes)
        references, written = np.empty(len(items), REFERENCE), np.full((len(places), 3), -1)
        target = segment_table([(claim.segment, claim.segment.bytes)], skipped)
        nbytes = copying_kernels().append_items(
            previous, items, references, places, batch.offsets, first_same, codecs, target, claim.offset, claim.room,
            written,
        )  # fmt: skip
        self._log.append_claimed(claim, nbytes)
        return references

    def _number_of(self, codec: Codec) -> int:
        """Return how payloads in the last segment name their codec, 0 for one that is not trainable."""
        return self.address_of_codec(codec) & OFFSET if isinstance(codec, TrainableCodec) else 0

    def address_of_codec(self, codec: Codec) -> int:
        """Return the address of a codec in the last segment, after writing it there if necessary."""
        segment, *_ = self._log.reserve()
        if segment.number != self._segment:
            self._begin(segment)
        return address_of(segment.number, self._offset_of(codec))

    def copier(self, source: SlotReader, accepted: AcceptedCodec | None = None, **options: Any) -> SlotCopier:
        """Return what copies slots to the log.

        :param source: reads from the log that contains them
        :param accepted: the codec that they must have, as :attr:`.SlotStore.codec`
        :param options: ``is_copy`` and ``before_claim`` of :class:`.SlotCopier`
        """

        def codec_here(address: int) -> int:
            codec = source.accepted(address, accepted)
            return 0 if codec is None else self._number_of(codec)

        return SlotCopier(source.log, self._log, codec_here, **options)

    def _offset_of(self, codec: Codec) -> int:
        """Return the offset of a codec in the last segment, after writing it there if necessary."""
        if id(codec) not in self._codecs:  # one that was read from the log may be equal to another one
            equal = (offset for offset, other in self._codecs.values() if other == codec)
            self._codecs[id(codec)] = next(equal, None) or self._log.append_codec(codec), codec
        return self._codecs[id(codec)][0]

    def _begin(self, segment: SlotSegment) -> None:
        """Drop what is cached of other segments."""
        self._codecs.clear()
        self._reader.drop_cached(self._log.segments)
        self._target = segment_table([(segment, NO_BYTES)], self._log.checksum_nbytes)
        self._segment = segment.number  # only now: whatever interrupts this, no offset of another one is cached

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
        kernels, log = slot_kernels(), self._log
        n_frames, places, skipped = encoder.n_frames, payloads.places, log.checksum_nbytes
        if previous is None:
            previous = NO_ADDRESSES
        references = np.empty(n_new.shape, REFERENCE)
        # At most, since an item without new frames needs no slot.
        room_nbytes = payloads.nbytes + len(places) * (skipped + PAYLOAD_HEADER)
        room_nbytes += n_new.size * (skipped + SLOT_HEADER + 4 * n_frames)
        is_copied = False
        while True:
            segment, room, at = log.reserve(room_nbytes)
            if segment.number != self._segment:
                self._begin(segment)
            codec = 0
            if encoder.is_trainable:
                cached = self._codecs.get(id(encoder.codec))
                codec = cached[0] if cached else self._offset_of(encoder.codec)
            nbytes = kernels.append_rows(
                previous, n_new, places, codec, n_frames, encoder.newest_first, self._target, segment.bytes,
                segment.next_offset, room[at:], references,
            )  # fmt: skip
            if nbytes != ELSEWHERE:
                break
            if is_copied:
                raise StorageError(f"items of {n_frames} frames cannot continue items of another number of frames")
            # A slot refers to its own segment only.
            continued = np.where(n_new[0] < n_frames, previous, 0)  # of others, none is copied
            with self.copier(self._reader, is_copy=True) as copier:
                previous = copier.copy(continued)
            is_copied = True
        log.append_reserved(nbytes)
        return references
