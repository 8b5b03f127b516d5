"""``PayloadBatch``: the payloads of many items, which every store returns and every decoder takes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs import Codec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CorruptPayload, MissingCodec

__all__ = ["PackedPayloads", "PayloadBatch", "codec_digest"]

DIGEST_NBYTES = 16
MAX_UINT32 = (1 << 32) - 1


class PackedPayloads(NamedTuple):
    """A payload batch for another process: arrays that it can be pickled as, without its codecs.

    :param digests: what :func:`codec_digest` returns of each codec
    :param n_frames: the number of frames of an item
    :param counts: the number of payloads of each item: 0 for an item that was never written, 1 for one that was stored
        as a whole
    :param lengths: the number of bytes of each different payload
    :param writers: the index of the codec of each different payload
    :param content: the bytes of the different payloads, one after the other
    :param indices: the index of each payload of each item among the different ones
    """

    digests: list[bytes]
    n_frames: int
    counts: NDArray[np.uint32]
    lengths: NDArray[np.uint32]
    writers: NDArray[np.uint32]
    content: NDArray[np.uint8]
    indices: NDArray[np.uint32]

    @property
    def nbytes(self) -> int:
        """The number of bytes of all arrays."""
        return sum(array.nbytes for array in (self.counts, self.lengths, self.writers, self.content, self.indices))


class PayloadBatch:
    """The payloads of ``n`` items, and the codec that wrote each.

    :param codecs: the different codecs, of one class
    :param payloads: the payloads of all items, those of one item together, the oldest frame first
    :param n_frames: the number of frames of an item
    :param offsets: the index of the first payload of each item, and the number of payloads, ``(n + 1,)``. An item
        without payloads was never written, one with a single payload was stored as a whole. ``None`` if each item has
        ``n_frames`` payloads
    :param first_same: see :attr:`first_same`; ``None`` if it is not known yet
    :raises ValueError: if these do not fit each other
    """

    def __init__(
        self,
        codecs: Sequence[Codec],
        payloads: Payloads,
        n_frames: int,
        offsets: NDArray[np.int64] | None = None,
        first_same: NDArray[np.int64] | None = None,
    ) -> None:
        self.codecs = codecs
        self.payloads = payloads
        self.n_frames = n_frames
        n_payloads = len(payloads.places)
        self.offsets = np.arange(0, n_payloads + 1, n_frames) if offsets is None else offsets
        self.n_items = len(self.offsets) - 1
        self._first_same = first_same
        #: Whether each item has ``n_frames`` payloads.
        self.is_uniform = self.n_items * n_frames == n_payloads
        if self.offsets[-1] != n_payloads:  # kernels read all payloads of an item
            raise ValueError(f"{n_payloads} payloads are not items of {n_frames} frames each")

    def take(self, items: NDArray[np.intp], n_frames: int) -> PayloadBatch:
        """Return the batch of some items, which have ``n_frames`` payloads each."""
        numbers = (self.offsets[items, np.newaxis] + np.arange(n_frames)).reshape(-1)
        return PayloadBatch(self.codecs, self.payloads[numbers], n_frames)

    def part(self, first: int, last: int) -> PayloadBatch:
        """Return the batch of the items from ``first`` to ``last``, which is not included."""
        begin, end = int(self.offsets[first]), int(self.offsets[last])
        offsets = self.offsets[first : last + 1] - begin
        return PayloadBatch(self.codecs, self.payloads[begin:end], self.n_frames, offsets)

    @classmethod
    def joined(cls, batches: Sequence[PayloadBatch], order: NDArray[np.int64] | None = None) -> PayloadBatch:
        """Return the items of several batches as one batch.

        :param batches: at least one; those whose items are all single payloads may have another number of frames
        :param order: the numbers of the items among those of all batches, in the new order; ``None`` for as they are
        :raises ValueError: if their items have different numbers of frames
        """
        n_frames = max(batch.n_frames for batch in batches)
        codecs: dict[int, Codec] = {}
        places, counts = [], []
        for batch in batches:
            each = np.diff(batch.offsets)
            if batch.n_frames not in (1, n_frames) and each.max(initial=0) > 1:
                raise ValueError(f"batches of {batch.n_frames} and {n_frames} frames an item cannot be joined")
            codecs |= {id(codec): codec for codec in batch.codecs}
            numbers = {key: number for number, key in enumerate(codecs)}
            moved = batch.payloads.places.copy()
            moved[:, 2] = np.array([numbers[id(codec)] for codec in batch.codecs] or [0])[moved[:, 2]]
            places.append(moved)
            counts.append(each)
        all_places, all_counts = np.concatenate(places), np.concatenate(counts)
        if order is not None:
            firsts = np.cumsum(all_counts) - all_counts
            all_counts, firsts = all_counts[order], firsts[order]
            begins = np.cumsum(all_counts) - all_counts
            all_places = all_places[np.repeat(firsts - begins, all_counts) + np.arange(int(all_counts.sum()))]
        offsets = np.concatenate(([0], np.cumsum(all_counts)))
        return cls(
            list(codecs.values()), Payloads(all_places, [batch.payloads for batch in batches]), n_frames, offsets
        )

    @property
    def first_same(self) -> NDArray[np.int64]:
        """For each payload the index of the first one in the same place and by the same codec, which may be its own."""
        if self._first_same is None:
            from sb3_compressed.arrays.payload_kernels import find_repeated_payloads  # imports numba

            found = np.empty(len(self.payloads.places), np.int64)
            find_repeated_payloads(self.payloads.places, found)
            self._first_same = found  # only now: whatever interrupts this, it is found
        return self._first_same

    def equals(self, other: PayloadBatch) -> NDArray[np.bool_]:
        """Return which items were written and have the payloads of those of another batch of as many, by equal codecs.

        Different payloads may decode to equal items, too; this is not found.
        """
        from sb3_compressed.arrays.payload_kernels import equal_items  # imports numba

        same_codecs = np.array(
            [[mine is theirs or mine == theirs for theirs in other.codecs] for mine in self.codecs], np.uint8
        ).reshape(len(self.codecs), len(other.codecs))
        result = np.zeros(self.n_items, np.uint8)
        equal_items(self.payloads.places, self.offsets, other.payloads.places, other.offsets, same_codecs, result)
        return result.view(np.bool_)

    def as_objects(self) -> NDArray[Any]:
        """Return the payloads of each item as Python objects, ``(n,)``: ``bytes``, a tuple of them, or ``None``.

        Payloads in one place are one object.
        """
        _, first, numbers = np.unique(self.payloads.places[:, 0], return_index=True, return_inverse=True)
        distinct = [*self.payloads[first]]
        payloads = [distinct[number] for number in numbers.tolist()]
        objects = np.empty(self.n_items, object)
        for index, (begin, end) in enumerate(pairwise(self.offsets.tolist())):
            if begin < end:
                objects[index] = payloads[begin] if end == begin + 1 else tuple(payloads[begin:end])
        return objects

    def pack(self) -> PackedPayloads:
        """Return the batch for another process; payloads that items share are packed once.

        >>> import numpy as np
        >>> from sb3_compressed import get_codec
        >>> codec = get_codec("zstd3")
        >>> batch = PayloadBatch(
        ...     [codec], Payloads.of(codec.encode(np.zeros((4, 84, 84), np.uint8))), n_frames=2
        ... )
        >>> other = PayloadBatch.unpack(batch.pack(), {codec_digest(codec): codec})
        >>> other.n_items, list(other.payloads) == list(batch.payloads)
        (2, True)

        :raises CodecError: if a codec has no configuration that can be stored
        :raises ValueError: if a payload is larger than 4 GiB
        """
        from sb3_compressed.arrays.payload_kernels import concatenate_payloads  # imports numba

        places = self.payloads.places
        is_first = self.first_same == np.arange(len(places))
        distinct = np.ascontiguousarray(places[is_first])
        if distinct[:, 1].max(initial=0) > MAX_UINT32:
            raise ValueError(f"payloads of {distinct[:, 1].max()} bytes are too large to be packed")
        content = np.empty(int(distinct[:, 1].sum()), dtype=np.uint8)
        concatenate_payloads(distinct, content)
        return PackedPayloads(
            digests=[codec_digest(codec) for codec in self.codecs],
            n_frames=self.n_frames,
            counts=np.diff(self.offsets).astype(np.uint32),
            lengths=distinct[:, 1].astype(np.uint32),
            writers=distinct[:, 2].astype(np.uint32),
            content=content,
            indices=(np.cumsum(is_first) - 1)[self.first_same].astype(np.uint32),
        )

    @classmethod
    def unpack(cls, packed: PackedPayloads, codecs: Mapping[bytes, Codec]) -> PayloadBatch:
        """Return the batch that :meth:`pack` packed, in its memory.

        :param packed: its arrays must not change as long as the batch is used
        :param codecs: codecs by their digests
        :raises CorruptPayload: if its parts do not fit each other, so that kernels would read other memory
        :raises MissingCodec: if codecs are missing; ``digests`` lists them
        """
        n_frames, lengths = packed.n_frames, packed.lengths.astype(np.int64)
        ends = np.cumsum(lengths)
        n_bytes = int(ends[-1]) if len(ends) else 0
        if n_frames < 1 or not np.isin(packed.counts, (0, 1, n_frames)).all():
            raise CorruptPayload(f"items of {n_frames} frames have other numbers of payloads than 0, 1 and {n_frames}")
        if packed.counts.sum() != len(packed.indices):
            raise CorruptPayload(f"items of {packed.counts.sum()} payloads cannot have {len(packed.indices)}")
        if n_bytes != len(packed.content) or len(lengths) != len(packed.writers):
            raise CorruptPayload(f"there must be {n_bytes} bytes of {len(lengths)} payloads, each with its codec")
        for indices, length in ((packed.indices, len(lengths)), (packed.writers, len(packed.digests))):
            if len(indices) and indices.max() >= length:
                raise CorruptPayload(f"there is no payload or codec with the index {indices.max()}, only {length}")
        if absent := [digest for digest in packed.digests if digest not in codecs]:
            raise MissingCodec(absent)
        found = [codecs[digest] for digest in packed.digests]
        if len({type(codec) for codec in found}) > 1:
            raise CorruptPayload(f"codecs of different classes wrote it: {found}")
        begins = packed.content.ctypes.data + ends - lengths
        places = np.stack([begins, lengths, packed.writers], axis=1, dtype=np.int64)
        offsets = np.append(0, np.cumsum(packed.counts, dtype=np.int64))
        return cls(found, Payloads(places[packed.indices], packed.content), n_frames, offsets)


def codec_digest(codec: Codec) -> bytes:
    """Return 16 bytes that name a codec with all that it has learned, the same in every process."""
    attributes = vars(codec)
    if "_digest" not in attributes:  # codecs do not change, and what they learned may be large
        config = json.dumps(codec.get_config(), sort_keys=True, separators=(",", ":"))
        attributes["_digest"] = hashlib.blake2b(config.encode(), digest_size=DIGEST_NBYTES).digest()
    digest: bytes = attributes["_digest"]
    return digest
