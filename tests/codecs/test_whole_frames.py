"""Tests of payloads of frames that are stored without references."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from roundtrips import roundtrip

from sb3_compressed.codecs.delta import CODERS, Delta, ReferenceFrames, coder_of


def noise(n_frames: int, frame_nbytes: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (n_frames, frame_nbytes), np.uint8)


def half_noise(n_frames: int, frame_nbytes: int, seed: int = 0) -> NDArray[np.uint8]:
    frames = noise(n_frames, frame_nbytes, seed)
    frames[::2, frame_nbytes // 8 :] = 0
    return frames


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
