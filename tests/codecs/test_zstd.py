"""``zstd``: the standard format, and headers with false sizes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import zstandard

from sb3_compressed.codecs import get_codec
from sb3_compressed.errors import CorruptPayload

MAGIC = bytes.fromhex("28b52ffd")
EMPTY_BLOCK = bytes.fromhex("010000")


def test_payload_is_a_zstandard_frame_with_its_content_size() -> None:
    frame = np.arange(3000, dtype=np.float32)
    [payload] = get_codec("zstd").encode(frame[np.newaxis])
    assert zstandard.frame_content_size(payload) == frame.nbytes
    assert zstandard.ZstdDecompressor().decompress(payload) == frame.tobytes()


@pytest.mark.parametrize(
    "header",
    [
        b"\xe0" + (2**40).to_bytes(8, "little"),  # single segment, huge content
        b"\xe0" + (2**64 - 1).to_bytes(8, "little"),
        b"\xc0\xff" + (1000).to_bytes(8, "little"),  # the right content size, a window of more than 2**41 bytes
        b"\xc0\x88" + (1000).to_bytes(8, "little"),  # a window of 128 MiB
        b"\x00\x88",  # no content size
    ],
)
def test_false_header_raises_before_memory_is_allocated(header: bytes) -> None:
    out = np.empty((1, 1000), np.uint8)
    codec = get_codec("zstd")
    tracemalloc.start()
    with pytest.raises(CorruptPayload):
        codec.decode_into([MAGIC + header + EMPTY_BLOCK], out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
