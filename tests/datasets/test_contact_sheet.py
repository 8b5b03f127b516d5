"""Contact sheets: every pixel of the pictures is what was stored, and where it should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Stream
from PIL import Image
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.datasets import trajectories, write_contact_sheet
from sb3_compressed.datasets.contact_sheet import BACKGROUND, place


def filled(stream: Stream, cls: Any = CompressedReplayBuffer) -> Any:
    space, action_space, n_envs, transitions = stream
    buffer = cls(100 * n_envs, space, action_space, device="cpu", n_envs=n_envs)
    for transition in transitions[:60]:
        transition.add_to(buffer)
    return buffer


@pytest.mark.parametrize("cls", [CompressedReplayBuffer, ReplayBuffer])
@pytest.mark.parametrize("n_pictures", [1, 2, 7, 10_000])
def test_pictures_are_evenly_spaced_and_as_they_were_stored(
    n_pictures: int, cls: Any, stream: Stream, tmp_path: Path
) -> None:
    episode = next(trajectories(filled(stream, cls)))
    steps = write_contact_sheet(episode, tmp_path / "sheet.png", n_pictures=n_pictures, scale=2)
    n = min(n_pictures, len(episode) + 1)
    assert len(steps) == n
    assert steps[0] == 0
    assert n == 1 or steps[-1] == len(episode)
    assert n < 3 or np.ptp(np.diff(steps)) <= 1
    with Image.open(tmp_path / "sheet.png") as image:
        sheet = np.array(image)
    assert sheet.ndim == 2, "grey pictures make a grey sheet"
    observations = episode.observations
    for index, step in enumerate(steps):
        top, left = place(index, n, 168, 168)
        expected = observations[step, -1].repeat(2, axis=0).repeat(2, axis=1)
        np.testing.assert_array_equal(sheet[top : top + 168, left : left + 168], expected)
        assert (sheet[top + 170 : top + 182, left : left + 40] != BACKGROUND).any(), "the number of the step"
        sheet[top : top + 184, left : left + 168] = BACKGROUND
    assert (sheet == BACKGROUND).all(), "nothing else"


def test_what_makes_no_sense_says_why(stream: Stream, tmp_path: Path) -> None:
    episode = next(trajectories(filled(stream)))
    with pytest.raises(ValueError, match=r"ends with \.png, got 'sheet\.jpg'"):
        write_contact_sheet(episode, tmp_path / "sheet.jpg")
    with pytest.raises(ValueError, match="n_pictures must be positive, got 0"):
        write_contact_sheet(episode, tmp_path / "sheet.png", n_pictures=0)
    assert not [*tmp_path.iterdir()]
