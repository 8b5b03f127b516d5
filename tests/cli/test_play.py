"""``sb3-compressed play`` writes stored episodes as GIFs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import error_of, run
from conftest import Stream
from gymnasium import spaces
from numpy.typing import NDArray
from PIL import Image, ImageSequence
from stable_baselines3.common.save_util import save_to_pkl
from support import filled

from sb3_compressed import CompressedReplayBuffer, save_checkpoint
from sb3_compressed.datasets import trajectories


def saved(stream: Stream, folder: Path, n_steps: int = 200) -> Any:
    buffer = filled(stream, n_steps)
    save_checkpoint(buffer, folder)
    return buffer


def frames_of(path: Path, mode: str = "L") -> NDArray[np.uint8]:
    """Return the images of a GIF, one for each 70 ms that it is shown; Pillow writes equal ones once."""
    with Image.open(path) as image:
        frames = [(np.asarray(each.convert(mode)), each.info["duration"]) for each in ImageSequence.Iterator(image)]
    return np.stack([pixels for pixels, duration in frames for _ in range(duration // 70)])


def test_nan_return_is_null_in_json_and_never_the_best(stream: Stream, tmp_path: Path) -> None:
    buffer = saved(stream, tmp_path / "buffer")
    first, second = [number for number, each in enumerate(trajectories(buffer)) if each.has_begin and each.has_end][:2]
    for number, each in enumerate(trajectories(buffer)):
        buffer.rewards[each.rows, each.env] = 1.0 if number == second else np.nan
    save_checkpoint(buffer, tmp_path / "buffer")
    result = json.loads(run("inspect", tmp_path / "buffer", "--json").stdout, parse_constant=pytest.fail)
    assert result["episodes"]["best"] == second
    assert result["episodes"]["returns"]["median"] is None
    done = run("play", tmp_path / "buffer", "--episode", first, "--out", tmp_path / "episode.gif", "--json")
    assert json.loads(done.stdout, parse_constant=pytest.fail)["return"] is None


@pytest.mark.parametrize("stream", ["atari", "atari-channel-last", "console"], indirect=True)
def test_play_writes_the_best_episode(stream: Stream, tmp_path: Path) -> None:
    buffer = saved(stream, tmp_path / "buffer")
    gif = tmp_path / "episode.gif"
    done = run("play", tmp_path / "buffer", "--out", gif, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    episodes = [*trajectories(buffer)]
    episode = episodes[result["episode"]]
    whole = [each for each in episodes if each.has_begin and each.has_end]
    assert result["return"] == episode.rewards.sum() == max(each.rewards.sum() for each in whole)
    assert result["steps"] == len(episode)
    assert result["frames"] == len(episode) + 1
    assert result["video"] == str(gif)
    images = episode.observations["screen"] if isinstance(episode.observations, dict) else episode.observations
    newest = np.moveaxis(images, np.argmin(images.shape[1:]) + 1, 0)[-1]
    scale = -(-240 // min(newest.shape[1:]))
    np.testing.assert_array_equal(frames_of(gif), newest.repeat(scale, axis=1).repeat(scale, axis=2))


def test_colors_of_few_frames_are_exact(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 4, (7, 8, 9, 3), np.uint8) * np.uint8(80)
    space = spaces.Box(0, 255, images.shape[1:], np.uint8)
    buffer = CompressedReplayBuffer(10, space, spaces.Discrete(2), device="cpu")
    for step in range(6):
        buffer.add(images[step : step + 1], images[step + 1 : step + 2], np.ones(1), np.ones(1), np.zeros(1), [{}])
    save_checkpoint(buffer, tmp_path / "buffer")
    done = run("play", tmp_path / "buffer", "--frames", 4, "--out", tmp_path / "colors.gif")
    assert done.returncode == 0, done.stderr
    found = frames_of(tmp_path / "colors.gif", "RGB")
    np.testing.assert_array_equal(found[:, ::30, ::30], images[-4:])


def test_episode_can_be_chosen(stream: Stream, tmp_path: Path) -> None:
    buffer = saved(stream, tmp_path / "buffer")
    last = len([*trajectories(buffer)]) - 1
    done = run("play", tmp_path / "buffer", "--episode", last, "--out", tmp_path / "episode.gif", "--json")
    assert json.loads(done.stdout)["episode"] == last
    error = error_of("play", tmp_path / "buffer", "--episode", last + 1)
    assert error.endswith(f"contains episodes 0 to {last}, got {last + 1}")
    assert "mp4" in error_of("play", tmp_path / "buffer", "--out", tmp_path / "episode.mp4")


def test_pickle_requires_unpickle(stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = saved(stream, tmp_path / "buffer", 30)
    save_to_pkl(tmp_path / "buffer.pkl", buffer)
    monkeypatch.chdir(tmp_path)
    assert "pass --unpickle if you trust it" in error_of("play", "buffer.pkl")
    done = run("play", "buffer.pkl", "--unpickle", "--episode", 0)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    episode = next(trajectories(buffer))
    assert f"episode 0 of {len([*trajectories(buffer)])}: {len(episode)} steps, return " in done.stdout
    assert f"episode-0.gif: {len(episode) + 1} frames\n" in done.stdout
    assert len(frames_of(tmp_path / "episode-0.gif")) == len(episode) + 1


@pytest.mark.parametrize(
    ("stream", "n_steps", "message"),
    [("pendulum", 20, "are not images of uint8; to watch"), ("atari", 0, "contains no transitions yet")],
    indirect=["stream"],
)
def test_vectors_and_empty_buffers_are_errors(stream: Stream, n_steps: int, message: str, tmp_path: Path) -> None:
    saved(stream, tmp_path / "buffer", n_steps)
    assert message in error_of("play", tmp_path / "buffer")
