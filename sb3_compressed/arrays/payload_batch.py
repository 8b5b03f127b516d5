"""``PayloadBatch``: the payloads of many items, which every store returns and every decoder takes.

A batch can be packed into one block of bytes for a file, a socket or a device. Numbers are little-endian. The block
begins with a header: magic, version, number of sections (uint32 each), size of the block (uint64) and a checksum, the
8-byte BLAKE2b of all other bytes of the block. Then follows a table with the name (16 bytes, padded with zeros), the
offset and the size (uint64 each) of each section, then the sections, each aligned to 8 bytes. A reader skips sections
that it does not support if their name begins with a lower-case letter, and refuses the block otherwise:

- ``Codecs``: the digest of each codec, 16 bytes, see :func:`codec_digest`;
- ``Items``: the number of frames of an item, then the number of payloads of each item (uint32): 0 for an item that was
  never written, 1 for one that was stored as a whole;
- ``Lengths``: the number of bytes of each payload (uint32);
- ``Writers``: the index of the codec of each payload (uint32);
- ``Payloads``: the bytes of the payloads, one after the other.
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

MAGIC, VERSION = b"SB3C", 1
HEADER = struct.Struct("<4sIIQ8s")
CHECKSUM_AT = HEADER.size - 8
SECTION = struct.Struct("<16sQQ")
ALIGNMENT = 8
DIGEST_NBYTES = 16
REQUIRED = ("Codecs", "Items", "Lengths", "Writers", "Payloads")
MAX_UINT32 = (1 << 32) - 1


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
        places = self.payloads.places[self.offsets[items, np.newaxis] + np.arange(n_frames)].reshape(-1, 3)
        return PayloadBatch(self.codecs, Payloads(places, self.payloads.owner), n_frames)

    def select(self, numbers: NDArray[np.int64]) -> PayloadBatch:
        """Return a batch of some payloads, each of them one item of one frame."""
        return PayloadBatch(self.codecs, self.payloads.select(numbers), n_frames=1)

    def pack(self) -> bytes:
        """Return the batch as one block of bytes, without the codecs.

        :raises CodecError: if a codec has no configuration that can be stored
        :raises ValueError: if a payload is larger than 4 GiB
        """
        places = self.payloads.places
        if places[:, 1].max(initial=0) > MAX_UINT32:
            raise ValueError(f"payloads of {places[:, 1].max()} bytes are too large to be packed")
        return pack_sections(
            {
                "Codecs": b"".join(map(codec_digest, self.codecs)),
                "Items": np.append(self.n_frames, np.diff(self.offsets)).astype("<u4").tobytes(),
                "Lengths": places[:, 1].astype("<u4").tobytes(),
                "Writers": places[:, 2].astype("<u4").tobytes(),
                "Payloads": b"".join(self.payloads),
            }
        )

    @classmethod
    def unpack(cls, block: bytes | bytearray | memoryview, codecs: Mapping[bytes, Codec]) -> PayloadBatch:
        """Return the batch that :meth:`pack` packed, without copying the payloads.

        >>> import numpy as np
        >>> from sb3_compressed import get_codec
        >>> codec = get_codec("zstd3")
        >>> batch = PayloadBatch([codec], Payloads.of(codec.encode(np.zeros((4, 84, 84), np.uint8))), n_frames=2)
        >>> other = PayloadBatch.unpack(batch.pack(), {codec_digest(codec): codec})
        >>> other.n_items, list(other.payloads) == list(batch.payloads)
        (2, True)

        :param block: the block, which must not change as long as the batch is used
        :param codecs: codecs by their digests
        :raises CorruptPayload: if the block is damaged or of another version
        :raises MissingCodec: if codecs are missing; ``digests`` lists them
        """
        sections = unpack_sections(block)
        if unknown := [name for name in sections if name not in REQUIRED and not name[:1].islower()]:
            raise CorruptPayload(f"a later version packed it, with the sections {', '.join(unknown)}")
        if missing := [name for name in REQUIRED if name not in sections]:
            raise CorruptPayload(f"the block has no sections {', '.join(missing)}")
        digests = _elements(sections["Codecs"], np.dtype((np.void, DIGEST_NBYTES))).tolist()
        items = _elements(sections["Items"], np.dtype("<u4")).astype(np.int64)
        n_frames = int(items[0]) if len(items) else 0
        lengths, writers = (_elements(sections[name], np.dtype("<u4")) for name in ("Lengths", "Writers"))
        offsets = np.cumsum(items) - n_frames
        counts = items[1:]
        ends = np.cumsum(lengths, dtype=np.int64)
        if not (
            n_frames >= 1
            and ((counts == 0) | (counts == 1) | (counts == n_frames)).all()
            and offsets[-1] == len(lengths) == len(writers)
            and (ends[-1] if len(ends) else 0) == len(sections["Payloads"])
            and writers.max(initial=0) < max(len(digests), 1)
            and (len(digests) or not len(lengths))
        ):
            raise CorruptPayload("the sections of the block do not fit each other")
        if absent := [digest for digest in digests if digest not in codecs]:
            raise MissingCodec(absent)
        found = [codecs[digest] for digest in digests]
        if len({type(codec) for codec in found}) > 1:
            raise CorruptPayload(f"codecs of different classes wrote it: {found}")
        payloads = sections["Payloads"]
        places = np.stack([payloads.ctypes.data + ends - lengths, lengths, writers], axis=1, dtype=np.int64)
        return cls(found, Payloads(places, payloads), n_frames, offsets)


def codec_digest(codec: Codec) -> bytes:
    """Return 16 bytes that name a codec with all that it has learned, the same in every process."""
    config = json.dumps(codec.get_config(), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(config.encode(), digest_size=DIGEST_NBYTES).digest()


def pack_sections(sections: Mapping[str, bytes]) -> bytes:
    """Return a block of named sections, see the module."""
    table: list[bytes] = []
    content: list[bytes] = []
    offset = _aligned(HEADER.size + SECTION.size * len(sections))
    padding = bytes(offset - HEADER.size - SECTION.size * len(sections))
    for name, section in sections.items():
        table.append(SECTION.pack(name.encode("ascii"), offset, len(section)))
        content.append(section + bytes(_aligned(len(section)) - len(section)))
        offset += len(content[-1])
    head, body = HEADER.pack(MAGIC, VERSION, len(sections), offset, b""), b"".join([*table, padding, *content])
    return head[:CHECKSUM_AT] + _checksum(head[:CHECKSUM_AT], body) + body


def unpack_sections(block: bytes | bytearray | memoryview) -> dict[str, NDArray[np.uint8]]:
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
    if _checksum(data[:CHECKSUM_AT].tobytes(), data[HEADER.size :].data) != checksum:
        raise CorruptPayload("the checksum of the block is wrong")
    sections: dict[str, NDArray[np.uint8]] = {}
    for position in range(HEADER.size, table_end, SECTION.size):
        name, offset, size = SECTION.unpack_from(data.data, position)
        if not table_end <= offset <= nbytes - size:
            raise CorruptPayload(f"section {name!r} of the block is out of bounds")
        sections[name.rstrip(b"\0").decode("ascii", "replace")] = data[offset : offset + size]
    return sections


def _checksum(head: bytes, body: bytes | memoryview) -> bytes:
    state = hashlib.blake2b(head, digest_size=8)
    state.update(body)
    return state.digest()


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _elements(section: NDArray[np.uint8], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a section as an array.

    :raises CorruptPayload: if it does not consist of such elements
    """
    if len(section) % dtype.itemsize:
        raise CorruptPayload(f"a section of {len(section)} bytes has no elements of {dtype.itemsize} bytes")
    return np.frombuffer(section, dtype)
