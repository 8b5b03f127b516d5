"""``auto``: which observations it compresses, and with which codec.

Images are stored by the codec ``delta``: each new frame as differences from other frames if these are small, otherwise
as the smallest of these differences, a block of LZ4, packed differences, and the uncompressed frame. Observations below
1 kB, and floats of one or two dimensions, stay plain arrays.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sb3_compressed.codecs.codec import Codec
from sb3_compressed.codecs.delta import Delta

__all__ = ["auto_codec", "is_auto", "is_large", "may_compress"]

#: Smaller items save little memory and are slower to read: a slot and its payload take 32 bytes besides the content,
#: and sharing next observations saves half at most.
MIN_COMPRESSED_NBYTES = 1024


def auto_codec(*, is_short_lived: bool = False) -> Delta:
    """Return the codec of ``auto``, which is trained on the frames that it encodes.

    :param is_short_lived: whether frames are stored for one update, as in rollout buffers, and not worth long searches
    """
    return Delta(coder="lz4", is_short_lived=is_short_lived)


def is_auto(codec: Codec) -> bool:
    """Return whether a codec, trained or not, is that of ``auto``."""
    return isinstance(codec, Delta) and codec.coder == "lz4"


def is_large(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether observations are large enough to be compressed."""
    return math.prod(shape) * dtype.itemsize >= MIN_COMPRESSED_NBYTES


def may_compress(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether data may compress: floats of sensors have no runs and no repetitions, images may."""
    return dtype.kind in "biu" or len(shape) > 2
