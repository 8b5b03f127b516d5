"""``lz4-packed`` and ``auto`` store smooth pictures as packed differences, drawn ones by LZ4, and noise raw."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from roundtrips import roundtrip

from sb3_compressed.codecs.adaptive import Adaptive, coder_of
from sb3_compressed.codecs.lz4_packed import Lz4Packed

N = 90


def smooth() -> NDArray[np.uint8]:
    rng = np.random.default_rng(0)
    scene = np.cumsum(np.cumsum(rng.normal(size=(150, 150, 3)), axis=0), axis=1)
    scene = (scene - scene.min()) / np.ptp(scene) * 250
    windows = [scene[i : i + 40, i // 2 : i // 2 + 30] + rng.normal(0, 2, (40, 30, 3)) for i in range(N)]
    return np.stack(windows).clip(0, 255).astype(np.uint8)


def drawn() -> NDArray[np.uint8]:
    rng = np.random.default_rng(0)
    tiles = rng.integers(0, 255, (6, 2, 6, 3), np.uint8).repeat(5, axis=1).repeat(5, axis=2)
    return np.stack([np.concatenate(tiles[rng.integers(0, 6, 4)]) for _ in range(N)])


def noise() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 255, (N, 40, 30, 3), np.uint8)


SCENES = {"packed": smooth, "lz4": drawn, "raw": noise}


@pytest.mark.parametrize("channels", ["first", "last", "transposed view"])
@pytest.mark.parametrize("coder", SCENES)
def test_each_scene_has_its_coder(coder: str, channels: str) -> None:
    frames = SCENES[coder]()
    if channels != "last":
        frames = frames.transpose(0, 3, 1, 2)
    frames = np.ascontiguousarray(frames) if channels == "first" else frames
    payloads = roundtrip(Lz4Packed(), frames)
    assert {*map(coder_of, payloads)} == {coder}
    assert coder_of(Lz4Packed().encode(frames[:1])[0]) == coder
    trained = Adaptive(coder="lz4").train(frames[:64])
    assert {*map(coder_of, roundtrip(trained, frames[64:]))} <= {coder, "delta"}


def test_training_leaves_out_what_is_in_vain() -> None:
    of_smooth = Adaptive(coder="lz4").train(smooth()[:64])
    assert (of_smooth.tries_packed, of_smooth.tries_lz4) == (True, False)
    of_noise = Adaptive(coder="lz4").train(noise()[:64])
    assert (of_noise.tries_packed, of_noise.tries_lz4, of_noise.tries_delta) == (False, False, False)
    # The first frame of a batch decides for the others.
    mixed = np.concatenate([smooth()[:1], noise()[:3], smooth()[1:3]])
    assert [*map(coder_of, roundtrip(Lz4Packed(), mixed))] == ["packed", *["raw"] * 3, *["packed"] * 2]


@pytest.mark.parametrize("shape", [(4, 400, 3), (3, 400, 2), (2, 300, 1), (3, 120, 1)])
@pytest.mark.parametrize("trained_on", [None, (3, 20, 6)])
def test_views_that_are_narrower_than_they_have_channels(
    shape: tuple[int, int, int], trained_on: tuple[int, int, int] | None
) -> None:
    # Of their shape alone, the last axis looks like that of channels.
    def smooth_views(shape: tuple[int, int, int]) -> NDArray[np.uint8]:
        rng = np.random.default_rng(0)
        frames = rng.integers(-2, 3, (N, *shape)).cumsum(axis=2).astype(np.uint8)
        return np.ascontiguousarray(frames.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)

    trained = Adaptive(coder="lz4").train(smooth_views(trained_on or shape)[:64])
    roundtrip(trained, smooth_views(shape))
