"""``zstd``: Zstandard (RFC 8878) by python-zstandard."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import zstandard
from numpy.typing import NDArray

from sb3_compressed.codecs.codec import BytesCodec, Levels
from sb3_compressed.errors import CorruptPayload

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Zstd", "compressed"]


@dataclass(frozen=True)
class Zstd(BytesCodec):
    """Zstandard; each payload is one zstd frame with its content size in the header.

    :param compresslevel: 1 (fast) to 22 (smallest), or -1 (faster) to -100 (fastest)
    """

    name: ClassVar[str] = "zstd"
    levels: ClassVar[Levels] = Levels(((-100, -1), (1, 22)), default=3)
    is_parallel: ClassVar[bool] = True
    chunk_nbytes: ClassVar[int] = 1 << 18
    library_errors: ClassVar[tuple[type[Exception], ...]] = (zstandard.ZstdError,)

    compresslevel: int = levels.default

    # Contexts are costly to create and not thread-safe, so each thread has its own.
    _contexts: threading.local = field(default_factory=threading.local, init=False, repr=False, compare=False)

    def compress_frame(self, frame: NDArray[np.uint8]) -> bytes:
        """Compress one frame; see :class:`BytesCodec`."""
        return self._compressor.compress(frame.data)

    def compress_frames(self, rows: NDArray[np.uint8]) -> Iterable[Buffer]:
        """Compress frames; see :meth:`BytesCodec.compress_frames`."""
        return compressed(self._compressor, rows)

    @property
    def _compressor(self) -> zstandard.ZstdCompressor:
        """The compressor of this thread."""
        try:
            compressor: zstandard.ZstdCompressor = self._contexts.compressor
        except AttributeError:
            compressor = self._contexts.compressor = zstandard.ZstdCompressor(level=self.compresslevel)
        return compressor

    def decompress_frame(self, payload: bytes, nbytes: int) -> bytes:
        """Decompress one payload; see :class:`BytesCodec`."""
        # Check the size first: the library would allocate whatever the header claims.
        claimed = zstandard.frame_content_size(payload)
        if claimed != nbytes:
            raise CorruptPayload(f"its header claims {claimed} bytes, but a frame has {nbytes}")
        try:
            decompressor: zstandard.ZstdDecompressor = self._contexts.decompressor
        except AttributeError:
            decompressor = self._contexts.decompressor = zstandard.ZstdDecompressor()
        return decompressor.decompress(payload, allow_extra_data=False)


def compressed(compressor: zstandard.ZstdCompressor, rows: NDArray[np.uint8]) -> Iterable[Buffer]:
    """Compress frames ``(n, frame_nbytes)``, in one call without the GIL if the library can."""
    if len(rows) < 2 or "multi_compress_to_buffer" not in zstandard.backend_features:
        return [compressor.compress(row.data) for row in rows]
    payloads: Sequence[Buffer] = compressor.multi_compress_to_buffer([row.data for row in rows])  # type: ignore[assignment]
    return (payloads[index] for index in range(len(payloads)))
