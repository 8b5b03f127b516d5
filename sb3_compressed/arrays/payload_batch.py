"""``PayloadBatch``: the payloads of many items, which every store returns and every decoder takes.

A batch can be packed into one block of bytes for another process. Numbers are little-endian. The block begins with a
header: magic, version, number of sections (uint32 each), size of the block (uint64) and the XXH64 checksum of all other
bytes of the block. Then follows a table with the name (16 bytes, padded with zeros), the offset and the size (uint64
each) of each section, then the sections, each aligned to 8 bytes. A reader skips sections that it does not support if
their name begins with a lower-case letter, and refuses the block otherwise:

- ``Codecs``: the digest of each codec, 16 bytes, see :func:`codec_digest`;
- ``Items``: the number of frames of an item, then the number of payloads of each item (uint32): 0 for an item that was
  never written, 1 for one that was stored as a whole;
- ``Lengths``: the number of bytes of each payload (uint32);
- ``Writers``: the index of the codec of each payload (uint32);
- ``Payloads``: the bytes of the payloads, one after the other;
- ``Indices``: only if items share payloads: these are then stored once, and this is the index of each payload of each
  item among them (uint32).
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs import Codec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CorruptPayload, MissingCodec

__all__ = ["MAX_CODECS", "PayloadBatch", "codec_digest", "pack_sections", "unpack_sections"]

#: Codecs of one batch that kernels have room for.
MAX_CODECS = 256

MAGIC = b"SB3C"
VERSION = 2
HEADER = struct.Struct("<4sIIQ8s")
CHECKSUM_AT = HEADER.size - 8
SECTION = struct.Struct("<16sQQ")
ALIGNMENT = 8
DIGEST_NBYTES = 16
REQUIRED = ("Codecs", "Items", "Lengths", "Writers", "Payloads")
INDICES = "Indices"
MAX_UINT32 = (1 << 32) - 1

Section = bytes | NDArray[Any]
"""The content of a section."""


class PayloadBatch:
    """The payloads of ``n`` items, and the codec that wrote each.

    :param codecs: the different codecs, of one class
    :param payloads: the payloads of all items, those of one item together, the oldest frame first
    :param n_frames: the number of frames of an item
    :param offsets: the index of the first payload of each item, and the number of payloads, ``(n + 1,)``. An item
        without payloads was never written, one with a single payload was stored as a whole. ``None`` if each item has
        ``n_frames`` payloads
    :raises ValueError: if these do not fit each other
    """

    def __init__(
        self, codecs: Sequence[Codec], payloads: Payloads, n_frames: int, offsets: NDArray[np.int64] | None = None
    ) -> None:
        self.codecs = codecs
        self.payloads = payloads
        self.n_frames = n_frames
        n_payloads = len(payloads.places)
        self.offsets = np.arange(0, n_payloads + 1, n_frames) if offsets is None else offsets
        self.n_items = len(self.offsets) - 1
        #: Whether each item has ``n_frames`` payloads.
        self.is_uniform = self.n_items * n_frames == n_payloads
        if self.offsets[-1] != n_payloads:  # kernels read all payloads of an item
            raise ValueError(f"{n_payloads} payloads are not items of {n_frames} frames each")

    def take(self, items: NDArray[np.intp], n_frames: int) -> PayloadBatch:
        """Return the batch of some items, which have ``n_frames`` payloads each."""
        numbers = (self.offsets[items, np.newaxis] + np.arange(n_frames)).reshape(-1)
        return PayloadBatch(self.codecs, self.payloads[numbers], n_frames)

    def select(self, numbers: NDArray[np.int64]) -> PayloadBatch:
        """Return a batch of some payloads, each of them one item of one frame."""
        return PayloadBatch(self.codecs, self.payloads[numbers], n_frames=1)

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

    def find_repeated(self) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        """Find the payloads that occur several times among the ``m`` payloads.

        :return: for each payload 1 if an earlier one is the same, else 0, ``(m,)``; the index of the first one that is
            the same, ``(m,)``; the indices of those that are repeated
        """
        from sb3_compressed.arrays.payload_kernels import find_repeated  # imports numba

        places = self.payloads.places
        n = len(places)
        table = np.empty(1 << (2 * n).bit_length(), np.int64)
        first, repeated, is_repeated = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.uint8)
        n_repeated = find_repeated(places, table, first, repeated, is_repeated)
        return is_repeated, first, repeated[:n_repeated]

    def sections(self) -> dict[str, Section]:
        """Return the batch as sections of a block, without the codecs, see the module.

        >>> import numpy as np
        >>> from sb3_compressed import get_codec
        >>> codec = get_codec("zstd3")
        >>> batch = PayloadBatch(
        ...     [codec], Payloads.of(codec.encode(np.zeros((4, 84, 84), np.uint8))), n_frames=2
        ... )
        >>> block = pack_sections(batch.sections())
        >>> other = PayloadBatch.from_sections(unpack_sections(block), {codec_digest(codec): codec})
        >>> other.n_items, list(other.payloads) == list(batch.payloads)
        (2, True)

        :raises CodecError: if a codec has no configuration that can be stored
        :raises ValueError: if a payload is larger than 4 GiB
        """
        from sb3_compressed.arrays.payload_kernels import concatenate_payloads  # imports numba

        places = self.payloads.places
        is_repeated, first, repeated = self.find_repeated()
        is_shared = len(repeated) > 0
        is_first = is_repeated == 0
        distinct = places[is_first] if is_shared else places
        if distinct[:, 1].max(initial=0) > MAX_UINT32:
            raise ValueError(f"payloads of {distinct[:, 1].max()} bytes are too large to be packed")
        content = np.empty(int(distinct[:, 1].sum()), dtype=np.uint8)
        concatenate_payloads(np.ascontiguousarray(distinct), content)
        sections: dict[str, Section] = {
            "Codecs": b"".join(map(codec_digest, self.codecs)),
            "Items": np.append(self.n_frames, np.diff(self.offsets)).astype("<u4"),
            "Lengths": distinct[:, 1].astype("<u4"),
            "Writers": distinct[:, 2].astype("<u4"),
            "Payloads": content,
        }
        if is_shared:
            sections[INDICES] = (np.cumsum(is_first) - 1)[first].astype("<u4")
        return sections

    @classmethod
    def from_sections(cls, sections: Mapping[str, NDArray[np.uint8]], codecs: Mapping[bytes, Codec]) -> PayloadBatch:
        """Return the batch of which :meth:`sections` returned these sections, in their memory.

        :param sections: they must not change as long as the batch is used
        :param codecs: codecs by their digests
        :raises CorruptPayload: if they do not fit each other, or are of a later version
        :raises MissingCodec: if codecs are missing; ``digests`` lists them
        """
        known = {*REQUIRED, INDICES}
        if unknown := [name for name in sections if name not in known and not name[:1].islower()]:
            raise CorruptPayload(f"a later version packed it, with the sections {', '.join(unknown)}")
        if missing := [name for name in REQUIRED if name not in sections]:
            raise CorruptPayload(f"the block has no sections {', '.join(missing)}")
        digests = _elements(sections["Codecs"], np.dtype((np.void, DIGEST_NBYTES))).tolist()
        items = _elements(sections["Items"], np.dtype("<u4")).astype(np.int64)
        n_frames = int(items[0]) if len(items) else 0
        lengths, writers = (
            _elements(sections[name], np.dtype("<u4")).astype(np.int64) for name in ("Lengths", "Writers")
        )
        indices = _elements(sections[INDICES], np.dtype("<u4")) if INDICES in sections else None
        n_payloads = len(lengths) if indices is None else len(indices)
        offsets, ends = np.append(0, np.cumsum(items[1:])), np.cumsum(lengths)
        _check_items(items[1:], n_frames, n_payloads)
        n_bytes = int(ends[-1]) if len(ends) else 0
        if n_bytes != len(sections["Payloads"]):
            raise CorruptPayload(f"section Lengths declares {n_bytes} bytes, Payloads has {len(sections['Payloads'])}")
        if len(writers) != len(lengths):
            raise CorruptPayload(f"section Writers has {len(writers)} elements for {len(lengths)} payloads")
        _check_indices("Writers", writers, "codecs", len(digests))
        if indices is not None:
            _check_indices(INDICES, indices, "payloads", len(lengths))
        if absent := [digest for digest in digests if digest not in codecs]:
            raise MissingCodec(absent)
        found = [codecs[digest] for digest in digests]
        if len({type(codec) for codec in found}) > 1:
            raise CorruptPayload(f"codecs of different classes wrote it: {found}")
        payloads = sections["Payloads"]
        places = np.stack([payloads.ctypes.data + ends - lengths, lengths, writers], axis=1, dtype=np.int64)
        return cls(found, Payloads(places if indices is None else places[indices], payloads), n_frames, offsets)


def _check_items(counts: NDArray[np.int64], n_frames: int, n_payloads: int) -> None:
    """Check the numbers of payloads of the items of a block.

    :raises CorruptPayload: if an item cannot have so many, or the block does not
    """
    if not n_frames or not np.isin(counts, (0, 1, n_frames)).all():
        raise CorruptPayload(f"section Items has other numbers of payloads than 0, 1 and those of {n_frames} frames")
    if counts.sum() != n_payloads:
        raise CorruptPayload(f"section Items declares {counts.sum()} payloads, the block has {n_payloads}")


def _check_indices(section: str, indices: NDArray[Any], what: str, length: int) -> None:
    """Check the elements of a section that number others.

    :raises CorruptPayload: if one is out of range
    """
    if len(indices) and indices.max() >= length:
        raise CorruptPayload(f"section {section} has index {indices.max()} of {length} {what}")


def codec_digest(codec: Codec) -> bytes:
    """Return 16 bytes that name a codec with all that it has learned, the same in every process."""
    attributes = vars(codec)
    if "_digest" not in attributes:  # codecs do not change, and what they learned may be large
        config = json.dumps(codec.get_config(), sort_keys=True, separators=(",", ":"))
        attributes["_digest"] = hashlib.blake2b(config.encode(), digest_size=DIGEST_NBYTES).digest()
    digest: bytes = attributes["_digest"]
    return digest


def pack_sections(sections: Mapping[str, Section]) -> NDArray[np.uint8]:
    """Return a block of named sections, see the module."""
    views = [np.frombuffer(section, dtype=np.uint8) for section in sections.values()]
    begin = _aligned(HEADER.size + SECTION.size * len(sections))
    block = np.empty(begin + sum(_aligned(len(view)) for view in views), dtype=np.uint8)
    block[:begin] = 0
    offset = begin
    for number, (name, view) in enumerate(zip(sections, views, strict=True)):
        SECTION.pack_into(block.data, HEADER.size + number * SECTION.size, name.encode("ascii"), offset, len(view))
        end = offset + len(view)
        block[offset:end] = view
        offset = offset + _aligned(len(view))
        block[end:offset] = 0
    HEADER.pack_into(block.data, 0, MAGIC, VERSION, len(sections), offset, b"")
    block[CHECKSUM_AT : HEADER.size] = np.frombuffer(_checksum(block), dtype=np.uint8)
    return block


def unpack_sections(block: bytes | bytearray | memoryview | NDArray[np.uint8]) -> dict[str, NDArray[np.uint8]]:
    """Return the sections of a block by their names, in its memory.

    :raises CorruptPayload: if the block is damaged or of another version
    """
    data = np.frombuffer(block, dtype=np.uint8)
    if len(data) < HEADER.size:
        raise CorruptPayload(f"the block has {len(data)} bytes, fewer than its header")
    magic, version, n_sections, nbytes, checksum = HEADER.unpack_from(data.data)
    if magic != MAGIC:
        raise CorruptPayload(f"the block begins with {magic!r}, not with {MAGIC!r}")
    if version != VERSION:
        raise CorruptPayload(f"the block is of version {version}, this package reads version {VERSION}")
    table_end = HEADER.size + SECTION.size * n_sections
    if nbytes != len(data) or table_end > nbytes:
        raise CorruptPayload(f"the block has {len(data)} bytes, its header declares {nbytes}")
    if _checksum(data) != checksum:
        raise CorruptPayload("the checksum of the block is wrong")
    sections: dict[str, NDArray[np.uint8]] = {}
    for position in range(HEADER.size, table_end, SECTION.size):
        name, offset, size = SECTION.unpack_from(data.data, position)
        if not table_end <= offset <= nbytes - size:
            raise CorruptPayload(f"section {name!r} of the block is out of bounds")
        sections[name.rstrip(b"\0").decode("ascii", "replace")] = data[offset : offset + size]
    return sections


def _checksum(block: NDArray[np.uint8]) -> bytes:
    """Return the checksum of all other bytes of a block."""
    from sb3_compressed.kernels.checksum import checksum  # imports numba

    return checksum(block[HEADER.size :], seed=checksum(block[:CHECKSUM_AT])).to_bytes(8, "little")


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _elements(section: NDArray[np.uint8], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a section as an array.

    :raises CorruptPayload: if it does not consist of such elements
    """
    if len(section) % dtype.itemsize:
        raise CorruptPayload(f"a section of {len(section)} bytes has no elements of {dtype.itemsize} bytes")
    return np.frombuffer(section, dtype)
