"""Plain arrays of observations as slots.

In this package, vectors are all observations that are in plain arrays in memory, of any shape. On disk, they are
uncompressed payloads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray

__all__ = ["is_stored_as_slots", "slots_of_rows"]

#: Smaller items take less space in an array than the address of a slot.
MIN_STORED_NBYTES = 32


def is_stored_as_slots(item_shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether vectors of this shape and dtype are stored as slots."""
    return math.prod(item_shape) * dtype.itemsize >= MIN_STORED_NBYTES


def slots_of_rows(arrays: Sequence[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Return slots of some rows of the arrays of one stream as objects, ``(n_rows, n_arrays, n_envs)``.

    Of plain arrays, these are as a ``CompressedArray`` with the codec ``none`` would have them: equal items become the
    same object, which is written once.

    :param arrays: compressed ones, or plain ones ``(rows, n_envs, *item_shape)``
    """
    first = arrays[0]
    if isinstance(first, CompressedArray):  # in one call, so that payloads that they share are the same objects
        references = np.stack([array.slots[rows] for array in arrays], axis=1)
        return first.store.load(references.reshape(-1)).reshape(references.shape)
    values = np.stack([array[rows] for array in arrays], axis=1)
    item = np.dtype((np.void, math.prod(values.shape[3:]) * values.itemsize))
    items: Any = values.reshape(-1).view(item).tolist()
    slots = np.empty(len(items), dtype=object)
    distinct: dict[bytes, bytes] = {}
    slots[:] = [distinct.setdefault(each, each) for each in items]
    return slots.reshape(values.shape[:3])
