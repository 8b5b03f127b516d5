"""``CodecCache``: the codecs that another process has sent, by their digests.

A codec may be large after its training, and thousands of blocks refer to it, so each is sent once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from sb3_compressed.codecs import Codec

__all__ = ["CodecCache"]


class CodecCache(OrderedDict[bytes, Codec]):
    """The codecs that were used last, by their digests."""

    #: How many codecs are kept. One that was forgotten is sent again, see :class:`.MissingCodec`.
    size = 1024

    def receive(self, codecs: Mapping[bytes, Codec]) -> None:
        """Include codecs, unless there are equal ones."""
        for digest, codec in codecs.items():
            self.setdefault(digest, codec)
            self.move_to_end(digest)
        while len(self) > self.size:
            del self[next(iter(self))]  # popitem of Python 3.10 calls __getitem__

    def __getitem__(self, digest: bytes) -> Codec:
        self.move_to_end(digest)
        return super().__getitem__(digest)
