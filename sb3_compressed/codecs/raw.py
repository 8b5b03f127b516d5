"""``none``: uncompressed frames, for comparison and for incompressible data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.codec import BytesCodec

__all__ = ["Raw"]


@dataclass(frozen=True)
class Raw(BytesCodec):
    """No compression: a payload is the frame's bytes in C order."""

    name: ClassVar[str] = "none"
    typical_ratio: ClassVar[float] = 1.0
    is_parallel: ClassVar[bool] = True

    def compress_frame(self, frame: NDArray[np.uint8]) -> bytes:
        """Compress one frame; see :class:`BytesCodec`."""
        return frame.tobytes()

    def decompress_frame(self, payload: bytes, nbytes: int) -> bytes:
        """Decompress one payload; see :class:`BytesCodec`."""
        return payload

    @classmethod
    def decode_rows(
        cls, codecs: Sequence[Raw], places: NDArray[np.int64], rows: NDArray[np.uint8], done: NDArray[np.uint8]
    ) -> None:
        """Decode what a kernel can decode; see :meth:`BytesCodec.decode_rows`."""
        from sb3_compressed.codecs.raw_kernels import copy_frames  # on first use, since importing numba takes long

        copy_frames(places, rows, done)
