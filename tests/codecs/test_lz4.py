"""``lz4-frame`` and ``lz4-block``: standard formats, and headers with false sizes."""

from __future__ import annotations

from typing import Any

import lz4.block
import lz4.frame
import numpy as np
import pytest
from roundtrips import decode_guarded, peak_of_refusal, roundtrip

from sb3_compressed.codecs import get_codec
from sb3_compressed.codecs.lz4 import Lz4Frame
from sb3_compressed.errors import CorruptPayload

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


def never(*arguments: Any) -> bytes:
    raise AssertionError("a payload was decoded one by one")


@pytest.mark.parametrize("level", [-5, 0, 3, 9, 16])
def test_the_kernel_decodes_all_frames(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one block and of several, which refer to those before them."""
    monkeypatch.setattr(Lz4Frame, "decompress_frame", never)
    rng = np.random.default_rng(0)
    codec = get_codec("lz4-frame", compresslevel=level)
    for size in (1, 12, 13, 300, 7056, 65_535, 65_536, 65_537, 131_072, 300_001):
        noise = rng.integers(0, 256, size, np.uint8)
        repeated = np.resize(rng.integers(0, 256, 9_000, np.uint8), size)
        roundtrip(codec, np.stack([noise, repeated, np.zeros(size, np.uint8), noise // 128]))


@pytest.mark.parametrize("size", [500, 150_000])
def test_each_changed_byte_of_a_frame_raises_or_decodes_as_the_library_does(size: int) -> None:
    rng = np.random.default_rng(1)
    codec, frame = get_codec("lz4-frame"), np.resize(rng.integers(0, 256, 40, np.uint8), size)
    [payload] = codec.encode(frame[np.newaxis])
    for position in range(min(len(payload), 120)):
        for changed in (
            payload[:position] + bytes([payload[position] ^ 1 << rng.integers(8)]) + payload[position + 1 :],
            payload[:position],
        ):
            try:
                expected = lz4.frame.decompress(changed)
            except (RuntimeError, ValueError):
                expected = b""
            found = decode_guarded(codec, changed, size)
            assert found is None or found == expected


def test_bytes_after_a_frame_raise() -> None:
    codec, frames = get_codec("lz4-frame"), np.zeros((2, 500), np.uint8)
    first, second = codec.encode(frames)
    with pytest.raises(CorruptPayload) as caught:
        codec.decode_into([first, second + b"\0"], np.empty_like(frames))
    assert caught.value.index == 1
