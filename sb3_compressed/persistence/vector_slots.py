"""``VectorSlots``: plain arrays of observations as slots.

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
from sb3_compressed.arrays.cast import cast_values
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.memory_slot_store import MemorySlotStore
from sb3_compressed.codecs import get_codec

__all__ = ["VectorSlots", "is_stored_as_slots", "slots_of", "slots_of_rows"]

#: Smaller items take less space in an array than the address of a slot.
MIN_STORED_NBYTES = 32


def is_stored_as_slots(item_shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether vectors of this shape and dtype are stored as slots."""
    return math.prod(item_shape) * dtype.itemsize >= MIN_STORED_NBYTES


#: Distinct items that are kept, so that equal ones become the same object.
MAX_DISTINCT_ITEMS = 1 << 16


class VectorSlots:
    """The slots of a plain array, as a ``CompressedArray`` with the codec ``none`` would have them.

    :param array: observations ``(rows, n_envs, *item_shape)``
    :param layout: how the buffer in a folder split items into frames
    :param earlier: earlier items, each mapped to itself; equal items become the same object
    :param stored: the dtype of items in a folder, ``None`` for that of the array
    """

    def __init__(
        self,
        array: NDArray[Any],
        layout: FrameLayout | None,
        earlier: dict[bytes, bytes],
        stored: np.dtype[Any] | None = None,
    ) -> None:
        self.array, self.layout, self.earlier = array, layout, earlier
        self._stored = array.dtype if stored is None else stored
        self._item = np.dtype((np.void, math.prod(array.shape[2:]) * array.dtype.itemsize))

    def slots_at(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return slots ``(len(rows), n_envs)``."""
        if len(self.earlier) > MAX_DISTINCT_ITEMS:
            self.earlier.clear()
        values = np.ascontiguousarray(self.array[rows])
        items: Any = values.reshape(-1).view(self._item).tolist()
        slots = np.empty(len(items), dtype=object)
        slots[:] = [self.earlier.setdefault(item, item) for item in items]
        return slots.reshape(values.shape[:2])

    def put_slots(self, rows: Any, slots: NDArray[Any]) -> None:
        """Write slots from :meth:`slots_at`, or from a buffer with ``storage=<folder>``, which may share frames.

        :param slots: ``(n_rows, n_envs)``; unwritten ones become zeros
        :raises CorruptPayload: if a slot is damaged
        :raises ValueError: if the dtype of the array does not contain a stored value
        """
        shape, layout = self.array.shape[2:], self.layout
        items = np.empty((slots.size, *shape), dtype=self._stored)
        store = MemorySlotStore(get_codec("none"))
        store.read(store.write(slots.reshape(-1).tolist()), layout, items)
        self.array[rows] = cast_values(items, self.array.dtype).reshape(*slots.shape, *shape)


def slots_of(
    array: Any,
    layout: FrameLayout | None = None,
    earlier: dict[bytes, bytes] | None = None,
    stored: np.dtype[Any] | None = None,
) -> Any:
    """Return what reads and writes the slots of an array: a ``CompressedArray`` itself, or a :class:`VectorSlots`."""
    if isinstance(array, CompressedArray):
        return array
    return VectorSlots(array, layout, {} if earlier is None else earlier, stored)


def slots_of_rows(arrays: Sequence[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Return slots of some rows of the arrays of one stream as objects, ``(n_rows, n_arrays, n_envs)``.

    :param arrays: from :func:`slots_of`
    """
    first = arrays[0]
    if isinstance(first, CompressedArray):  # in one call, so that payloads that they share are the same objects
        references = np.stack([array.slots[rows] for array in arrays], axis=1)
        return first.store.load(references.reshape(-1)).reshape(references.shape)
    return np.stack([array.slots_at(rows) for array in arrays], axis=1)
