"""Videos: other readers decode what was stored, for every kind of image, and memory is bounded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from conftest import Stream
from episodes import filled
from gymnasium import spaces
from numpy.typing import NDArray
from PIL import Image, ImageSequence
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.datasets import trajectories, write_video


def with_observations(
    images: NDArray[Any], cls: Any = CompressedReplayBuffer, low: float = 0, high: float = 255
) -> Any:
    """Return a buffer with one episode of these observations."""
    space = spaces.Box(low, high, images.shape[1:], images.dtype.type)
    buffer = cls(len(images), space, spaces.Discrete(2), device="cpu")
    for index in range(len(images) - 1):
        done = np.array([index == len(images) - 2])
        buffer.add(images[index : index + 1], images[index + 1 : index + 2], np.ones(1), np.ones(1), done, [{}])
    return buffer


def frames_of_gif(path: Path, mode: str) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        return np.stack([np.asarray(frame.convert(mode)) for frame in ImageSequence.Iterator(image)])


def frames_of_mp4(path: Path) -> tuple[float, NDArray[np.uint8]]:
    """Return frames per second and RGB frames, decoded by OpenCV."""
    video = cv2.VideoCapture(str(path))
    fps, frames = video.get(cv2.CAP_PROP_FPS), []
    while (result := video.read())[0]:
        frames.append(result[1][..., ::-1])  # from BGR
    video.release()
    return fps, np.stack(frames)


@pytest.mark.parametrize("stream", ["atari", "atari-channel-last"], indirect=True)
def test_gif_frames_equal_the_observations(stream: Stream, tmp_path: Path) -> None:
    buffer = filled(stream)
    episodes = [*trajectories(buffer)][:2]
    counted: list[int] = []
    n_frames = write_video(episodes, tmp_path / "episodes.gif", fps=20, scale=2, progress=counted.append)
    newest = [np.moveaxis(each.observations, np.argmin(each.observations.shape[1:]) + 1, 0)[-1] for each in episodes]
    expected = np.concatenate(newest).repeat(2, axis=1).repeat(2, axis=2)
    assert n_frames == sum(counted) == len(expected) == sum(len(each) + 1 for each in episodes)
    np.testing.assert_array_equal(frames_of_gif(tmp_path / "episodes.gif", "L"), expected)
    with Image.open(tmp_path / "episodes.gif") as image:
        assert image.info["duration"] == 50  # milliseconds
    assert [path.name for path in tmp_path.iterdir()] == ["episodes.gif"]


def test_mp4_frames_differ_little_from_the_observations(stream: Stream, tmp_path: Path) -> None:
    episode = next(trajectories(filled(stream)))
    write_video(episode, tmp_path / "episode.mp4", fps=30)
    fps, frames = frames_of_mp4(tmp_path / "episode.mp4")
    assert fps == 30
    expected = episode.observations[:, -1].repeat(3, axis=1).repeat(3, axis=2)
    assert frames.shape == (*expected.shape, 3)
    assert np.abs(frames.mean(axis=-1) - expected).mean() < 4


def screens(n_frames: int) -> NDArray[np.uint8]:
    """Return RGB screens of a game, ``(n_frames, 210, 160, 3)``."""
    import gymnasium as gym

    env = gym.make("ALE/MsPacman-v5", obs_type="rgb")
    env.action_space.seed(0)
    images = [env.reset(seed=0)[0]]
    while len(images) < n_frames:
        images.append(env.step(env.action_space.sample())[0])
    env.close()
    return np.stack(images)


@pytest.mark.parametrize(
    ("layout", "cls"),
    [("plain", ReplayBuffer), ("channel-first", CompressedReplayBuffer), ("stacked", CompressedReplayBuffer)],
)
def test_rgb_images_of_every_layout_are_exact(layout: str, cls: Any, tmp_path: Path) -> None:
    images = screens(20)
    stored, shown = images, images
    if layout == "channel-first":
        stored = np.moveaxis(images, -1, 1)
    elif layout == "stacked":  # newest last, like VecFrameStack
        stored = np.concatenate([images[age : len(images) - 3 + age] for age in range(4)], axis=-1)
        shown = images[3:]
    [episode] = trajectories(with_observations(np.ascontiguousarray(stored), cls))
    assert write_video(episode, tmp_path / "episode.gif", scale=1) == len(shown)
    np.testing.assert_array_equal(frames_of_gif(tmp_path / "episode.gif", "RGB"), shown)


def test_a_stack_of_three_gray_frames_is_not_taken_for_rgb(tmp_path: Path) -> None:
    gray = screens(20).mean(axis=-1).astype(np.uint8)
    stacks = np.stack([gray[age : 18 + age] for age in range(3)], axis=1)
    [detected] = trajectories(with_observations(stacks))
    observations: Any = detected.buffer.observations
    assert observations.n_frames == 3
    write_video(detected, tmp_path / "detected.gif", scale=1)
    np.testing.assert_array_equal(frames_of_gif(tmp_path / "detected.gif", "L"), gray[2:])
    [unknown] = trajectories(with_observations(stacks, ReplayBuffer))
    write_video(unknown, tmp_path / "passed.gif", scale=1, channels=1)
    np.testing.assert_array_equal(frames_of_gif(tmp_path / "passed.gif", "L"), gray[2:])


def test_many_colors_and_odd_sides_are_approximated(tmp_path: Path) -> None:
    down, right = np.mgrid[:31, :45]
    images = np.stack([np.stack([down * 8, right * 5, down + right + n], axis=-1) for n in range(4)]).astype(np.uint8)
    [episode] = trajectories(with_observations(images))
    write_video(episode, tmp_path / "episode.gif", scale=1)
    frames = frames_of_gif(tmp_path / "episode.gif", "RGB")
    assert frames.shape == images.shape
    assert np.abs(frames.astype(int) - images).mean() < 8
    write_video(episode, tmp_path / "episode.mp4", scale=1)
    _, frames = frames_of_mp4(tmp_path / "episode.mp4")
    assert frames.shape == (4, 32, 46, 3), "yuv420p needs even sides"
    assert np.abs(frames[:, :31, :45].astype(int) - images).mean() < 16


@pytest.mark.parametrize(("low", "high", "dtype"), [(0, 1, np.float32), (-1, 1, np.float64), (0, 3, np.uint8)])
def test_other_ranges_are_scaled_from_black_to_white(low: int, high: int, dtype: Any, tmp_path: Path) -> None:
    levels = np.linspace(low, high, 4).astype(dtype)
    images = np.stack([np.roll(np.repeat(levels, 60).reshape(12, 20), n, axis=0) for n in range(3)])
    [episode] = trajectories(with_observations(images, low=low, high=high))
    write_video(episode, tmp_path / "episode.gif", scale=1)
    frames = frames_of_gif(tmp_path / "episode.gif", "L")
    np.testing.assert_array_equal(frames, ((images.astype(float) - low) / (high - low) * 255).round())


@pytest.mark.parametrize("stream", ["console"], indirect=True)
def test_images_in_dict_observations_are_found_or_named_by_key(stream: Stream, tmp_path: Path) -> None:
    buffer = filled(stream)
    episode = next(trajectories(buffer))
    write_video(episode, tmp_path / "one.gif", scale=1)  # the only image
    write_video(episode, tmp_path / "named.gif", scale=1, key="screen")
    screen = episode.observations["screen"]
    expected = screen.reshape(-1, 84, 84)
    for name in ("one.gif", "named.gif"):
        np.testing.assert_array_equal(frames_of_gif(tmp_path / name, "L"), expected)
    with pytest.raises(ValueError, match=r"'ram' is not an image; pass one of screen as key"):
        write_video(episode, tmp_path / "other.gif", key="ram")
    assert not (tmp_path / "other.gif").exists()


@pytest.mark.parametrize("stream", ["pendulum"], indirect=True)
def test_vectors_raise_with_advice(stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"are not images; to watch the episode, replay its actions .*RecordVideo"):
        write_video(trajectories(filled(stream)), tmp_path / "episode.gif")


def test_invalid_arguments_raise_and_write_nothing(stream: Stream, tmp_path: Path) -> None:
    episode = next(trajectories(filled(stream)))
    wrong: list[tuple[Any, str, dict[str, Any], str]] = [
        (episode, "episode.avi", {}, "episode.avi"),
        ([], "episode.gif", {}, "got none"),
        (episode, "episode.gif", {"scale": 0}, "scale"),
        (episode, "episode.gif", {"fps": 0}, "fps"),
        (episode, "episode.gif", {"key": "screen"}, "key .*'screen'"),
        (episode, "episode.gif", {"channels": 3}, "channels .* 4 .*got 3"),
    ]
    for source, name, options, message in wrong:
        with pytest.raises(ValueError, match=message):
            write_video(source, tmp_path / name, **options)
    with pytest.raises(FileNotFoundError):
        write_video(episode, tmp_path / "missing" / "episode.gif")
    assert not [*tmp_path.iterdir()]


def test_an_error_leaves_the_existing_file_unchanged(stream: Stream, tmp_path: Path) -> None:
    path = tmp_path / "episode.gif"
    write_video(next(trajectories(filled(stream))), path)
    before = path.read_bytes()

    def interrupt(n_frames: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_video(next(trajectories(filled(stream))), path, progress=interrupt)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["episode.gif"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full for a full disk")
def test_errors_of_ffmpeg_are_raised(stream: Stream, tmp_path: Path) -> None:
    (tmp_path / "episode.gif.unfinished").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"FFmpeg cannot write .*No space left"):
        write_video(next(trajectories(filled(stream))), tmp_path / "episode.gif")
    assert not (tmp_path / "episode.gif").exists()
