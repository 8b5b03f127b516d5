"""``stack_frames``: collected frames as one array, which codecs are trained and compared on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["stack_frames"]


def stack_frames(frames: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return frames as one array, with their axes in the order that those of the first have in memory."""
    axes = sorted(range(frames[0].ndim), key=lambda axis: -frames[0].strides[axis])
    stacked = np.stack([frame.transpose(axes) for frame in frames])
    return stacked.transpose(0, *(1 + axes.index(axis) for axis in range(len(axes))))
