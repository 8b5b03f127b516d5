"""``FrameEncoder``: the codec of items, and how they are divided into frames."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.codecs import Codec, TrainableCodec

__all__ = ["AcceptedCodec", "FrameEncoder"]

AcceptedCodec = Codec | type[Codec]
"""The codec that wrote payloads; if it is trainable, its class."""


class FrameEncoder:
    """The codec and the layout of items of one shape and dtype.

    A slot shows how many frames it has, and which trained codec wrote each, so slots stay readable when the layout is
    found or the codec is trained after they were written.

    :param item_shape: shape of one item
    :param dtype: dtype that items are stored in
    :param codec: encodes frames and whole items
    :param layout: how items are divided into frames; ``None`` if they are not
    :ivar is_trainable: whether slots name the codec
    :ivar n_frames: the number of frames of an item
    :ivar newest_first: whether the newest frame of an item is its first one
    """

    layout: FrameLayout | None
    n_frames: int
    newest_first: bool

    def __init__(
        self, item_shape: tuple[int, ...], dtype: np.dtype[Any], codec: Codec, layout: FrameLayout | None
    ) -> None:
        self.item_shape = item_shape
        self.dtype = dtype
        self.codec = codec
        self.is_trainable = isinstance(codec, TrainableCodec)
        self.set_layout(layout)

    @property
    def accepted(self) -> AcceptedCodec:
        """The codec whose payloads can be read; if it is trainable, its class, since it changes with each training."""
        return type(self.codec) if self.is_trainable else self.codec

    def set_layout(self, layout: FrameLayout | None) -> None:
        """Divide items into other frames from now on."""
        n_frames, newest_first = (1, False) if layout is None else (layout.n_frames, layout.newest_first)
        # All at once, whatever Ctrl-C interrupts.
        vars(self).update(layout=layout, n_frames=n_frames, newest_first=newest_first)

    def split(self, items: NDArray[Any]) -> NDArray[Any]:
        """Return items ``(n, *item_shape)`` as a C-contiguous copy of their frames ``(n, n_frames, *frame_shape)``."""
        frames = items[:, np.newaxis] if self.layout is None else self.layout.split(items)
        return np.array(frames, order="C", copy=True)
