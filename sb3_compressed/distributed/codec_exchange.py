"""``CodecExchange``: codecs by their digests, and their configurations as they are sent to other processes.

A codec may be large after its training, and thousands of blocks refer to it, so it is sent once.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from weakref import WeakValueDictionary

import zstandard

from sb3_compressed.arrays.payload_batch import codec_digest
from sb3_compressed.codecs import Codec
from sb3_compressed.codecs.registry import codec_from_config
from sb3_compressed.errors import CorruptPayload

__all__ = ["CodecExchange", "pack_codec", "unpack_codec"]

#: Codecs with what they learned are smaller.
MAX_CONFIG_NBYTES = 64 << 20


class CodecExchange(Mapping[bytes, Codec]):
    """The codecs that are in use, and some that were used last, by their digests.

    A codec that nothing else refers to is forgotten when ``n_kept`` others have been used since.

    :param n_kept: how many codecs are kept in any case
    """

    def __init__(self, n_kept: int) -> None:
        self._n_kept = n_kept
        self._all: WeakValueDictionary[bytes, Codec] = WeakValueDictionary()
        self._kept: OrderedDict[bytes, Codec] = OrderedDict()

    def add(self, codec: Codec) -> bytes:
        """Include a codec, and return its digest."""
        digest = codec_digest(codec)
        self._keep(digest, self._all.setdefault(digest, codec))
        return digest

    def receive(self, configs: Mapping[bytes, bytes]) -> None:
        """Include the codecs that :meth:`configs_of` returned in another process.

        :raises CorruptPayload: if a configuration is invalid, or not that of its digest
        """
        for digest, config in configs.items():
            if digest not in self._all:
                codec = unpack_codec(config)
                if codec_digest(codec) != digest:
                    raise CorruptPayload(f"the codec {codec!r} does not have the digest {digest.hex()}")
                self.add(codec)

    def configs_of(self, digests: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the configurations of some codecs, without those that are not in use any more."""
        return {digest: pack_codec(codec) for digest in digests if (codec := self._all.get(digest)) is not None}

    def _keep(self, digest: bytes, codec: Codec) -> None:
        self._kept[digest] = codec
        self._kept.move_to_end(digest)
        while len(self._kept) > self._n_kept:
            self._kept.popitem(last=False)

    def __getitem__(self, digest: bytes) -> Codec:
        codec = self._all[digest]
        self._keep(digest, codec)
        return codec

    def __contains__(self, digest: object) -> bool:
        return digest in self._all

    def __iter__(self) -> Iterator[bytes]:
        return iter(list(self._all))

    def __len__(self) -> int:
        return len(self._all)


def pack_codec(codec: Codec) -> bytes:
    """Return the configuration of a codec, with what it has learned.

    :raises CodecError: if it cannot be stored
    """
    return zstandard.ZstdCompressor(level=3).compress(json.dumps(codec.get_config(), sort_keys=True).encode())


def unpack_codec(data: bytes) -> Codec:
    """Return the codec that :func:`pack_codec` packed.

    :raises CorruptPayload: if it is damaged
    """
    try:
        reader = zstandard.ZstdDecompressor().stream_reader(data)
        config = reader.read(MAX_CONFIG_NBYTES)
        if reader.read(1):
            raise ValueError(f"it has more than {MAX_CONFIG_NBYTES} bytes")
        return codec_from_config(json.loads(config))
    except (zstandard.ZstdError, ValueError, RecursionError) as error:
        raise CorruptPayload(f"the configuration of a codec is invalid: {error}") from error
