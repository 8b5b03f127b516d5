"""Contact sheets: each image is exact and at its position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Stream
from episodes import filled
from PIL import Image
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.datasets import trajectories, write_contact_sheet
from sb3_compressed.datasets.contact_sheet import BACKGROUND, image_position


@pytest.mark.parametrize(
    ("n_images", "cls"), [(1, ReplayBuffer), (2, ReplayBuffer), (7, CompressedReplayBuffer), (10_000, ReplayBuffer)]
)
def test_images_are_evenly_spaced_and_exact(n_images: int, cls: Any, stream: Stream, tmp_path: Path) -> None:
    episode = next(trajectories(filled(stream, cls=cls)))
    steps = write_contact_sheet(episode, tmp_path / "sheet.png", n_images=n_images, scale=2)
    n = min(n_images, len(episode) + 1)
    assert len(steps) == n
    assert steps[0] == 0
    assert n == 1 or steps[-1] == len(episode)
    assert n < 3 or np.ptp(np.diff(steps)) <= 1
    with Image.open(tmp_path / "sheet.png") as image:
        sheet = np.array(image)
    assert sheet.ndim == 2, "gray images make a gray sheet"
    observations = episode.observations
    for index, step in enumerate(steps):
        top, left = image_position(index, n, 168, 168)
        expected = observations[step, -1].repeat(2, axis=0).repeat(2, axis=1)
        np.testing.assert_array_equal(sheet[top : top + 168, left : left + 168], expected)
        assert (sheet[top + 170 : top + 182, left : left + 40] != BACKGROUND).any(), "the label"
        sheet[top : top + 184, left : left + 168] = BACKGROUND
    assert (sheet == BACKGROUND).all(), "nothing else"


def test_invalid_arguments_raise_and_write_nothing(stream: Stream, tmp_path: Path) -> None:
    episode = next(trajectories(filled(stream)))
    with pytest.raises(ValueError, match=r"must end with \.png, got 'sheet\.jpg'"):
        write_contact_sheet(episode, tmp_path / "sheet.jpg")
    with pytest.raises(ValueError, match="n_images must be positive, got 0"):
        write_contact_sheet(episode, tmp_path / "sheet.png", n_images=0)
    assert not [*tmp_path.iterdir()]
