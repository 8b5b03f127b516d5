""":func:`write_contact_sheet`: an episode at a glance, as one picture."""

from __future__ import annotations

import math
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.datasets.episodes import Trajectory
from sb3_compressed.datasets.extras import video_library
from sb3_compressed.datasets.image_layout import enlarged, fitting_scale, picture_layout

__all__ = ["write_contact_sheet"]

#: Pixels that the shorter side of a picture is to have at least, unless a user says something else.
LEAST = 120
#: Pixels around pictures, and those below them for their numbers.
MARGIN, LINE = 6, 16
#: Dark, and not the black of many games.
BACKGROUND = 48


def write_contact_sheet(
    episode: Trajectory,
    path: str | PathLike[str],
    *,
    n_pictures: int = 20,
    scale: int | None = None,
    key: str | None = None,
    channels: int | None = None,
) -> list[int]:
    """Write evenly spaced observations of an episode, from the first to the last, as a grid to a PNG.

    Every pixel is as it was stored; the number of the step stands below each picture.

    :param episode: the episode, as :func:`~sb3_compressed.datasets.trajectories` yields it
    :param path: a file whose name ends with ``.png``; it may exist
    :param n_pictures: how many pictures, less if there are less observations
    :param scale: how many times as wide and high pixels are; ``None`` for at least 120 pixels in both directions
    :param key: the part of a Dict space to show, if several can be shown
    :param channels: 1 for grey pictures, 3 for colours, if what is found is wrong
    :return: the steps shown; number ``n`` is the observation after ``n`` steps
    :raises ValueError: if observations are no pictures, or an argument makes no sense
    :raises ImportError: if Pillow is not installed: ``pip install 'sb3-compressed[video]'``
    :raises OSError: if the file cannot be written
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ValueError(f"a contact sheet ends with .png, got {path.name!r}")
    if n_pictures < 1:
        raise ValueError(f"n_pictures must be positive, got {n_pictures}")
    image, draw = video_library("PIL.Image"), video_library("PIL.ImageDraw")
    layout = picture_layout(episode.buffer, key, channels)
    steps: list[int] = np.unique(
        np.linspace(0, len(episode), min(n_pictures, len(episode) + 1)).round().astype(int)
    ).tolist()
    pictures = [layout.pixels(_observation_after(episode, step))[0] for step in steps]
    scale = fitting_scale(pictures[0], scale, LEAST)
    sheet = image.fromarray(_grid([enlarged(picture, scale) for picture in pictures]))
    pen = draw.Draw(sheet)
    for index, step in enumerate(steps):
        top, left = place(index, len(steps), *_size(pictures[0], scale))
        pen.text((left + 1, top + _size(pictures[0], scale)[0] + 2), f"step {step}", fill="white")
    sheet.save(path, "PNG")
    return steps


def _observation_after(episode: Trajectory, step: int) -> Any:
    """Return the observation after some steps, with an axis before it."""
    first = min(step, len(episode) - 1)
    observations = episode.part(first, first + 1).observations
    if isinstance(observations, dict):
        return {part: values[step - first :] for part, values in observations.items()}
    return observations[step - first :]


def _size(picture: NDArray[np.uint8], scale: int) -> tuple[int, int]:
    return picture.shape[0] * scale, picture.shape[1] * scale


def n_columns(n_pictures: int) -> int:
    """Return how many pictures stand side by side."""
    return math.ceil(math.sqrt(n_pictures))


def place(index: int, n_pictures: int, height: int, width: int) -> tuple[int, int]:
    """Return where a picture begins in the sheet, ``(top, left)`` in pixels."""
    row, column = divmod(index, n_columns(n_pictures))
    return MARGIN + row * (height + LINE + MARGIN), MARGIN + column * (width + MARGIN)


def _grid(pictures: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    height, width = pictures[0].shape[:2]
    n = len(pictures)
    columns, rows = n_columns(n), math.ceil(n / n_columns(n))
    shape = rows * (height + LINE + MARGIN) + MARGIN, columns * (width + MARGIN) + MARGIN, *pictures[0].shape[2:]
    grid = np.full(shape, BACKGROUND, np.uint8)
    for index, picture in enumerate(pictures):
        top, left = place(index, n, height, width)
        grid[top : top + height, left : left + width] = picture
    return grid
