"""Smooth pictures are stored as what they differ by from line to line, and are restored exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from filtering_codec import Filtering, planes_of
from numpy.typing import NDArray
from roundtrips import roundtrip

from sb3_compressed.codecs.delta import Delta, coder_of
from sb3_compressed.codecs.filtering import PlaneLayout
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CodecError, CorruptPayload


def pictures(n: int, shape: tuple[int, ...], dtype: Any = np.uint8) -> NDArray[Any]:
    """Return smooth random pictures of which channels vary together, as those of a camera do."""
    rng = np.random.default_rng(0)
    channel_axis = None if len(shape) == 2 else (1 if shape[0] < shape[-1] else 3)
    height_width = shape if channel_axis is None else (shape[1:] if channel_axis == 1 else shape[:2])
    waves = rng.uniform(0.01, 0.2, (n, 2, 1, 1))
    y, x = np.mgrid[: height_width[0], : height_width[1]]
    gray = 120 + 90 * np.sin(waves[:, 0] * x + waves[:, 1] * y + rng.uniform(0, 6, (n, 1, 1)))
    noise = rng.integers(0, 3, (n, *shape))
    frames: NDArray[Any] = noise + (gray if channel_axis is None else np.expand_dims(gray, channel_axis))
    return frames.astype(dtype)


def channel_last(frames: NDArray[Any]) -> NDArray[Any]:
    """Return the same frames ``(n, channels, height, width)`` with the channels of a pixel together in memory."""
    return np.ascontiguousarray(frames.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


SHAPES = [(3, 40, 52), (1, 40, 52), (40, 52), (4, 33, 17), (2, 33, 17), (40, 52, 3), (3, 9, 5), (1, 1, 1), (3, 1, 7)]


@pytest.mark.parametrize(("shape", "dtype"), [*((shape, np.uint8) for shape in SHAPES), ((3, 40, 52), np.float32)])
def test_frames_of_all_shapes_are_restored(shape: tuple[int, ...], dtype: Any) -> None:
    frames = pictures(12, shape, dtype)
    codec = Filtering(planes=planes_of(shape, frames.itemsize))
    assert {*map(coder_of, roundtrip(codec, frames))} == {"filter"}


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if len(shape) == 3 and 1 < shape[0] <= 4 < shape[-1]])
def test_channel_last_frames_are_restored(shape: tuple[int, ...]) -> None:
    frames = pictures(60, shape)
    codec = Filtering(channels=shape[0], channel_last_nbytes=frames[0].nbytes, planes=planes_of(shape, 1))
    payloads = roundtrip(codec, channel_last(frames))
    assert payloads == replace(codec, channels=1, channel_last_nbytes=0).encode(frames)
    assert {*map(coder_of, payloads)} == {"filter"}


def test_batches_of_several_codecs_are_restored() -> None:
    frames = pictures(4, (3, 20, 24))
    codecs = [Filtering(planes=planes_of((3, 20, 24), 1)), Delta(), Delta(coder="lz4"), Delta(coder="raw")]
    payloads = [each.encode(frames[n : n + 1])[0] for n, each in enumerate(codecs)]
    out = np.empty_like(frames)
    Delta.decode_batch(codecs, Payloads.of(payloads, np.arange(len(codecs))), out)
    np.testing.assert_array_equal(out, frames)
    assert {"filter", "zstd", "raw"} <= {*map(coder_of, payloads)}


@pytest.mark.parametrize("planes", [PlaneLayout(), PlaneLayout(5, 25), PlaneLayout(7, 1_407)])
def test_payloads_of_codecs_with_other_planes_are_corrupt(planes: PlaneLayout) -> None:
    frames = pictures(2, (3, 20, 20))
    payloads = Filtering(planes=planes_of((3, 20, 20), 1)).encode(frames)
    with pytest.raises(CorruptPayload) as caught:
        Delta(planes=planes).decode_into(payloads, np.empty((2, 3, 20, 19), np.uint8))
    assert caught.value.index == 0


@pytest.mark.parametrize("given", [(0, 5), (5, 0), (5, 4), (4, 9), (-1, -1), (-2, 4)])
def test_invalid_planes_raise(given: tuple[int, int]) -> None:
    with pytest.raises(CodecError, match="planes of"):
        PlaneLayout(*given)
