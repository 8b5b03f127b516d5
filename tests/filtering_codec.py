"""``Filtering``: writes frames as 0.3.0 did with its filter of smooth pictures, which are still decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.delta import HEADER_FILTERED, Delta
from sb3_compressed.codecs.filtering import PlaneLayout
from sb3_compressed.codecs.picture_layout import PictureLayout


@dataclass(frozen=True)
class Filtering(Delta):
    """The codec ``delta`` whose other coder is Zstandard after the filter."""

    def _encode_whole(self, rows: NDArray[np.uint8], layout: PictureLayout | None = None) -> list[bytes]:
        if not self.planes.fits(rows.shape[1]):
            return super()._encode_whole(rows, layout)
        is_channel_last = rows.shape[1] == self.channel_last_nbytes
        payloads = self._plain_zstd.encode(filtered(rows, self.planes, is_channel_last=is_channel_last))
        return [HEADER_FILTERED + payload for payload in payloads]


def filtered(rows: NDArray[np.uint8], layout: PlaneLayout, *, is_channel_last: bool) -> NDArray[np.uint8]:
    """Return filtered frames ``(n, frame_nbytes)``.

    :param rows: bytes of frames, ``(n, frame_nbytes)``
    :param layout: one that fits them
    :param is_channel_last: whether the bytes of a pixel are neighbors in ``rows``, unlike in the layout
    """
    line, plane = layout.line_nbytes, layout.plane_nbytes
    n_planes = rows.shape[1] // plane
    frames: NDArray[Any]
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


def planes_of(shape: tuple[int, ...], itemsize: int) -> PlaneLayout:
    """Return the layout of frames of a shape ``(channels, height, width)``, with channels last, or without."""
    is_channel_last = len(shape) == 3 and shape[-1] < shape[0]
    height, width = (shape[0], shape[1] * shape[2]) if is_channel_last else shape[-2:]
    return PlaneLayout(width * itemsize, height * width * itemsize)
