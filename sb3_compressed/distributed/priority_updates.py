"""``PendingUpdates``: updates of priorities on their way to shards, and the numbers that name transitions of a batch.

The number of a transition consists of its shard, the epoch of the shard, the ring, and the number in the ring.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.distributed.sample_pipeline import Part
from sb3_compressed.distributed.shard import PriorityUpdates
from sb3_compressed.distributed.shard_group import ShardGroup
from sb3_compressed.distributed.writer_registry import RING_BITS

__all__ = ["PendingUpdates", "numbers_of"]

EPOCH_BITS, NUMBER_BITS = 8, 35


def numbers_of(parts: list[Part]) -> NDArray[np.int64]:
    """Return the numbers of the transitions of a batch."""
    numbers = []
    for part in parts:
        prefix = (part.shard << EPOCH_BITS | part.epoch % (1 << EPOCH_BITS)) << RING_BITS
        numbers.append((part.array("rings").astype(np.int64) | prefix) << NUMBER_BITS | part.array("numbers"))
    return np.concatenate(numbers)


class PendingUpdates:
    """Updates of priorities that were not sent to their shards yet.

    :param group: the shards
    """

    def __init__(self, group: ShardGroup) -> None:
        self._group = group
        #: By the shard and its process.
        self._updates: dict[tuple[int, str], list[tuple[NDArray[Any], ...]]] = {}
        #: How many were skipped since their transitions were lost with a shard.
        self.n_lost = 0

    def add(self, numbers: NDArray[np.int64], errors: NDArray[Any]) -> None:
        """Add updates.

        :param numbers: from :func:`numbers_of`, ``(n,)``
        :param errors: TD errors, ``(n,)``
        :raises ValueError: if these are no such numbers
        """
        rest, numbers = np.divmod(numbers, 1 << NUMBER_BITS)
        rest, rings = np.divmod(rest, 1 << RING_BITS)
        shards, epochs = np.divmod(rest, 1 << EPOCH_BITS)
        if len(shards) and not 0 <= shards.min() <= shards.max() < len(self._group.shards):
            raise ValueError("the indices are not those of a batch of this buffer")
        for shard in np.unique(shards).tolist():
            view = self._group.shards[shard]
            chosen = (shards == shard) & (epochs == view.epoch % (1 << EPOCH_BITS))
            self.n_lost += int((shards == shard).sum() - chosen.sum())
            if view.status is not None:
                updates = self._updates.setdefault((shard, view.status.incarnation), [])
                updates.append((rings[chosen].astype(np.int16), numbers[chosen], errors[chosen]))

    def take(self, shard: int) -> list[PriorityUpdates]:
        """Return the updates for a shard; they are not returned again."""
        found = []
        for key in [key for key in self._updates if key[0] == shard]:
            rings, numbers, errors = (np.concatenate(each) for each in zip(*self._updates.pop(key), strict=True))
            found.append(PriorityUpdates(rings, numbers, errors, key[1]))
        return found

    def clear(self) -> None:
        """Forget all updates."""
        self._updates.clear()
