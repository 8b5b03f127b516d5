"""The filter of smooth pictures, before Zstandard: what they differ by from line to line.

Neighboring pixels of camera and video pictures are similar but hardly ever equal, so Zstandard finds few repetitions.
The differences from the line above are small numbers around 0, which take few bits each: the filter "Up" of PNG
(https://www.w3.org/TR/png-3/#9Filters). Red and blue are stored as differences from green, since the three vary
together. Planes of one color follow each other, in the order that PyTorch reads. The inverse is adding bytes, which
takes a tenth of the time of Zstandard, and Zstandard takes less time, too, as there is less to decode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.errors import CodecError

__all__ = ["PlaneLayout", "filtered"]


@dataclass(frozen=True)
class PlaneLayout:
    """The lines and planes of a frame in C order.

    :param line_nbytes: bytes of a line
    :param plane_nbytes: bytes of a plane: a channel, or all of a frame whose channels are its last axis. Both are 0 for
        frames that are no pictures
    """

    line_nbytes: int = 0
    plane_nbytes: int = 0

    def __post_init__(self) -> None:
        line, plane = self.line_nbytes, self.plane_nbytes
        if (line or plane) and not (0 < line <= plane and plane % line == 0):
            raise CodecError(f"planes of {plane} bytes cannot have lines of {line} bytes")

    @classmethod
    def of(cls, shape: tuple[int, ...], itemsize: int) -> PlaneLayout:
        """Return the layout of frames of a shape ``(channels, height, width)``, with channels last, or without."""
        if len(shape) not in (2, 3) or 0 in shape:
            return cls()
        is_channel_last = len(shape) == 3 and shape[-1] < shape[0]
        height, width = (shape[0], shape[1] * shape[2]) if is_channel_last else shape[-2:]
        return cls(width * itemsize, height * width * itemsize)

    def fits(self, frame_nbytes: int) -> bool:
        """Return whether frames of this size consist of such planes."""
        return 0 < self.plane_nbytes <= frame_nbytes and frame_nbytes % self.plane_nbytes == 0


def filtered(rows: NDArray[np.uint8], layout: PlaneLayout, *, is_channel_last: bool) -> NDArray[np.uint8]:
    """Return filtered frames ``(n, frame_nbytes)``.

    :param rows: bytes of frames, ``(n, frame_nbytes)``
    :param layout: one that fits them
    :param is_channel_last: whether the bytes of a pixel are neighbors in ``rows``, unlike in the layout
    """
    line, plane = layout.line_nbytes, layout.plane_nbytes
    n_planes = rows.shape[1] // plane
    if is_channel_last:
        frames = rows.reshape(len(rows), plane // line, line, n_planes).transpose(0, 3, 1, 2)
    else:
        frames = rows.reshape(len(rows), n_planes, plane // line, line)
    if n_planes == 3:
        frames = np.array(frames, order="C")  # a copy
        frames[:, ::2] -= frames[:, 1:2]
    out = np.empty(frames.shape, np.uint8)
    out[:, :, 0] = frames[:, :, 0]
    np.subtract(frames[:, :, 1:], frames[:, :, :-1], out=out[:, :, 1:])
    return out.reshape(rows.shape)
