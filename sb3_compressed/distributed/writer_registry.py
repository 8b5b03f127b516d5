"""``WriterRegistry``: all writers of a distributed buffer, and how the buffer is divided among their rings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sb3_compressed.distributed.ring_spec import RingSpec
from sb3_compressed.distributed.shard_group import ShardGroup
from sb3_compressed.distributed.writer import ReplayWriter

__all__ = ["LEARNER", "RING_BITS", "WriterRegistry", "divided"]

#: Bits of the number of a ring in its shard.
RING_BITS = 10
#: How the names of the writers begin that the buffer itself uses.
LEARNER = "learner-"
#: Rows of the ring of a writer that adds nothing, in a large buffer.
IDLE_ROWS = 64


class WriterRegistry:
    """All writers of a distributed buffer, and how the buffer is divided among their rings.

    Environments have rings of the same number of rows, except those of idle writers, which have added nothing while
    ``capacity`` transitions were added: their rings shrink, so that they do not contain old transitions forever, and
    grow again after their writers have returned.

    It begins with the writers whose rings the shards have, of a run that is continued.

    :param group: the shards
    :param capacity: number of transitions of all rings together
    :param segment_length: number of rows that writers insert at once
    """

    def __init__(self, group: ShardGroup, capacity: int, segment_length: int) -> None:
        self._group, self._capacity, self._segment_length = group, capacity, segment_length
        rings = {
            name: (shard, *each)
            for shard, of_shard in enumerate(group.call("rings"))
            for name, each in of_shard.items()
        }
        self.replace(
            {name: (n_envs, shard) for name, (shard, n_envs, _) in rings.items()},
            {name: size for name, (_, _, size) in rings.items()},
        )
        group.resize(self.rows)

    def replace(self, writers: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]) -> None:
        """Begin with other writers.

        :param writers: the number of environments and the shard of each
        :param sizes: how many transitions each ring contains; those of small rings are idle until they add something
        """
        #: The number of environments and the shard of each writer.
        self.writers = dict(writers)
        least = divided(self._capacity, writers, {*writers})
        small = {name for name, size in sizes.items() if size <= least[name] * writers[name][0]}
        self._idle = small if len(small) < len(writers) else set[str]()
        #: How many transitions each writer had inserted when idle writers were last determined, and all of them.
        self._n_inserted_before, self._n_checked = self._group.n_inserted_by, self._group.n_inserted

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows of each ring."""
        return divided(self._capacity, self.writers, self._idle)

    def update(self) -> None:
        """Resize rings if other writers are idle than before."""
        if self._group.n_inserted - self._n_checked < self._capacity:
            return
        before, idle = self._n_inserted_before, self._idle
        self._n_inserted_before, self._n_checked = self._group.n_inserted_by, self._group.n_inserted
        self._idle = {name for name in self.writers if self._n_inserted_before[name] == before[name]}
        if self._idle != idle:
            self._group.request_resize(self.rows)

    def include(self, writers: Mapping[str, int]) -> None:
        """Include writers, each with its number of environments.

        :raises ShardUnavailable: if a shard fails or does not answer; the writers are as they were
        :raises ValueError: if a writer has another number of environments, or a shard would have too many rings
        """
        all_writers, n_shards = dict(self.writers), len(self._group.shards)
        for name, n_envs in writers.items():
            known, shard = all_writers.get(name, (n_envs, len(all_writers) % n_shards))
            if known != n_envs:
                raise ValueError(f"the ring of {name!r} has {known} environments, got n_envs={n_envs}")
            n_rings = sum(each == shard for _, each in all_writers.values())
            if name not in all_writers and n_rings == 1 << RING_BITS:
                raise ValueError(f"a shard can have the rings of {n_rings} writers at most; pass a larger n_shards")
            all_writers[name] = n_envs, shard
        idle = self._idle - writers.keys()
        self._group.resize(divided(self._capacity, all_writers, idle))
        self._idle, self.writers = idle, all_writers  # last, so that a failure leaves both as they were

    def new_writer(self, name: str, spec: RingSpec, **options: Any) -> ReplayWriter:
        """Return a writer that was included.

        :param spec: how its ring is constructed
        :param options: ``timeout`` and ``num_threads`` of :class:`.ReplayWriter`
        """
        n_envs, shard = self.writers[name]
        return ReplayWriter(
            self._group.shards[shard].actor, spec, name, n_envs, self._segment_length, shard_name=f"shard {shard}",
            **options,
        )  # fmt: skip


def divided(capacity: int, writers: Mapping[str, tuple[int, int]], idle: set[str]) -> dict[str, int]:
    """Return the number of rows of each ring.

    >>> divided(1_000, {"a": (2, 0), "b": (1, 0), "gone": (1, 0)}, {"gone"})
    {'a': 328, 'b': 328, 'gone': 15}
    """
    n_all, n_idle = (sum(writers[name][0] for name in names) for names in (writers, idle))
    idle_rows = max(min(IDLE_ROWS, capacity // max(16 * n_all, 1)), 2)
    n_rows = max((capacity - idle_rows * n_idle) // max(n_all - n_idle, 1), 2)
    return {name: idle_rows if name in idle else n_rows for name in writers}
