"""``lz4-frame`` and ``lz4-block``: standard formats, and headers with false sizes."""

from __future__ import annotations

from typing import Any

import lz4.block
import lz4.frame
import numpy as np
import pytest
from roundtrips import peak_of_refusal

from sb3_compressed.codecs import get_codec

CLAIMS_2_TO_40_BYTES = bytes.fromhex("04224d18 4840 0000000000010000 22 00000000")
CLAIMS_NO_SIZE = bytes.fromhex("04224d18 4040 c0 00000000")


def claiming(payload: bytes, nbytes: int) -> bytes:
    """Return an LZ4 frame with another content size in its header, and a valid header checksum."""
    for checksum in range(256):
        forged = payload[:6] + nbytes.to_bytes(8, "little") + bytes([checksum]) + payload[15:]
        try:
            lz4.frame.get_frame_info(forged)
        except RuntimeError:
            continue
        return forged
    raise AssertionError("no checksum fits")


def test_payloads_are_in_the_standard_formats() -> None:
    frame = np.arange(3000, dtype=np.float32)
    [payload] = get_codec("lz4-frame").encode(frame[np.newaxis])
    assert lz4.frame.get_frame_info(payload)["content_size"] == frame.nbytes
    assert lz4.frame.decompress(payload) == frame.tobytes()
    block: Any = get_codec("lz4-block")
    [payload] = block.encode(frame[np.newaxis])
    assert block.decompress_frame(payload, frame.nbytes) == frame.tobytes()
    assert lz4.block.decompress(payload, uncompressed_size=frame.nbytes) == frame.tobytes()


CLAIMS_LESS = claiming(lz4.frame.compress(bytes(50_000_000)), 1000)


@pytest.mark.parametrize(
    "payload", [CLAIMS_2_TO_40_BYTES, CLAIMS_NO_SIZE, CLAIMS_LESS], ids=["huge", "no size", "less than it contains"]
)
def test_false_content_size_raises_before_memory_is_allocated(payload: bytes) -> None:
    peak = peak_of_refusal(get_codec("lz4-frame"), payload)
    assert peak < 100_000 + 2 * len(payload), "a payload is copied, what it claims to contain is not allocated"
