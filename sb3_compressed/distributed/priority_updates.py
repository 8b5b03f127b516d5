"""``PendingUpdates``: updates of priorities on their way to shards, and the numbers that name transitions of a batch.

The number of a transition consists of its shard, the ring, and the number in the ring.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.distributed.ring import NUMBER_BITS
from sb3_compressed.distributed.sample_pipeline import Part
from sb3_compressed.distributed.shard import PriorityUpdates
from sb3_compressed.distributed.writer_registry import RING_BITS

__all__ = ["PendingUpdates", "numbers_of"]


def numbers_of(parts: list[Part]) -> NDArray[np.int64]:
    """Return the numbers of the transitions of a batch."""
    numbers = []
    for part in parts:
        rings = part.array("rings").astype(np.int64) | part.shard << RING_BITS
        numbers.append(rings << NUMBER_BITS | part.array("numbers"))
    return np.concatenate(numbers)


class PendingUpdates:
    """Updates of priorities that were not sent to their shards yet.

    :param n_shards: number of shards
    """

    def __init__(self, n_shards: int) -> None:
        self._updates: list[list[tuple[NDArray[Any], ...]]] = [[] for _ in range(n_shards)]

    def add(self, numbers: NDArray[np.int64], errors: NDArray[Any]) -> None:
        """Add updates.

        :param numbers: from :func:`numbers_of`, ``(n,)``
        :param errors: TD errors, ``(n,)``
        :raises ValueError: if these are no such numbers
        """
        rest, numbers = np.divmod(numbers, 1 << NUMBER_BITS)
        shards, rings = np.divmod(rest, 1 << RING_BITS)
        if len(shards) and not 0 <= shards.min() <= shards.max() < len(self._updates):
            raise ValueError("the indices are not those of a batch of this buffer")
        for shard in np.unique(shards).tolist():
            chosen = shards == shard
            self._updates[shard].append((rings[chosen].astype(np.int16), numbers[chosen], errors[chosen]))

    def take(self, shard: int) -> PriorityUpdates | None:
        """Return the updates for a shard, ``None`` if there are none; they are not returned again."""
        updates, self._updates[shard] = self._updates[shard], []
        return PriorityUpdates(*map(np.concatenate, zip(*updates, strict=True))) if updates else None

    def clear(self) -> None:
        """Forget all updates."""
        self._updates = [[] for _ in self._updates]
