"""Handles of codecs: how slots in memory refer to the codecs that wrote their payloads."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs import TrainableCodec

__all__ = ["CodecHandle", "codec_of", "handle_of"]

CodecHandle = NDArray[Any]
"""A zero-dimensional array of objects whose element is a codec; it keeps the codec alive.

Slots that contained the codec itself would be tracked by Python's garbage collector, like every container with an
object of a class: a full collection would visit each of them, which takes 0.6 s with a million. NumPy's arrays are not
tracked, and neither are tuples of arrays and bytes, once the first collection has seen them.
"""

#: Handles by the ids of their codecs, which are not reused before the handle is deleted, since it refers to the codec.
_HANDLES: WeakValueDictionary[int, CodecHandle] = WeakValueDictionary()


def handle_of(codec: TrainableCodec) -> CodecHandle:
    """Return the handle of a codec; the same one as long as anything refers to it."""
    handle = _HANDLES.get(id(codec))
    if handle is None:
        handle = np.empty((), dtype=object)
        handle[()] = codec
        handle.flags.writeable = False
        handle = _HANDLES.setdefault(id(codec), handle)  # another thread may have been faster
    return handle


def codec_of(handle: Any) -> Any:
    """Return the codec of a handle; of other objects, ``None`` or an object that is not a codec."""
    return handle[()] if type(handle) is np.ndarray else None
