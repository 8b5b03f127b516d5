"""``SlotSource``: connects results of basic indexing with the slots of the array that they were read from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.write_through import Items, Source

if TYPE_CHECKING:
    from sb3_compressed.arrays.compressed_array import CompressedArray

__all__ = ["SlotSource"]


class SlotSource(Source):
    """Where items were read from a :class:`CompressedArray`.

    :param array: the array
    :param slot_index: the basic index of the slots
    :param block: the decoded items, ``(n, *item_shape)``
    """

    def __init__(self, array: CompressedArray, slot_index: tuple[Any, ...], block: NDArray[Any]) -> None:
        self._array = array
        self._slot_index = (*slot_index, None)  # so that it selects an array even of a single slot
        table = array.slots
        if not table.flags.writeable:  # a placeholder, without the strides of a table
            strides = [math.prod(table.shape[axis + 1 :]) for axis in range(table.ndim)]
            table = np.lib.stride_tricks.as_strided(np.empty(1, dtype=np.bool_), table.shape, strides)
        super().__init__(block, is_contiguous=table[self._slot_index].flags.c_contiguous)

    def prepare(self, items: Items) -> None:
        """Decode items again, since they may have changed."""
        selected = self._array._table[self._slot_index]
        items_now = np.empty((len(items), *self.block.shape[1:]), self.block.dtype)
        self._array._decode(selected[np.unravel_index(items, selected.shape)], items_now, self._slot_index, items)
        self.block[items] = items_now

    def write(self, items: Items) -> None:
        """Encode items into the slots that they were read from."""
        self._array._write_slots(self._slot_index, items, self.block[items])
        if self._array.elem_type != self._array.dtype:
            self.prepare(items)  # as they are stored, with less precision
