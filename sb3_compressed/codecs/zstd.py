"""``zstd``: Zstandard (RFC 8878) by python-zstandard."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import zstandard
from numpy.typing import NDArray

from sb3_compressed.codecs.codec import BytesCodec, Levels
from sb3_compressed.codecs.zstd_library import DecompressionContext, functions
from sb3_compressed.errors import CorruptPayload

__all__ = ["Zstd"]


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
        # Not all of a batch by multi_compress_to_buffer: it aborts the process when there is not enough memory.
        return self._compressor.compress(frame.data)

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

    @classmethod
    def decode_rows(
        cls, codecs: Sequence[Zstd], places: NDArray[np.int64], rows: NDArray[np.uint8], done: NDArray[np.uint8]
    ) -> None:
        """Decode what the C library can decode; see :meth:`BytesCodec.decode_rows`."""
        if (called := functions()) is None:
            return
        from sb3_compressed.codecs.zstd_kernels import decompress_frames  # on first use: importing numba is slow

        contexts = codecs[0]._contexts
        try:
            context: DecompressionContext = contexts.native
        except AttributeError:
            context = contexts.native = DecompressionContext()
        if context.address:
            decompress_frames(called, context.address, places, rows, done)
