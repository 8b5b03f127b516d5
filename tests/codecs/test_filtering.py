"""Smooth pictures are stored as what they differ by from line to line, and are restored exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from roundtrips import roundtrip

from sb3_compressed.codecs import codec_from_config, zstd_dict
from sb3_compressed.codecs.adaptive import Adaptive, coder_of
from sb3_compressed.codecs.filtering import PlaneLayout, filtered
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


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_library", [True, False])
def test_frames_of_all_shapes_are_restored(
    shape: tuple[int, ...], dtype: Any, has_library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_library:
        monkeypatch.setattr(zstd_dict, "zstd_functions", lambda: None)
    frames = pictures(12, shape, dtype)
    codec = Adaptive(coder="filter", planes=PlaneLayout.of(shape, frames.itemsize))
    assert {*map(coder_of, roundtrip(codec, frames))} == {"filter"}


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if len(shape) == 3 and 1 < shape[0] <= 4 < shape[-1]])
def test_channel_last_frames_take_as_much_as_channel_first_ones(shape: tuple[int, ...]) -> None:
    frames = pictures(60, shape)
    trained = Adaptive(objective="balanced", coder="lz4").train(channel_last(frames))
    assert trained.channel_last_nbytes
    codec = replace(trained, coder="filter", tries_delta=False)
    payloads = roundtrip(codec, channel_last(frames))
    assert payloads == replace(codec, channels=1, channel_last_nbytes=0).encode(frames)
    assert {*map(coder_of, payloads)} == {"filter"}


def test_pictures_take_far_less_than_with_zstandard_alone() -> None:
    frames = channel_last(pictures(120, (3, 64, 64)))
    codec = Adaptive(objective="balanced", coder="lz4").train(frames[:64])
    sizes = {
        each.coder_name: sum(map(len, each.encode(frames[64:])))
        for each in codec.candidates(frames[64:])
        if not each.tries_delta
    }
    assert sizes["filter + zstd/3"] < 0.65 * sizes["zstd/3"]


def test_frames_of_no_pictures_are_not_filtered() -> None:
    assert PlaneLayout.of((100,), 1) == PlaneLayout.of((2, 3, 4, 5), 1) == PlaneLayout.of((3, 0, 5), 1) == PlaneLayout()
    frames = np.random.default_rng(0).integers(0, 9, (64, 500), np.uint8)
    codec = Adaptive(objective="balanced", coder="lz4").train(frames)
    assert all(each.coder != "filter" for each in codec.candidates(frames))
    assert "filter" not in {*map(coder_of, roundtrip(replace(codec, coder="filter"), frames))}


def test_a_codec_that_was_stored_decodes_what_was_filtered() -> None:
    frames = pictures(80, (3, 20, 20))
    codec = Adaptive(objective="balanced", coder="lz4").train(frames)
    payloads = replace(codec, coder="filter", tries_delta=False).encode(frames)
    stored = codec_from_config(codec.unchosen().get_config())
    out = np.empty_like(frames)
    stored.decode_into(payloads, out)
    np.testing.assert_array_equal(out, frames)


def test_batches_of_several_codecs_are_restored() -> None:
    frames = pictures(60, (3, 20, 24))
    one = Adaptive(objective="balanced", coder="lz4").train(frames)
    codecs = [one, *one.candidates(frames), Adaptive()]
    payloads = [each.encode(frames[n : n + 1])[0] for n, each in enumerate(codecs)]
    out = np.empty_like(frames[: len(codecs)])
    Adaptive.decode_batch(codecs, Payloads.of(payloads, np.arange(len(codecs))), out)
    np.testing.assert_array_equal(out, frames[: len(codecs)])
    assert {"filter", "zstd", "raw"} <= {*map(coder_of, payloads)}


@pytest.mark.parametrize("planes", [PlaneLayout(), PlaneLayout(5, 25), PlaneLayout(7, 1_407)])
def test_payloads_of_codecs_with_other_planes_are_corrupt(planes: PlaneLayout) -> None:
    frames = pictures(2, (3, 20, 20))
    payloads = Adaptive(coder="filter", planes=PlaneLayout.of((3, 20, 20), 1)).encode(frames)
    with pytest.raises(CorruptPayload) as caught:
        Adaptive(planes=planes).decode_into(payloads, np.empty((2, 3, 20, 19), np.uint8))
    assert caught.value.index == 0


@pytest.mark.parametrize("given", [(0, 5), (5, 0), (5, 4), (4, 9), (-1, -1), (-2, 4)])
def test_invalid_planes_raise(given: tuple[int, int]) -> None:
    with pytest.raises(CodecError, match="planes of"):
        PlaneLayout(*given)


def test_filtering_leaves_frames_unchanged() -> None:
    rows = pictures(3, (3, 6, 5)).reshape(3, -1)
    before = rows.copy()
    rows.flags.writeable = False
    filtered(rows, PlaneLayout(5, 30), is_channel_last=False)
    np.testing.assert_array_equal(rows, before)
