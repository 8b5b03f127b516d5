"""``LocatedItems``: the payloads of items that were read, to be decoded here or in another thread or process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.errors import CorruptPayload

__all__ = ["LocatedItems"]


class LocatedItems:
    """A read whose payloads are located, but not decoded yet. Calling it decodes them.

    Payloads never change, and this keeps them alive, so that it may be called while slots are overwritten.

    :ivar batch: the payloads of ``n`` items
    :ivar layout: how items are divided into frames; ``None`` if they are not
    :ivar out: the array that receives the items, ``(n, *item_shape)``
    :ivar dtype: the dtype that items are stored in
    :param num_threads: the number of threads that may decode
    :param with_slot: returns an error with the index of the slot in its array
    """

    def __init__(
        self,
        batch: PayloadBatch,
        layout: FrameLayout | None,
        out: NDArray[Any],
        dtype: np.dtype[Any],
        num_threads: int,
        with_slot: Callable[[CorruptPayload], CorruptPayload],
    ) -> None:
        self.batch, self.layout, self.out, self.dtype = batch, layout, out, dtype
        self._num_threads = num_threads
        self._with_slot = with_slot

    def __call__(self) -> None:
        """Decode the items.

        :raises CorruptPayload: if a payload is damaged; the error names its slot
        """
        out = self.out
        stored = out if out.dtype == self.dtype else np.empty(out.shape, self.dtype)
        try:
            decode(self.batch, self.layout, stored, self._num_threads)
        except CorruptPayload as error:
            raise self._with_slot(error) from error
        if stored is not out:
            out[...] = stored
