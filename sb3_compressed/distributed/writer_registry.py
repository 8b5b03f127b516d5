"""``WriterRegistry``: all writers of a distributed buffer, and how the buffer is divided among their rings."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from sb3_compressed.distributed.ring_quotas import RingQuotas
from sb3_compressed.distributed.ring_spec import RingSpec
from sb3_compressed.distributed.shard_group import ShardGroup
from sb3_compressed.distributed.writer import ReplayWriter

__all__ = ["LEARNER", "RING_BITS", "WriterRegistry"]

#: Bits of the number of a ring in its shard.
RING_BITS = 10
#: How the names of the writers begin that the buffer itself uses.
LEARNER = "learner-"


class WriterRegistry:
    """All writers of a distributed buffer, and how the buffer is divided among their rings.

    It begins with the writers whose rings the shards have, of a run that is continued.

    :param group: the shards
    :param capacity: number of transitions of all rings together
    :param segment_length: number of rows that writers insert at once
    """

    def __init__(self, group: ShardGroup, capacity: int, segment_length: int) -> None:
        self._group, self._capacity, self._segment_length = group, capacity, segment_length
        #: The number of environments and the shard of each writer.
        self.writers: dict[str, tuple[int, int]] = {}
        sizes: dict[str, int] = {}
        for shard, rings in enumerate(group.call("rings")):
            self.writers |= {name: (n_envs, shard) for name, (n_envs, _) in rings.items()}
            sizes |= {name: size for name, (_, size) in rings.items()}
        #: How the buffer is divided among the rings.
        self.quotas = self.new_quotas(self.writers, sizes)
        #: How many transitions had been inserted when these were last updated.
        self._n_inserted_before = 0
        group.resize(self.quotas.rows)

    def new_quotas(self, writers: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]) -> RingQuotas:
        """Return how the buffer is divided among writers.

        :param writers: the number of environments and the shard of each
        :param sizes: how many transitions each ring contains
        """
        n_envs_of = {name: n_envs for name, (n_envs, _) in writers.items()}
        return RingQuotas(self._capacity, n_envs_of, sizes, self._n_inserted)

    @property
    def _n_inserted(self) -> dict[str, int]:
        """Number of transitions that each writer has inserted; those of the learner insert the same rows in turn."""
        counts = self._group.n_inserted_by
        n_envs_of = {name: n_envs for name, (n_envs, _) in self.writers.items() if name.startswith(LEARNER)}
        n_rows = sum(counts.get(name, 0) for name in n_envs_of) / max(sum(n_envs_of.values()), 1)
        return {**counts, **{name: int(n_rows * n_envs) for name, n_envs in n_envs_of.items()}}

    def update_quotas(self) -> None:
        """Divide the buffer among all writers again if their speeds have changed."""
        n_new = self._group.n_inserted - self._n_inserted_before
        if n_new >= self.quotas.interval:
            self._n_inserted_before += n_new
            if self.quotas.record(self._n_inserted):
                self._group.request_resize(self.quotas.rows)

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
        self._group.refresh_all()  # so that rings keep what has arrived
        quotas = copy.deepcopy(self.quotas)
        quotas.include({name: n_envs for name, (n_envs, _) in all_writers.items()}, self._n_inserted)
        self._group.resize(quotas.rows)
        self.quotas, self.writers = quotas, all_writers  # in this order, since each writer needs a quota

    def reset(self) -> None:
        """Divide the buffer again, since all rings are empty."""
        self.quotas = self.new_quotas(self.writers, {})
        self._group.resize(self.quotas.rows)

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
