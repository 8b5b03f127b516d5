"""``SlotStore``: where an array's slots are if they are not Python objects in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.payload_batch import PayloadBatch

__all__ = ["SlotStore"]


class SlotStore(Protocol):
    """Keeps slots and gives each an address, a positive integer; 0 stands for a slot that was never written."""

    def write(self, slots: Sequence[Any]) -> NDArray[np.int64]:
        """Keep slots and return their addresses, ``(n,)``; nothing is kept if it raises."""
        ...

    def gather(self, addresses: NDArray[np.int64], n_frames: int) -> PayloadBatch | None:
        """Return what is in slots of as many frames that learned codecs wrote, ``None`` if there are others too.

        :raises CorruptPayload: if one is damaged; its ``index`` says which
        """
        ...

    def load(self, addresses: NDArray[np.int64]) -> NDArray[Any]:
        """Return slots as Python objects, in an object array ``(n,)``.

        :raises CorruptPayload: if one is damaged; its ``index`` says which
        """
        ...
