"""Kernels that call compression libraries decode as the Python packages of these libraries do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from drawn_examples import examples
from filtering_codec import Filtering
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from roundtrips import decode_guarded, roundtrip

from sb3_compressed.codecs import BytesCodec, TrainableCodec, get_codec, lz4, zstd, zstd_dict
from sb3_compressed.codecs.filtering import PlaneLayout
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.common.probes import FORCE_FALLBACKS
from sb3_compressed.errors import CorruptPayload

LIBRARIES = {
    "lz4-block": (lz4, "lz4_functions"),
    "zstd": (zstd, "zstd_functions"),
    "zstd-dict": (zstd_dict, "zstd_functions"),
}
NAMES = [*LIBRARIES, "none", "filter"]
SIZE = 200
RELAXED = settings(examples(150), suppress_health_check=list(HealthCheck))
needs_libraries = pytest.mark.skipif(FORCE_FALLBACKS, reason="the kernels are not used")


def smooth_frames(n: int, size: int) -> NDArray[np.uint8]:
    """Return frames of which a part is noise."""
    frames = np.repeat(np.arange(n, dtype=np.uint8), size).reshape(n, size) + np.arange(size, dtype=np.uint8) // 9
    frames[:, : size // 5] = np.random.default_rng(2).integers(0, 256, (n, size // 5))
    return frames


def codec_of(name: str) -> BytesCodec:
    if name == "filter":
        return Filtering(planes=PlaneLayout(20, SIZE // 2))
    codec = get_codec(name)
    codec = codec.train(smooth_frames(100, 128)) if isinstance(codec, TrainableCodec) else codec
    assert isinstance(codec, BytesCodec)
    return codec


@pytest.fixture(params=NAMES, scope="module")
def codec(request: pytest.FixtureRequest) -> BytesCodec:
    return codec_of(request.param)


def by_library(codec: BytesCodec, payload: bytes, size: int) -> bytes | None:
    """Decode a payload without a kernel; return ``None`` if it is corrupt."""
    try:
        raw = codec.decompress_frame(payload, size)
    except CorruptPayload:
        return None
    except codec.library_errors:
        return None
    return raw if len(raw) == size else None


@RELAXED
@given(data=st.data())
def test_damaged_payloads_are_decoded_as_by_the_library(codec: BytesCodec, data: st.DataObject) -> None:
    payload = bytearray(codec.encode(smooth_frames(3, SIZE))[data.draw(st.integers(0, 2))])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload)))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "double"])):
            case "flip" if at < len(payload):
                payload[at] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del payload[at : at + data.draw(st.integers(1, 4))]
            case "insert":
                payload[at:at] = data.draw(st.binary(min_size=1, max_size=4))
            case _:
                payload += bytes(payload)
    size = data.draw(st.sampled_from([SIZE, SIZE, SIZE, SIZE - 1, SIZE + 1, 2 * SIZE]))
    assert decode_guarded(codec, bytes(payload), size) == by_library(codec, bytes(payload), size)


@needs_libraries
@pytest.mark.parametrize("size", [1, 84 * 84, 300_000])
@pytest.mark.parametrize("name", NAMES)
def test_kernels_decode_every_payload_that_their_codec_writes(
    name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = codec_of(name)

    def fail(*_: Any) -> Any:
        raise AssertionError("a kernel left a payload")

    monkeypatch.setattr(type(codec), "decompress_frame", fail)
    roundtrip(codec, smooth_frames(3, size))


@pytest.mark.parametrize("name", LIBRARIES)
def test_payloads_are_decoded_without_the_functions_of_a_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*LIBRARIES[name], lambda: None)
    codec, frames = codec_of(name), smooth_frames(3, SIZE)
    payloads = roundtrip(codec, frames)
    with pytest.raises(CorruptPayload) as caught:
        codec.decode_into([*payloads[:2], payloads[2][:-1]], np.empty_like(frames))
    assert caught.value.index == 2


@pytest.mark.parametrize("name", ["none", "zstd", "zstd-dict", "delta", "rle", "packed", "gzip"])
def test_payloads_that_are_done_are_skipped(name: str) -> None:
    codec, frames = get_codec(name), smooth_frames(3, SIZE)
    payloads = codec.encode(frames)
    out = np.full_like(frames, 7)
    corrupt, done = Payloads.of([payloads[0], b"corrupt", payloads[2]]), np.array([0, 1, 0], np.uint8)
    type(codec).decode_batch([codec], corrupt, out, done)
    np.testing.assert_array_equal(out[[0, 2]], frames[[0, 2]])
    assert (out[1] == 7).all()
    with pytest.raises(ValueError, match="one element for each of 3 payloads, got 2"):
        type(codec).decode_batch([codec], Payloads.of(payloads), out, np.zeros(2, np.uint8))


@dataclass(frozen=True)
class Inverted(zstd.Zstd):
    """A codec that changes only how single frames are coded."""

    name: ClassVar[str] = "inverted"

    def compress_frame(self, frame: NDArray[np.uint8]) -> bytes:
        return super().compress_frame(~frame)

    def decompress_frame(self, payload: bytes, nbytes: int) -> bytes:
        return (~np.frombuffer(super().decompress_frame(payload, nbytes), np.uint8)).tobytes()


def test_subclass_with_another_format_does_not_use_the_kernel_of_its_parent() -> None:
    frames = smooth_frames(3, SIZE)
    out = np.empty_like(frames)
    zstd.Zstd().decode_into(roundtrip(Inverted(), frames), out)
    np.testing.assert_array_equal(out, ~frames)
