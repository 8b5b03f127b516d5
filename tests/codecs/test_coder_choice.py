"""Without references, ``auto`` stores smooth pictures as packed differences, drawn ones by LZ4, and noise raw."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from roundtrips import roundtrip

from sb3_compressed.codecs.delta import Delta, coder_of

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
    assert {*map(coder_of, roundtrip(Delta(coder="lz4"), frames))} == {coder}
    trained = Delta(coder="lz4").train(frames[:64])
    assert {*map(coder_of, roundtrip(trained, frames[64:]))} <= {coder, "delta"}


def games(n_sprites: int) -> NDArray[np.uint8]:
    """Return frames of a fixed background with sprites at random places."""
    rng = np.random.default_rng(0)
    frames = np.repeat(rng.integers(0, 255, (1, 10, 10, 3), np.uint8), N, axis=0).repeat(4, axis=1).repeat(4, axis=2)
    sprite = rng.integers(0, 255, (6, 6, 3), np.uint8)
    for frame in frames:
        for row, column in rng.integers(0, 34, (n_sprites, 2)):
            frame[row : row + 6, column : column + 6] = sprite
    return frames


def test_rollouts_are_compared_with_other_frames_only_where_most_differences_are_small() -> None:
    few, many = (games(n).transpose(0, 3, 1, 2) for n in (1, 40))
    for frames, tries_delta in ((few, True), (many, False)):
        trained = Delta(coder="lz4", is_short_lived=True).train(frames[:64])
        assert (trained.tries_delta, trained.finds_tiles) == (tries_delta, False)
        assert {*map(coder_of, roundtrip(trained, frames[64:]))} == {"delta" if tries_delta else "lz4"}
    assert Delta(coder="lz4").train(many[:64]).tries_delta


def test_training_leaves_out_what_is_in_vain() -> None:
    of_smooth = Delta(coder="lz4").train(smooth()[:64])
    assert (of_smooth.tries_packed, of_smooth.tries_lz4) == (True, False)
    of_noise = Delta(coder="lz4").train(noise()[:64])
    assert (of_noise.tries_packed, of_noise.tries_lz4, of_noise.tries_delta) == (False, False, False)
