"""Tests of payloads of frames that are stored without references."""

from __future__ import annotations

import lz4.block
import numpy as np
import pytest
from numpy.typing import NDArray
from roundtrips import roundtrip

from sb3_compressed.codecs.delta import CODERS, Delta, ReferenceFrames, coder_of
from sb3_compressed.codecs.whole_frames import HEADER_LZ4, HEADER_RAW, Lz4Blocks, raw_payloads


def noise(n_frames: int, frame_nbytes: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (n_frames, frame_nbytes), np.uint8)


def half_noise(n_frames: int, frame_nbytes: int, seed: int = 0) -> NDArray[np.uint8]:
    frames = noise(n_frames, frame_nbytes, seed)
    frames[::2, frame_nbytes // 8 :] = 0
    return frames


@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (0, 100), (4, 0), (2, 3_000_000)])
def test_a_raw_payload_is_a_header_and_the_frame(shape: tuple[int, int]) -> None:
    frames = noise(*shape)
    payloads = raw_payloads(frames)
    expected = [HEADER_RAW + row.tobytes() if row.size else b"" for row in frames]
    frames[:] = 0
    assert payloads == expected


@pytest.mark.parametrize("dictionary", [b"", half_noise(1, 5000, seed=1).tobytes() * 20])
def test_a_block_is_a_header_and_what_the_library_decodes(dictionary: bytes) -> None:
    frames = half_noise(4, 5000)
    if dictionary:
        frames[1, :1000] = np.frombuffer(dictionary[-1000:], np.uint8)
    payloads = Lz4Blocks(dictionary).encode(frames)
    assert [bool(payload) for payload in payloads] == [True, bool(dictionary), True, False]
    for payload, frame in zip(payloads, frames, strict=True):
        if payload:
            assert payload[:1] == HEADER_LZ4
            options = {"dict": dictionary[-65_536:]} if dictionary else {}
            assert lz4.block.decompress(payload[1:], uncompressed_size=5000, **options) == frame.tobytes()


@pytest.mark.parametrize("coder", CODERS)
def test_frames_of_a_batch_are_encoded_as_single_ones(coder: str) -> None:
    references = noise(2, 4096, seed=1)
    frames = half_noise(12, 4096, seed=2)
    frames[::3] = references[0]
    frames[::3, 100:140] ^= 255
    frames[1, :1024] = references[1, :1024]  # a large delta
    codec = Delta(references=ReferenceFrames(references.tobytes(), 4096), coder=coder)
    payloads = roundtrip(codec, frames)
    assert payloads == [codec.encode(frame[np.newaxis])[0] for frame in frames]
    assert {*map(coder_of, payloads)} == {"delta", coder, coder if coder == "zstd" else "raw"}
