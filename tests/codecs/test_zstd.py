"""``zstd``: the standard format, and headers with false sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zstandard
from numpy.typing import NDArray
from roundtrips import peak_of_refusal, roundtrip

from sb3_compressed.codecs import get_codec
from sb3_compressed.codecs.zstd import Zstd
from sb3_compressed.codecs.zstd_dict import ZstdDict
from sb3_compressed.codecs.zstd_library import functions
from sb3_compressed.errors import CorruptPayload

DICTIONARY = np.arange(6000, dtype=np.uint16).tobytes()
CODECS = {
    "level-3": get_codec("zstd3"),
    "level-minus-5": get_codec("zstd-5"),
    "without-dictionary": ZstdDict(compresslevel=3),
    "with-dictionary": ZstdDict(compresslevel=12, dictionary=DICTIONARY),
}

SHAPES = [(1, 1), (2, 1), (3, 500), (40, 7056), (5, 200_000), (300, 64)]
MAGIC = bytes.fromhex("28b52ffd")
EMPTY_BLOCK = bytes.fromhex("010000")
EMPTY_FRAME = MAGIC + b"\x20\x00" + EMPTY_BLOCK
SKIPPABLE_FRAME = bytes.fromhex("502a4d18 00000000")


def test_payload_is_a_zstandard_frame_with_its_content_size() -> None:
    frame = np.arange(3000, dtype=np.float32)
    [payload] = get_codec("zstd").encode(frame[np.newaxis])
    assert zstandard.frame_content_size(payload) == frame.nbytes
    assert zstandard.ZstdDecompressor().decompress(payload) == frame.tobytes()


def frames_of(n_frames: int, frame_nbytes: int) -> NDArray[np.uint8]:
    frames = np.random.default_rng(0).integers(0, 4, (n_frames, frame_nbytes), np.uint8)
    frames[::3] = 0  # payloads of many sizes
    frames[1::3, : frame_nbytes // 2] = 7
    return frames


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_payloads_do_not_depend_on_the_frames_before(codec: Any) -> None:
    for shape in SHAPES:
        frames = frames_of(*shape)
        payloads = roundtrip(codec, frames)
        assert payloads == [replace(codec).encode(frame[np.newaxis])[0] for frame in frames]


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
    codec = get_codec("zstd")
    roundtrip(codec, np.zeros((1, 1000), np.uint8))  # compiles kernels, which needs memory, too
    assert peak_of_refusal(codec, MAGIC + header + EMPTY_BLOCK) < 100_000


def never(*arguments: Any) -> bytes:
    raise AssertionError("a payload was decoded one by one")


@pytest.mark.skipif(functions() is None, reason="this build of python-zstandard exports no functions of its C library")
@pytest.mark.parametrize("shorthand", ["zstd3", "zstd-5", "zstd19"])
def test_the_kernel_decodes_all_payloads(shorthand: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Zstd, "decompress_frame", never)
    for shape in SHAPES:
        roundtrip(get_codec(shorthand), frames_of(*shape))


def test_without_the_functions_of_the_library_payloads_are_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sb3_compressed.codecs.zstd.functions", lambda: None)
    for shape in SHAPES:
        roundtrip(get_codec("zstd3"), frames_of(*shape))


@pytest.mark.parametrize(
    "rest", [b"\0", EMPTY_FRAME, SKIPPABLE_FRAME], ids=["a byte", "an empty frame", "a skippable frame"]
)
def test_bytes_after_the_frame_raise(rest: bytes) -> None:
    codec, frames = get_codec("zstd3"), frames_of(3, 500)
    payloads = codec.encode(frames)
    with pytest.raises(CorruptPayload) as caught:
        codec.decode_into([payloads[0], payloads[1] + rest, payloads[2]], np.empty_like(frames))
    assert caught.value.index == 1
