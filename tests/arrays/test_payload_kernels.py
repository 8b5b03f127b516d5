"""Kernels that copy frames."""

from __future__ import annotations

import numpy as np
import pytest

from sb3_compressed.arrays.interleaving_kernels import interleave_frames


@pytest.mark.parametrize(
    ("n_frames", "piece", "n_pixels"), [*((4, piece, 9) for piece in (1, 2, 3, 4, 8, 50)), (1, 3, 9), (5, 1, 0)]
)
def test_interleaved_frames_equal_numpys(n_frames: int, piece: int, n_pixels: int) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (3, n_frames, n_pixels, piece), np.uint8)
    guarded = np.full((5, n_frames * n_pixels * piece), 77, np.uint8)
    rows = frames.reshape(3 * n_frames, n_pixels * piece)
    interleave_frames(rows, piece, guarded[1:4])
    np.testing.assert_array_equal(guarded[1:4], frames.swapaxes(1, 2).reshape(3, -1))
    assert (guarded[[0, 4]] == 77).all()
