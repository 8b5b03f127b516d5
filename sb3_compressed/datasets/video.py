"""``write_video``: stored episodes as an MP4 or a GIF."""

from __future__ import annotations

import itertools
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.common.extras import import_extra
from sb3_compressed.common.paths import user_path
from sb3_compressed.datasets.image_layout import enlarge, find_image_layout, newest_images, pick_scale
from sb3_compressed.datasets.trajectory import Trajectory
from sb3_compressed.storage.files import completed_file

__all__ = ["write_video"]

#: Length of the shorter side of a frame, in pixels, if no scale is passed.
MIN_FRAME_SIZE = 240
#: Colours in the palette of a GIF frame.
N_COLORS = 256

# Players support yuv420p best, which stores the color of 2x2 pixels together and so needs even sides.
MP4 = [
    "-f", "mp4", "-c:v", "libx264", "-crf", "18", "-pix_fmt", "yuv420p", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2",
    "-movflags", "+faststart",
]  # fmt: skip
GIF = ["-f", "gif", "-c:v", "gif", "-loop", "0"]
FORMATS = {".mp4": MP4, ".gif": GIF}


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
    """Write episodes, one after the other, to an MP4 (H.264) or a GIF, depending on the suffix of the path.

    The video shows the newest frame of every observation. Memory is bounded, whatever the length of the episodes. The
    pixels of a GIF are exact unless a frame has more than 256 colors; an MP4 is lossy. The file is written under a
    temporary name and renamed when it is complete.

    >>> import tempfile
    >>> import numpy as np
    >>> from gymnasium import spaces
    >>> from sb3_compressed import CompressedReplayBuffer
    >>> from sb3_compressed.datasets import trajectories, write_video
    >>> buffer = CompressedReplayBuffer(
    ...     100, spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(2)
    ... )
    >>> frames = np.zeros((1, 4, 84, 84), np.uint8)
    >>> for step in range(5):
    ...     buffer.add(frames, frames, np.array([1]), np.array([0.5]), np.array([step == 4]), [{}])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_video(trajectories(buffer), f"{folder}/episodes.gif")
    6

    :param episodes: one or more episodes of one buffer, from :func:`~sb3_compressed.datasets.trajectories`
    :param path: path that ends with ``.mp4`` or ``.gif``; an existing file is replaced
    :param fps: frames per second; 15 is the original speed of an Atari game with a frame skip of 4
    :param scale: factor by which frames are enlarged; ``None`` for at least 240 pixels in both directions
    :param key: key of the images in a Dict space, needed if there are several
    :param channels: 1 for gray images, 3 for RGB, to override the detected number
    :param progress: called with the number of frames written since the last call
    :return: the number of frames
    :raises ValueError: if observations are not images, there are no episodes, or an argument is invalid
    :raises ImportError: if imageio-ffmpeg is not installed: ``pip install '.[video]'``
    :raises OSError: if the file cannot be written
    """
    path = user_path(path)
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"the path of a video must end with .mp4 or .gif, got {path.name!r}")
    if not 0 < fps <= 1000:
        raise ValueError(f"fps must be positive and at most 1000, got {fps}")
    ffmpeg = import_extra("imageio_ffmpeg", "video", "videos").get_ffmpeg_exe()
    images = _images(episodes, key, channels)
    first = next(images, None)
    if first is None:
        raise ValueError("episodes must contain at least one episode, got none")
    scale = pick_scale(first, scale, MIN_FRAME_SIZE)
    has_palette = path.suffix.lower() == ".gif" and first.ndim == 3
    pixels = "gray" if first.ndim == 2 else "pal8" if has_palette else "rgb24"
    n_frames = 0
    with ffmpeg_writer(ffmpeg, path, pixels, enlarge(first, scale).shape, fps) as pipe:
        for image in itertools.chain([first], images):
            image, palette = to_palette(image) if has_palette else (image, None)
            pipe.write(enlarge(image, scale).tobytes() + (b"" if palette is None else palette.tobytes()))
            n_frames += 1
            if progress is not None:
                progress(1)
    return n_frames


def _images(
    episodes: Trajectory | Iterable[Trajectory], key: str | None, channels: int | None
) -> Iterator[NDArray[np.uint8]]:
    for episode in [episodes] if isinstance(episodes, Trajectory) else episodes:
        yield from newest_images(episode, find_image_layout(episode.buffer, key, channels))


@contextmanager
def ffmpeg_writer(ffmpeg: str, path: Path, pixels: str, shape: tuple[int, ...], fps: float) -> Iterator[IO[bytes]]:
    """Yield a pipe to FFmpeg for raw frames; the file is renamed to ``path`` on success.

    imageio-ffmpeg installs FFmpeg. Its own ``write_frames`` does not report FFmpeg's errors.

    :param ffmpeg: path of the program
    :param path: the file, whose suffix selects the format
    :param pixels: FFmpeg's name of the format of pixels
    :param shape: shape of all frames, ``(height, width)`` or ``(height, width, 3)``
    :param fps: frames per second
    :raises OSError: if FFmpeg fails, with its error message
    """
    height, width = shape[:2]
    source = ["-f", "rawvideo", "-pix_fmt", pixels, "-s", f"{width}x{height}", "-r", str(fps), "-i", "-"]
    with completed_file(path) as unfinished, tempfile.TemporaryFile() as stderr:
        unfinished.touch()  # raises the OSErrors of open()
        target = [*FORMATS[path.suffix.lower()], f"file:{unfinished.absolute()}"]
        process = subprocess.Popen(
            [ffmpeg, "-y", "-loglevel", "error", *source, *target], stdin=subprocess.PIPE, stderr=stderr
        )
        assert process.stdin is not None
        try:
            with suppress(BrokenPipeError):  # FFmpeg has failed, which is reported below
                yield process.stdin
            process.communicate()
            if process.returncode:
                stderr.seek(0)
                message = stderr.read().decode(errors="replace").strip() or f"exit code {process.returncode}"
                raise OSError(f"FFmpeg cannot write {path}: {message}")
        finally:
            process.kill()  # without effect unless an exception interrupted it
            process.communicate()


def to_palette(image: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Convert an RGB image to palette indices and a palette, exactly unless it has more than 256 colors.

    :param image: ``(height, width, 3)``
    :return: indices ``(height, width)`` and the palette ``(256,)`` in FFmpeg's format ``0xAARRGGBB``
    """
    quantized: Any = import_extra("PIL.Image", "video", "videos of color images").fromarray(image).quantize(N_COLORS)
    colors = np.frombuffer(bytes(quantized.getpalette("RGB")), np.uint8).reshape(-1, 3)
    palette = np.full(N_COLORS, 0xFF000000, "<u4")
    palette[: len(colors)] |= colors @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    return np.asarray(quantized), palette
