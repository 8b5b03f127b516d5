""":func:`write_video`: stored episodes as an MP4 or a GIF."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.datasets.episodes import Trajectory
from sb3_compressed.datasets.extras import video_library
from sb3_compressed.datasets.image_layout import enlarged, fitting_scale, picture_layout, pictures_of

__all__ = ["write_video"]

#: Pixels that the shorter side of a picture is to have at least, unless a user says something else.
LEAST = 240
#: Colours of a GIF's frame.
N_COLOURS = 256

# Players everywhere want two by two pixels to share their colours, so sides are even.
MP4 = [
    "-c:v", "libx264", "-crf", "18", "-pix_fmt", "yuv420p", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2",
    "-movflags", "+faststart",
]  # fmt: skip
GIF = ["-c:v", "gif", "-loop", "0"]


def write_video(
    episodes: Trajectory | Iterable[Trajectory],
    path: str | PathLike[str],
    *,
    fps: float = 15,
    scale: int | None = None,
    key: str | None = None,
    channels: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> int:
    """Write episodes, one after the other, to an MP4 (H.264) or a GIF, as the suffix of the path says.

    Shown are all observations, of stacked ones the newest frame. Few of them are in memory at a time, however long the
    episodes are. A GIF shows every pixel as it was stored, unless a frame has more than 256 colours; an MP4 is lossy.
    The file gets its name when it is complete.

    >>> import tempfile
    >>> import numpy as np
    >>> from gymnasium import spaces
    >>> from sb3_compressed import CompressedReplayBuffer
    >>> from sb3_compressed.datasets import trajectories, write_video
    >>> buffer = CompressedReplayBuffer(100, spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(2))
    >>> frames = np.zeros((1, 4, 84, 84), np.uint8)
    >>> for step in range(5):
    ...     buffer.add(frames, frames, np.array([1]), np.array([0.5]), np.array([step == 4]), [{}])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_video(trajectories(buffer), f"{folder}/episodes.gif")
    6

    :param episodes: an episode or several of one buffer, as :func:`~sb3_compressed.datasets.trajectories` yields them
    :param path: a file whose name ends with ``.mp4`` or ``.gif``; it may exist
    :param fps: frames a second; 15 is the pace of an Atari game of which every fourth frame is seen
    :param scale: how many times as wide and high pixels are; ``None`` for at least 240 pixels in both directions
    :param key: the part of a Dict space to show, if several can be shown
    :param channels: 1 for grey pictures, 3 for colours, if what is found is wrong
    :param progress: called with the number of frames written since the last call
    :return: the number of frames
    :raises ValueError: if observations are no pictures, there are no episodes, or an argument makes no sense
    :raises ImportError: if what writes videos is not installed: ``pip install 'sb3-compressed[video]'``
    :raises OSError: if the file cannot be written
    """
    path = Path(path)
    if path.suffix.lower() not in (".mp4", ".gif"):
        raise ValueError(f"a video ends with .mp4 or .gif, got {path.name!r}")
    if not 0 < fps <= 1000:
        raise ValueError(f"fps must be positive and at most 1000, got {fps}")
    ffmpeg = video_library("imageio_ffmpeg").get_ffmpeg_exe()
    pictures = _pictures(episodes, key, channels)
    first = next(pictures, None)
    if first is None:
        raise ValueError("there is no episode to write")
    scale = fitting_scale(first, scale, LEAST)
    n_frames = 0
    with Encoder(ffmpeg, path, enlarged(first, scale).shape, fps) as encoder:
        picture: NDArray[np.uint8] | None = first
        while picture is not None:
            encoder.write(picture, scale)
            n_frames += 1
            if progress is not None:
                progress(1)
            picture = next(pictures, None)
    return n_frames


def _pictures(
    episodes: Trajectory | Iterable[Trajectory], key: str | None, channels: int | None
) -> Iterator[NDArray[np.uint8]]:
    for episode in [episodes] if isinstance(episodes, Trajectory) else episodes:
        yield from pictures_of(episode, picture_layout(episode.buffer, key, channels))


class Encoder:
    """A file that FFmpeg writes, frame by frame; it gets its name when it is left without an error.

    FFmpeg is a process that is fed pixels; imageio-ffmpeg brings it along. (That has a function which feeds it, too,
    but says nothing when it fails.)

    :param ffmpeg: the program
    :param path: the file, whose suffix says what it is to be
    :param shape: of all frames, ``(height, width)`` or ``(height, width, 3)``
    :param fps: frames a second
    """

    def __init__(self, ffmpeg: str, path: Path, shape: tuple[int, ...], fps: float) -> None:
        self.path = path
        self._unfinished = path.with_name(f"{path.stem}.unfinished{path.suffix}")
        self._unfinished.touch()  # raises what Python's own files would
        self._is_gif = path.suffix.lower() == ".gif"
        self._has_colours = len(shape) == 3
        pixels = "gray" if not self._has_colours else "pal8" if self._is_gif else "rgb24"
        height, width = shape[:2]
        given = ["-f", "rawvideo", "-pix_fmt", pixels, "-s", f"{width}x{height}", "-r", str(fps), "-i", "-"]
        out = [*(GIF if self._is_gif else MP4), f"file:{self._unfinished.absolute()}"]
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            [ffmpeg, "-y", "-loglevel", "error", *given, *out], stdin=subprocess.PIPE, stderr=self._said
        )

    def write(self, picture: NDArray[np.uint8], scale: int) -> None:
        """Write a frame.

        :raises OSError: if FFmpeg takes no more
        """
        assert self._process.stdin is not None
        try:
            if self._is_gif and self._has_colours:
                indices, palette = indexed(picture)
                self._process.stdin.write(enlarged(indices, scale).tobytes() + palette.tobytes())
            else:
                self._process.stdin.write(enlarged(picture, scale).tobytes())
        except BrokenPipeError:
            self._finish()

    def _finish(self) -> None:
        """Wait until FFmpeg has written all.

        :raises OSError: if it has not, with what it says
        """
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()
        if self._process.returncode:
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip() or f"exit code {self._process.returncode}"
            raise OSError(f"FFmpeg cannot write {self.path}: {said}")

    def __enter__(self) -> Encoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
                self._unfinished.replace(self.path)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.communicate()
            self._said.close()
            self._unfinished.unlink(missing_ok=True)


def indexed(picture: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Return the colours of a picture as a palette, and for each pixel which of them it has.

    A game's screen has few colours, so that nothing is lost; else Pillow chooses 256.

    :param picture: ``(height, width, 3)``
    :return: indices ``(height, width)`` and colours ``(256,)`` as FFmpeg takes them, ``0xAARRGGBB``
    """
    packed = picture.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    colours, indices = np.unique(packed, return_inverse=True)
    if len(colours) > N_COLOURS:
        image: Any = video_library("PIL.Image").fromarray(picture).quantize(N_COLOURS)
        chosen = np.frombuffer(bytes(image.getpalette("RGB")), np.uint8).reshape(-1, 3)
        colours = chosen.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
        indices = np.asarray(image)
    palette = np.full(N_COLOURS, 0xFF000000, "<u4")
    palette[: len(colours)] |= colours
    return indices.reshape(picture.shape[:2]).astype(np.uint8), palette
