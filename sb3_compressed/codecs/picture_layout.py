"""``PictureLayout``: the planes, lines and bytes of frames that are pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["PictureLayout"]

BLOCK = 8  # values


@dataclass(frozen=True)
class PictureLayout:
    """How the bytes of a frame are divided into planes of equal size, and these into lines.

    A plane has one byte of one channel of each pixel. Planes are numbered by picture, channel and byte, in this order,
    whichever axis of the frame is that of channels.

    :param n_pictures: pictures of a frame
    :param channels: channels of a picture
    :param height: lines of a picture
    :param width: pixels of a line
    :param itemsize: bytes of a channel of a pixel
    :param is_channel_last: whether channels are the last axis, so that those of a pixel are neighbors
    """

    n_pictures: int
    channels: int
    height: int
    width: int
    itemsize: int = 1
    is_channel_last: bool = False

    @staticmethod
    @lru_cache(maxsize=64)
    def of(shape: tuple[int, ...], itemsize: int) -> PictureLayout:
        """Return the layout of frames of a shape.

        The last three axes are those of a picture, in the order channels, height, width, or height, width, channels if
        the last one is smaller than the first of them. With two axes there is one channel, and with one there is one
        line. More axes count pictures.

        >>> PictureLayout.of((84, 84, 3), 1)
        PictureLayout(n_pictures=1, channels=3, height=84, width=84, itemsize=1, is_channel_last=True)
        """
        *others, first, second, third = (*(1,) * (3 - len(shape)), *shape)
        is_channel_last = third < first
        channels, height, width = (third, first, second) if is_channel_last else (first, second, third)
        return PictureLayout(math.prod(others), channels, height, width, itemsize, is_channel_last)

    @property
    def n_planes(self) -> int:
        """The number of planes of a frame."""
        return self.n_pictures * self.channels * self.itemsize

    @property
    def has_colors(self) -> bool:
        """Whether planes are red, green and blue ones in turns: bytes of 3, 6, 9, ... channels."""
        return self.itemsize == 1 and self.channels % 3 == 0

    def numbers(self, *, is_channel_last: bool | None = None) -> NDArray[np.int64]:
        """Return what kernels need.

        These are the number of planes, the height, the width, how many planes are interleaved, byte by byte, and
        whether the planes have colors, as 0 or 1.

        :param is_channel_last: for frames that have the bytes of a pixel in another order than the C order of their
            shape, as transposed views have
        """
        is_channel_last = self.is_channel_last if is_channel_last is None else is_channel_last
        interleaved = self.itemsize * (self.channels if is_channel_last else 1)
        return np.array([self.n_planes, self.height, self.width, interleaved, self.has_colors], dtype=np.int64)

    @property
    def scratch_nbytes(self) -> int:
        """The scratch memory that kernels need, in bytes; it must be aligned to 8 bytes."""
        n_blocks = self.n_planes * -(-self.height * self.width // BLOCK)
        n_groups = -(-n_blocks // BLOCK)
        # Blocks and planes, widths and groups, and the widths of groups, of an even number.
        return 2 * BLOCK * n_blocks + 2 * BLOCK * n_groups + n_groups + 1
