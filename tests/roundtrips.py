"""Encoding and decoding frames with a codec."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed import Codec

__all__ = ["roundtrip"]


def roundtrip(codec: Codec, frames: NDArray[Any]) -> list[bytes]:
    """Return the payloads of frames, which decode to the same bits."""
    payloads = codec.encode(frames)
    out = np.empty(frames.shape, frames.dtype)
    codec.decode_into(payloads, out)
    assert out.tobytes() == frames.tobytes()
    return payloads
