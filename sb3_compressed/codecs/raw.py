"""``none``: uncompressed frames, for comparison and for incompressible data."""

from __future__ import annotations

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

    def compress_frame(self, frame: NDArray[np.uint8]) -> bytes:
        """Compress one frame; see :class:`BytesCodec`."""
        return frame.tobytes()

    def decompress_frame(self, payload: bytes, nbytes: int) -> bytes:
        """Decompress one payload; see :class:`BytesCodec`."""
        return payload
