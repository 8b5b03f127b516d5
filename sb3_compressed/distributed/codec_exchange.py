"""``CodecExchange``: codecs by their digests, so that each is sent to another process once.

A codec may be large after its training, and thousands of blocks refer to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from weakref import WeakValueDictionary

from sb3_compressed.arrays.payload_batch import codec_digest
from sb3_compressed.codecs import Codec

__all__ = ["CodecExchange"]


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

    def receive(self, codecs: Mapping[bytes, Codec]) -> None:
        """Include the codecs that :meth:`present` returned in another process, unless there are equal ones."""
        for codec in codecs.values():
            self.add(codec)

    def present(self, digests: Iterable[bytes]) -> dict[bytes, Codec]:
        """Return some codecs, without those that are not in use any more."""
        return {digest: codec for digest in digests if (codec := self._all.get(digest)) is not None}

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
