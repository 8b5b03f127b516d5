"""Encoding and decoding frames with a codec."""

from __future__ import annotations

import tracemalloc
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from sb3_compressed import Codec, CorruptPayload
from sb3_compressed.codecs import BytesCodec

__all__ = ["Plain", "decode_guarded", "moving_boxes", "peak_of_refusal", "roundtrip"]


class Plain(BytesCodec):
    """A codec that does not compress and is not a dataclass."""

    name: ClassVar[str] = "plain"

    def compress_frame(self, frame: NDArray[np.uint8]) -> bytes:
        """Return the bytes of a frame."""
        return frame.tobytes()

    def decompress_frame(self, payload: bytes, nbytes: int) -> bytes:
        """Return the payload."""
        return payload


def moving_boxes(n: int) -> NDArray[np.uint8]:
    """Return frames ``(n, 48, 64)`` of one background, on which two boxes move."""
    rng = np.random.default_rng(0)
    frames = np.repeat(rng.integers(0, 256, (1, 48, 64), np.uint8), n, axis=0)
    for frame, corners in zip(frames, rng.integers(0, 40, (n, 2, 2)), strict=True):
        for row, column in corners:
            frame[row : row + 6, column : column + 6] = 255
    return frames


def roundtrip(codec: Codec, frames: NDArray[Any]) -> list[bytes]:
    """Return the payloads of frames, which decode to the same bits."""
    payloads = codec.encode(frames)
    out = np.empty(frames.shape, frames.dtype)
    codec.decode_into(payloads, out)
    assert out.tobytes() == frames.tobytes()
    return payloads


def decode_guarded(
    codec: Codec, payload: bytes, size: int, shape: tuple[int, ...] | None = None, dtype: str = "u1"
) -> bytes | None:
    """Decode a payload between two guards, which must not be overwritten; return ``None`` if it is corrupt.

    :param size: bytes of the frame
    :param shape: its shape; by default it is a vector of bytes
    """
    start = max(size, 64)
    guarded = np.full(start + size + start, 0xA5, np.uint8)
    try:
        frame = guarded[start : start + size].view(dtype)
        codec.decode_into([payload], frame.reshape(1, *(frame.shape if shape is None else shape)))
    except CorruptPayload:
        return None
    finally:
        assert (guarded[:start] == 0xA5).all()
        assert (guarded[start + size :] == 0xA5).all()
    return guarded[start : start + size].tobytes()


def peak_of_refusal(codec: Codec, payload: bytes) -> int:
    """Return how many bytes were allocated at most while a payload was refused for a frame of 1,000 bytes."""
    out = np.empty((1, 1000), np.uint8)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptPayload):
            codec.decode_into([payload], out)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
