"""``PictureLayout``: the planes, lines and bytes of frames that are pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

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

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """What kernels need, for frames in the order of their shape.

        These are the number of planes, the height, the width, how many planes are interleaved, byte by byte, and
        whether planes are red, green and blue ones in turns, as 0 or 1: bytes of 3, 6, 9, ... channels.
        """
        return self._numbers(self.is_channel_last)

    @cached_property
    def transposed_numbers(self) -> NDArray[np.int64]:
        """The same for frames that have the bytes of a pixel in the other order, as transposed views have."""
        return self._numbers(not self.is_channel_last)

    def _numbers(self, is_channel_last: bool) -> NDArray[np.int64]:
        interleaved = self.itemsize * (self.channels if is_channel_last else 1)
        has_colors = self.itemsize == 1 and self.channels % 3 == 0
        return np.array([self.n_planes, self.height, self.width, interleaved, has_colors], dtype=np.int64)

    @cached_property
    def scratch_nbytes(self) -> int:
        """The scratch memory that kernels need, in bytes; it must be aligned to 8 bytes."""
        n_blocks = self.n_planes * -(-self.height * self.width // BLOCK)
        n_groups = -(-n_blocks // BLOCK)
        # Blocks and planes, widths and groups, and the widths of groups, of an even number.
        return 2 * BLOCK * n_blocks + 2 * BLOCK * n_groups + n_groups + 1
