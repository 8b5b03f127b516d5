"""``write_contact_sheet``: evenly spaced observations of an episode as a grid of images."""

from __future__ import annotations

import math
from os import PathLike
from typing import Any

import numpy as np

from sb3_compressed.common.extras import import_extra
from sb3_compressed.common.paths import user_path
from sb3_compressed.common.tree_map import tree_map
from sb3_compressed.datasets.image_layout import find_image_layout, pick_scale
from sb3_compressed.datasets.trajectory import Trajectory

__all__ = ["write_contact_sheet"]

#: Length of the shorter side of an image, in pixels, if no scale is passed.
MIN_IMAGE_SIZE = 120
#: Pixels between images, and the height of the label below each.
MARGIN, LABEL_HEIGHT = 6, 16
#: Dark gray, which differs from the black background of many games.
BACKGROUND = 48


def write_contact_sheet(
    episode: Trajectory,
    path: str | PathLike[str],
    *,
    n_images: int = 20,
    scale: int | None = None,
    key: str | None = None,
    channels: int | None = None,
) -> list[int]:
    """Write evenly spaced observations of an episode, including the first and the last, to a PNG.

    Pixels are exact. Below each image is the number of its step.

    :param episode: an episode from :func:`~sb3_compressed.datasets.trajectories`
    :param path: path that ends with ``.png``; an existing file is replaced
    :param n_images: number of images, fewer if there are fewer observations
    :param scale: factor by which images are enlarged; ``None`` for at least 120 pixels in both directions
    :param key: key of the images in a Dict space, needed if there are several
    :param channels: 1 for gray images, 3 for RGB, to override the detected number
    :return: the steps shown; step ``n`` is the observation after ``n`` steps
    :raises ValueError: if observations are not images, or an argument is invalid
    :raises ImportError: if Pillow is not installed: ``pip install '.[video]'``
    :raises OSError: if the file cannot be written
    """
    path = user_path(path)
    if path.suffix.lower() != ".png":
        raise ValueError(f"the path of a contact sheet must end with .png, got {path.name!r}")
    if n_images < 1:
        raise ValueError(f"n_images must be positive, got {n_images}")
    pil_image, pil_draw = (import_extra(f"PIL.{name}", "video", "contact sheets") for name in ("Image", "ImageDraw"))
    layout = find_image_layout(episode.buffer, key, channels)
    steps: list[int] = np.unique(
        np.linspace(0, len(episode), min(n_images, len(episode) + 1)).round().astype(int)
    ).tolist()
    images = [layout.pixels(_observation_after(episode, step))[0] for step in steps]
    height, width = (side * pick_scale(images[0], scale, MIN_IMAGE_SIZE) for side in images[0].shape[:2])
    first, n = pil_image.fromarray(images[0]), len(images)
    bottom, _ = image_position(n - 1, n, height, width)
    _, right = image_position(n_columns(n) - 1, n, height, width)
    size = right + width + MARGIN, bottom + height + LABEL_HEIGHT + MARGIN
    sheet = pil_image.new(first.mode, size, BACKGROUND if first.mode == "L" else (BACKGROUND,) * 3)
    draw = pil_draw.Draw(sheet)
    for index, (step, image) in enumerate(zip(steps, images)):
        top, left = image_position(index, n, height, width)
        sheet.paste(pil_image.fromarray(image).resize((width, height), pil_image.Resampling.NEAREST), (left, top))
        draw.text((left + 1, top + height + 2), f"step {step}", fill="white")
    sheet.save(path, "PNG")
    return steps


def _observation_after(episode: Trajectory, step: int) -> Any:
    """Return the observation after ``step`` steps, ``(1, *obs_shape)`` or a dict of such arrays."""
    first = min(step, len(episode) - 1)
    observations = episode.part(first, first + 1).observations
    return tree_map(lambda values: values[step - first :], observations)


def n_columns(n_images: int) -> int:
    """Return the number of columns of the grid."""
    return math.ceil(math.sqrt(n_images))


def image_position(index: int, n_images: int, height: int, width: int) -> tuple[int, int]:
    """Return the upper left corner of an image in the sheet, ``(top, left)`` in pixels."""
    row, column = divmod(index, n_columns(n_images))
    return MARGIN + row * (height + LABEL_HEIGHT + MARGIN), MARGIN + column * (width + MARGIN)
