"""``lz4-frame`` and ``lz4-block``: the two LZ4 formats, by python-lz4 (https://github.com/lz4/lz4/tree/dev/doc)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import lz4.block
import lz4.frame
import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.codec import BytesCodec, Levels, decompress_bounded
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CorruptPayload

__all__ = ["Lz4Block", "Lz4Frame"]

#: The bytes of the header of a frame with its content size, and without the id of a dictionary.
HEADER_NBYTES = 15
MAX_ACCELERATION = 65537  # LZ4_ACCELERATION_MAX; the library clamps larger factors to it


@dataclass(frozen=True)
class Lz4Frame(BytesCodec):
    """LZ4's frame format, with the content size in its header.

    :param compresslevel: 0 (fast) to 16 (smallest), in high-compression mode from 3 on; a negative level is an
        acceleration factor
    """

    name: ClassVar[str] = "lz4-frame"
    levels: ClassVar[Levels] = Levels(((-MAX_ACCELERATION, 16),), default=0)
    is_parallel: ClassVar[bool] = True
    chunk_nbytes: ClassVar[int] = 1 << 19
    library_errors: ClassVar[tuple[type[Exception], ...]] = (RuntimeError, ValueError)

    compresslevel: int = levels.default

    def compress_frame(self, frame: NDArray[np.uint8]) -> bytes:
        """Compress one frame; see :class:`BytesCodec`."""
        payload: bytes = lz4.frame.compress(frame, compression_level=self.compresslevel)
        return payload

    def decompress_frame(self, payload: bytes, nbytes: int) -> bytes:
        """Decompress one payload; see :class:`BytesCodec`."""
        return decompress_bounded(lz4.frame.LZ4FrameDecompressor(), payload, nbytes)

    @classmethod
    def decode_rows(
        cls, codecs: Sequence[Lz4Frame], places: NDArray[np.int64], rows: NDArray[np.uint8], done: NDArray[np.uint8]
    ) -> None:
        """Decode what a kernel can decode; see :meth:`BytesCodec.decode_rows`."""
        from sb3_compressed.codecs.lz4_frame_kernels import decode_lz4_frames

        # Frames of one size have one header, which the library verifies once.
        first = np.argmin(done)
        header = ctypes.string_at(int(places[first, 0]), min(int(places[first, 1]), HEADER_NBYTES))
        try:
            about = lz4.frame.get_frame_info(header)
        except cls.library_errors:
            return
        if about["content_size"] == rows.shape[1] and not (about["block_checksum"] or about["content_checksum"]):
            expected = np.frombuffer(header, np.uint8)
            decode_lz4_frames(places, expected, about["block_size"], about["block_linked"], rows, done)


@dataclass(frozen=True)
class Lz4Block(BytesCodec):
    """LZ4's block format without a header: the decoder takes the size from the output array.

    :param compresslevel: 1 to 12 for the high-compression mode, 0 for the default mode; a negative level is an
        acceleration factor
    """

    name: ClassVar[str] = "lz4-block"
    levels: ClassVar[Levels] = Levels(((-MAX_ACCELERATION, 12),), default=0)
    is_parallel: ClassVar[bool] = True
    chunk_nbytes: ClassVar[int] = 1 << 19

    compresslevel: int = levels.default

    def compress_frame(self, frame: NDArray[np.uint8]) -> bytes:
        """Compress one frame; see :class:`BytesCodec`."""
        level = self.compresslevel
        mode: dict[str, object] = {"mode": "default"}
        if level > 0:
            mode = {"mode": "high_compression", "compression": level}
        elif level < 0:
            mode = {"mode": "fast", "acceleration": -level}
        payload: bytes = lz4.block.compress(frame, store_size=False, **mode)
        return payload

    def decompress_frame(self, payload: bytes, nbytes: int) -> bytes:
        """Decompress one payload; see :class:`BytesCodec`."""
        payloads, frame, done = Payloads.of([payload]), np.empty((1, nbytes), np.uint8), np.zeros(1, np.uint8)
        Lz4Block.decode_rows([self], payloads.places, frame, done)
        if not done[0]:
            raise CorruptPayload(f"it is not a block of LZ4 of a frame of {nbytes} bytes")
        return frame.tobytes()

    @classmethod
    def decode_rows(
        cls, codecs: Sequence[Lz4Block], places: NDArray[np.int64], rows: NDArray[np.uint8], done: NDArray[np.uint8]
    ) -> None:
        """Decode what a kernel can decode; see :meth:`BytesCodec.decode_rows`."""
        from sb3_compressed.codecs.lz4_block_kernels import decode_blocks  # on first use: importing numba is slow

        decode_blocks(places, rows, done)
