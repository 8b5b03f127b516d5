"""``ImageLayout``: where the newest image is in an observation, and its conversion to 8-bit gray or RGB."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.common.spaces import space_parts
from sb3_compressed.datasets.trajectory import Trajectory

__all__ = ["ImageLayout", "enlarge", "find_image_layout", "newest_images", "pick_scale"]

#: Observations that are decoded at a time: a stack of RGB screens takes some hundred kilobytes.
CHUNK_SIZE = 64

RENDER_ADVICE = (
    "to watch the episode, replay its actions (Trajectory.actions) in an environment with render_mode='rgb_array' "
    "that is wrapped in gymnasium.wrappers.RecordVideo"
)


@dataclass(frozen=True)
class ImageLayout:
    """Where the newest image is in an observation.

    :param key: key of the image in a Dict space, ``None`` for other spaces
    :param axis: axis of an observation with frames and channels, ``None`` if there is none
    :param channels: channels of an image, 1 or 3; the newest image comes last, as SB3 stacks frames
    :param low: value of black
    :param high: value of white
    """

    key: str | None
    axis: Literal[0, -1, None]
    channels: int
    low: float
    high: float

    def pixels(self, observations: Any) -> NDArray[np.uint8]:
        """Return the newest image of each observation.

        :param observations: ``(n, *obs_shape)``, or a dict of such arrays
        :return: ``(n, height, width)`` for gray images, ``(n, height, width, 3)`` for RGB
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


def find_image_layout(buffer: ReplayBuffer, key: str | None = None, channels: int | None = None) -> ImageLayout:
    """Find the images in a buffer's observations.

    The number of channels follows from the frame stack that the buffer has detected. Where no stack is known, as in
    SB3's own buffers, a multiple of 3 channels is taken for RGB.

    :param key: key of the images in a Dict space; optional if only one part of the space can be shown
    :param channels: 1 for gray images, 3 for RGB, ``None`` to detect it
    :raises ValueError: if there are no images, or several to choose from; the message gives advice
    """
    key, space = _image_part(buffer.observation_space, key)
    low, high = float(space.low.min()), float(space.high.max())
    shape = space.shape
    if len(shape) == 2:
        return ImageLayout(key, None, 1, low, high)
    axis: Literal[0, -1] = 0 if shape[0] < shape[-1] else -1
    n_channels = shape[axis]
    if channels is None:
        channels = 3 if (n_channels // _n_frames(buffer, key)) % 3 == 0 else 1
    if channels not in (1, 3) or n_channels % channels:
        raise ValueError(
            f"channels must be 1 or 3 and divide the {n_channels} channels of an observation, got {channels}"
        )
    return ImageLayout(key, axis, channels, low, high)


def _image_part(space: spaces.Space[Any], key: str | None) -> tuple[str | None, spaces.Box]:
    """Return the key and the space of the images in an observation space."""
    images = {name: part for name, part in space_parts(space).items() if _is_image(part)}
    if key is None and len(images) == 1:
        [key] = images
    if key in images:
        return key, cast("spaces.Box", images[key])
    if not isinstance(space, spaces.Dict):
        if key is not None:
            raise ValueError(f"key must be None for observations of {space}, got {key!r}")
        raise ValueError(f"observations of {space} are not images; {RENDER_ADVICE}")
    problem = "none is an image" if not images else f"{key!r} is not an image" if key else "several are images"
    advice = f"pass one of {', '.join(map(str, images))} as key" if images else RENDER_ADVICE
    raise ValueError(f"of the keys {', '.join(space.spaces)} of the observations, {problem}; {advice}")


def _is_image(space: spaces.Space[Any]) -> bool:
    """Return whether a space has two or three axes, and bounds that define black and white."""
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3) or 0 in space.shape:
        return False
    return bool(np.isfinite(space.low).all() and np.isfinite(space.high).all() and space.low.min() < space.high.max())


def _n_frames(buffer: ReplayBuffer, key: str | None) -> int:
    arrays: Any = buffer.observations
    array = arrays if key is None else arrays[key]
    return array.n_frames if isinstance(array, CompressedArray) else 1


def newest_images(episode: Trajectory, layout: ImageLayout) -> Iterator[NDArray[np.uint8]]:
    """Yield the newest image of each of the ``n_steps + 1`` observations of an episode, in bounded memory."""
    for part, is_last in episode.parts(CHUNK_SIZE):
        images = layout.pixels(part.observations)
        yield from images if is_last else images[:-1]


def enlarge(image: NDArray[np.uint8], scale: int) -> NDArray[np.uint8]:
    """Return an image with every pixel repeated ``scale`` times in both directions."""
    return image.repeat(scale, axis=0).repeat(scale, axis=1)


def pick_scale(image: NDArray[np.uint8], scale: int | None, min_size: int) -> int:
    """Return the factor by which to enlarge images.

    :param scale: the user's choice, ``None`` for a factor that makes the shorter side at least ``min_size`` pixels long
    :raises ValueError: if ``scale`` is not positive
    """
    if scale is None:
        shorter: int = min(image.shape[:2])
        return -(-min_size // shorter)
    if scale < 1:
        raise ValueError(f"scale must be positive, got {scale}")
    return scale
