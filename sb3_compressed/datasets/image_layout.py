"""Observations as pictures: the newest frame of each, grey or in colours, in eight bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.datasets.episodes import Trajectory

__all__ = ["PictureLayout", "enlarged", "fitting_scale", "picture_layout", "pictures_of"]

#: Observations that are decoded at a time: colour screens in stacks have some hundred kilobytes each.
AT_ONCE = 64


@dataclass(frozen=True)
class PictureLayout:
    """Where the newest picture is in an observation.

    :param key: the part of a Dict space, ``None`` where there is no Dict
    :param axis: the axis of an observation that holds frames and colours, ``None`` where there is none
    :param channels: how many of them are a picture, 1 or 3; the newest come last, as SB3 stacks them
    :param low: what is black
    :param high: what is white
    """

    key: str | None
    axis: Literal[0, -1, None]
    channels: int
    low: float
    high: float

    def pixels(self, observations: Any) -> NDArray[np.uint8]:
        """Return the newest pictures of observations.

        :param observations: ``(n, *obs_shape)``, or a dict of them
        :return: ``(n, height, width)`` if they are grey, ``(n, height, width, 3)`` if they have colours
        """
        images: NDArray[Any] = observations if self.key is None else observations[self.key]
        if self.axis == 0:
            images = np.moveaxis(images, 1, -1)
        if self.axis is not None:
            images = images[..., -self.channels :]
            images = images[..., 0] if self.channels == 1 else images
        if images.dtype != np.uint8 or (self.low, self.high) != (0, 255):
            images = (images.astype(np.float64) - self.low) * (255 / (self.high - self.low))
            images = np.rint(images.clip(0, 255)).astype(np.uint8)
        return np.ascontiguousarray(images)


def picture_layout(buffer: ReplayBuffer, key: str | None = None, channels: int | None = None) -> PictureLayout:
    """Find the pictures in a buffer's observations.

    What the buffer found out about stacked frames says how many colours there are; where it knows nothing of them, as
    SB3's own classes, numbers of channels that 3 divides are taken for colours.

    :param key: the part of a Dict space; it need not be named where only one can be shown
    :param channels: 1 for grey pictures, 3 for colours, ``None`` to find out
    :raises ValueError: if there are none, or several to choose from; the message says what to do
    """
    key, space = _image_part(buffer.observation_space, key)
    low, high = float(space.low.min()), float(space.high.max())
    shape = space.shape
    if len(shape) == 2:
        return PictureLayout(key, None, 1, low, high)
    axis: Literal[0, -1] = 0 if shape[0] < shape[-1] else -1
    n_channels = shape[axis]
    if channels is None:
        found = n_channels // _n_frames(buffer, key)
        channels = 3 if found % 3 == 0 else 1
    if channels not in (1, 3) or n_channels % channels:
        raise ValueError(f"pictures have 1 or 3 channels of the {n_channels} that there are, got {channels}")
    return PictureLayout(key, axis, channels, low, high)


def _image_part(space: spaces.Space[Any], key: str | None) -> tuple[str | None, spaces.Box]:
    """Return the part of a space that is to be shown, and its key."""
    if not isinstance(space, spaces.Dict):
        if key is not None:
            raise ValueError(f"observations of {space} have no parts, got the key {key!r}")
        if not _is_image(space):
            raise ValueError(f"observations of {space} are no pictures; {WHAT_TO_DO}")
        return None, cast("spaces.Box", space)
    keys = [name for name, part in space.spaces.items() if _is_image(part)]
    if key is None and len(keys) == 1:
        [key] = keys
    if key is None or key not in keys:
        what = "none can be shown" if not keys else f"{key!r} cannot be shown" if key else "several can be shown"
        advice = f"name one of {', '.join(keys)} as key" if keys else WHAT_TO_DO
        raise ValueError(f"of the parts {', '.join(space.spaces)} of observations, {what}; {advice}")
    return key, cast("spaces.Box", space.spaces[key])


WHAT_TO_DO = (
    "to see such an episode, take its actions (Trajectory.actions) in an environment with render_mode='rgb_array' and "
    "gymnasium.wrappers.RecordVideo around it"
)


def _is_image(space: spaces.Space[Any]) -> bool:
    """Return whether a space is of pictures: two or three axes, and bounds that say what is black and what is white."""
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3) or 0 in space.shape:
        return False
    return bool(np.isfinite(space.low).all() and np.isfinite(space.high).all() and space.low.min() < space.high.max())


def _n_frames(buffer: ReplayBuffer, key: str | None) -> int:
    arrays: Any = buffer.observations
    array = arrays if key is None else arrays[key]
    return array.n_frames if isinstance(array, CompressedArray) else 1


def pictures_of(episode: Trajectory, layout: PictureLayout) -> Iterator[NDArray[np.uint8]]:
    """Yield the picture of every observation of an episode, one more than it has steps; few are in memory at a time."""
    for first in range(0, len(episode), AT_ONCE):
        last = min(first + AT_ONCE, len(episode))
        pictures = layout.pixels(episode.part(first, last).observations)
        # The observation after the last step of a part is the first one of the next part.
        yield from pictures if last == len(episode) else pictures[:-1]


def enlarged(picture: NDArray[np.uint8], scale: int) -> NDArray[np.uint8]:
    """Return a picture with every pixel ``scale`` times as wide and high."""
    return picture.repeat(scale, axis=0).repeat(scale, axis=1)


def fitting_scale(picture: NDArray[np.uint8], scale: int | None, least: int) -> int:
    """Return by how much to enlarge a picture.

    :param scale: what was asked for, ``None`` for as much as makes its shorter side ``least`` pixels long
    :raises ValueError: if that is not positive
    """
    if scale is None:
        shorter: int = min(picture.shape[:2])
        return -(-least // shorter)
    if scale < 1:
        raise ValueError(f"scale must be positive, got {scale}")
    return scale
