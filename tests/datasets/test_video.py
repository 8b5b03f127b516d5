"""Videos: what readers find in the files is what was stored, of every kind of picture, in bounded memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from conftest import Stream
from gymnasium import spaces
from numpy.typing import NDArray
from PIL import Image, ImageSequence
from programs import run
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed import CompressedDictReplayBuffer, CompressedReplayBuffer, trajectories, write_video


def filled(stream: Stream, n_steps: int = 60) -> Any:
    space, action_space, n_envs, transitions = stream
    cls = CompressedDictReplayBuffer if isinstance(space, spaces.Dict) else CompressedReplayBuffer
    buffer = cls(100 * n_envs, space, action_space, device="cpu", n_envs=n_envs)
    for transition in transitions[:n_steps]:
        transition.add_to(buffer)
    return buffer


def holding(pictures: NDArray[Any], cls: Any = CompressedReplayBuffer, **bounds: Any) -> Any:
    """Return a buffer with an episode of which these are the observations."""
    space = spaces.Box(
        bounds.get("low", 0), bounds.get("high", 255), pictures.shape[1:], pictures.dtype.type
    )  # fmt: skip
    buffer = cls(len(pictures), space, spaces.Discrete(2), device="cpu")
    for index in range(len(pictures) - 1):
        done = np.array([index == len(pictures) - 2])
        buffer.add(pictures[index : index + 1], pictures[index + 1 : index + 2], np.ones(1), np.ones(1), done, [{}])
    return buffer


def frames_of_gif(path: Path, mode: str) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        return np.stack([np.asarray(frame.convert(mode)) for frame in ImageSequence.Iterator(image)])


def frames_of_mp4(path: Path) -> tuple[float, NDArray[np.uint8]]:
    """Return frames a second, and the frames, as another reader than the writer's finds them."""
    video = cv2.VideoCapture(str(path))
    fps, frames = video.get(cv2.CAP_PROP_FPS), []
    while (found := video.read())[0]:
        frames.append(found[1][..., ::-1])  # from blue, green, red
    video.release()
    return fps, np.stack(frames)


@pytest.mark.parametrize("stream", ["atari", "atari-channel-last"], indirect=True)
def test_a_gif_shows_every_pixel_of_the_newest_frames(stream: Stream, tmp_path: Path) -> None:
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


def test_an_mp4_shows_them_nearly(stream: Stream, tmp_path: Path) -> None:
    episode = next(trajectories(filled(stream)))
    write_video(episode, tmp_path / "episode.mp4", fps=30)
    fps, frames = frames_of_mp4(tmp_path / "episode.mp4")
    assert fps == 30
    expected = episode.observations[:, -1].repeat(3, axis=1).repeat(3, axis=2)
    assert frames.shape == (*expected.shape, 3)
    assert np.abs(frames.mean(axis=-1) - expected).mean() < 4


def screens(n_frames: int) -> NDArray[np.uint8]:
    """Return what a game shows in colours, ``(n_frames, 210, 160, 3)``."""
    import gymnasium as gym

    env = gym.make("ALE/MsPacman-v5", obs_type="rgb")
    env.action_space.seed(0)
    found = [env.reset(seed=0)[0]]
    while len(found) < n_frames:
        found.append(env.step(env.action_space.sample())[0])
    env.close()
    return np.stack(found)


@pytest.mark.parametrize("cls", [CompressedReplayBuffer, ReplayBuffer])
@pytest.mark.parametrize("layout", ["plain", "channel-first", "stacked"])
def test_colours(layout: str, cls: Any, tmp_path: Path) -> None:
    pictures = screens(20)
    stored, shown = pictures, pictures
    if layout == "channel-first":
        stored = np.moveaxis(pictures, -1, 1)
    elif layout == "stacked":  # as VecFrameStack stacks, the newest last
        stored = np.concatenate([pictures[age : len(pictures) - 3 + age] for age in range(4)], axis=-1)
        shown = pictures[3:]
    [episode] = trajectories(holding(np.ascontiguousarray(stored), cls))
    assert write_video(episode, tmp_path / "episode.gif", scale=1) == len(shown)
    np.testing.assert_array_equal(frames_of_gif(tmp_path / "episode.gif", "RGB"), shown)


def test_a_stack_of_three_grey_frames_is_no_colour(tmp_path: Path) -> None:
    grey = screens(20).mean(axis=-1).astype(np.uint8)
    stacks = np.stack([grey[age : 18 + age] for age in range(3)], axis=1)
    [found] = trajectories(holding(stacks))
    observations: Any = found.buffer.observations
    assert observations.n_frames == 3, "found from the data"
    write_video(found, tmp_path / "found.gif", scale=1)
    np.testing.assert_array_equal(frames_of_gif(tmp_path / "found.gif", "L"), grey[2:])
    [unknown] = trajectories(holding(stacks, ReplayBuffer))
    write_video(unknown, tmp_path / "told.gif", scale=1, channels=1)
    np.testing.assert_array_equal(frames_of_gif(tmp_path / "told.gif", "L"), grey[2:])


def test_more_colours_than_a_gif_has_and_odd_sides(tmp_path: Path) -> None:
    down, right = np.mgrid[:31, :45]
    pictures = np.stack([np.stack([down * 8, right * 5, down + right + n], axis=-1) for n in range(4)]).astype(np.uint8)
    [episode] = trajectories(holding(pictures))
    write_video(episode, tmp_path / "episode.gif", scale=1)
    frames = frames_of_gif(tmp_path / "episode.gif", "RGB")
    assert frames.shape == pictures.shape
    assert np.abs(frames.astype(int) - pictures).mean() < 8
    write_video(episode, tmp_path / "episode.mp4", scale=1)
    _, frames = frames_of_mp4(tmp_path / "episode.mp4")
    assert frames.shape == (4, 32, 46, 3), "even, since pixels share their colours by twos"
    assert np.abs(frames[:, :31, :45].astype(int) - pictures).mean() < 16


@pytest.mark.parametrize(("low", "high", "dtype"), [(0, 1, np.float32), (-1, 1, np.float64), (0, 3, np.uint8)])
def test_pictures_of_other_numbers_go_from_black_to_white(low: int, high: int, dtype: Any, tmp_path: Path) -> None:
    levels = np.linspace(low, high, 4).astype(dtype)
    pictures = np.stack([np.roll(np.repeat(levels, 60).reshape(12, 20), n, axis=0) for n in range(3)])
    [episode] = trajectories(holding(pictures, low=low, high=high))
    write_video(episode, tmp_path / "episode.gif", scale=1)
    frames = frames_of_gif(tmp_path / "episode.gif", "L")
    np.testing.assert_array_equal(frames, ((pictures.astype(float) - low) / (high - low) * 255).round())


@pytest.mark.parametrize("stream", ["console"], indirect=True)
def test_a_part_of_dict_observations(stream: Stream, tmp_path: Path) -> None:
    buffer = filled(stream)
    episode = next(trajectories(buffer))
    write_video(episode, tmp_path / "one.gif", scale=1)  # there is one part that can be shown
    write_video(episode, tmp_path / "named.gif", scale=1, key="screen")
    screen = episode.observations["screen"]
    expected = screen.reshape(-1, 84, 84)
    for name in ("one.gif", "named.gif"):
        np.testing.assert_array_equal(frames_of_gif(tmp_path / name, "L"), expected)
    with pytest.raises(ValueError, match=r"'ram' cannot be shown; name one of screen as key"):
        write_video(episode, tmp_path / "other.gif", key="ram")
    assert not (tmp_path / "other.gif").exists()


@pytest.mark.parametrize("stream", ["pendulum"], indirect=True)
def test_vectors_are_no_pictures(stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"are no pictures; to see such an episode, take its actions .*RecordVideo"):
        write_video(trajectories(filled(stream)), tmp_path / "episode.gif")


def test_what_makes_no_sense_says_why(stream: Stream, tmp_path: Path) -> None:
    episode = next(trajectories(filled(stream)))
    with pytest.raises(ValueError, match=r"ends with \.mp4 or \.gif, got 'episode\.avi'"):
        write_video(episode, tmp_path / "episode.avi")
    with pytest.raises(ValueError, match="no episode to write"):
        write_video([], tmp_path / "episode.gif")
    with pytest.raises(ValueError, match="scale must be positive, got 0"):
        write_video(episode, tmp_path / "episode.gif", scale=0)
    with pytest.raises(ValueError, match="fps must be positive"):
        write_video(episode, tmp_path / "episode.gif", fps=0)
    with pytest.raises(ValueError, match="have no parts, got the key 'screen'"):
        write_video(episode, tmp_path / "episode.gif", key="screen")
    with pytest.raises(ValueError, match="1 or 3 channels of the 4 that there are, got 3"):
        write_video(episode, tmp_path / "episode.gif", channels=3)
    with pytest.raises(FileNotFoundError):
        write_video(episode, tmp_path / "missing" / "episode.gif")
    assert not [*tmp_path.iterdir()]


def test_an_error_leaves_the_file_that_there_was(stream: Stream, tmp_path: Path) -> None:
    path = tmp_path / "episode.gif"
    write_video(next(trajectories(filled(stream))), path)
    before = path.read_bytes()

    def interrupt(n_frames: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_video(next(trajectories(filled(stream))), path, progress=interrupt)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["episode.gif"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is full is there on Linux")
def test_ffmpegs_errors_are_told(stream: Stream, tmp_path: Path) -> None:
    (tmp_path / "episode.unfinished.gif").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"FFmpeg cannot write .*No space left"):
        write_video(next(trajectories(filled(stream))), tmp_path / "episode.gif")
    assert not (tmp_path / "episode.gif").exists()


BOUNDED = """
import sys
from memory import memory_of_process, with_one_episode
from sb3_compressed import trajectories, write_video
write_video(trajectories(with_one_episode(int(sys.argv[1]))), sys.argv[2], scale=2)
print(memory_of_process("VmHWM"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the peak of a process's memory")
@pytest.mark.slow
def test_it_takes_bounded_memory(tmp_path: Path) -> None:
    sizes = 500, 5_000  # frames of 14 or 141 MB
    peaks = [int(run(BOUNDED, size, tmp_path / "episode.gif")) for size in sizes]
    assert peaks[1] - peaks[0] < 40_000_000
