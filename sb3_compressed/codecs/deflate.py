"""``gzip`` and ``igzip``: DEFLATE in a gzip container (RFC 1951, RFC 1952), by zlib or by Intel's ISA-L.

ISA-L decodes both: it takes half the time of zlib.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from sb3_compressed.codecs.codec import BytesCodec, Levels, decompress_bounded

__all__ = ["Gzip", "Igzip"]

GZIP_CONTAINER = 16 + zlib.MAX_WBITS  # selects gzip's header and CRC instead of zlib's; the time stamp is 0


class _Deflate(BytesCodec):
    """The decoder of both."""

    library_errors: ClassVar[tuple[type[Exception], ...]] = (isal_zlib.error,)  # type: ignore[assignment]  # wrong in isal's stubs

    def decompress_frame(self, payload: bytes, nbytes: int) -> bytes:
        """Decompress one payload; see :class:`BytesCodec`."""
        return decompress_bounded(isal_zlib.decompressobj(wbits=GZIP_CONTAINER), payload, nbytes)


@dataclass(frozen=True)
class Gzip(_Deflate):
    """DEFLATE by the standard library's zlib, with gzip's header and CRC.

    :param compresslevel: 0 (stored) to 9 (smallest)
    """

    name: ClassVar[str] = "gzip"
    levels: ClassVar[Levels] = Levels(((0, 9),), default=6)

    compresslevel: int = levels.default

    def compress_frame(self, frame: NDArray[np.uint8]) -> bytes:
        """Compress one frame; see :class:`BytesCodec`."""
        compressor = zlib.compressobj(self.compresslevel, zlib.DEFLATED, GZIP_CONTAINER)
        return compressor.compress(frame.data) + compressor.flush()


@dataclass(frozen=True)
class Igzip(_Deflate):
    """DEFLATE by ISA-L's igzip: the format of ``gzip``, several times faster.

    :param compresslevel: 0 (fastest) to 3 (smallest)
    """

    name: ClassVar[str] = "igzip"
    levels: ClassVar[Levels] = Levels(((0, 3),), default=2)

    compresslevel: int = levels.default

    def compress_frame(self, frame: NDArray[np.uint8]) -> bytes:
        """Compress one frame; see :class:`BytesCodec`."""
        return isal_zlib.compress(frame.data, self.compresslevel, wbits=GZIP_CONTAINER)
