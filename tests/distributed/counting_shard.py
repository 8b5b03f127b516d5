"""``CountingShard``: a shard that counts the calls that it receives while a learner trains."""

from __future__ import annotations

from typing import Any

from sb3_compressed.distributed.shard import PriorityUpdates, SampleReply, Shard


class CountingShard(Shard):
    """A shard that counts requests for samples and updates of priorities."""

    _n_calls = 0

    def sample(self, *args: Any, **kwargs: Any) -> SampleReply:
        """Count one call; updates that it contains do not count."""
        n_after = self._n_calls + 1
        reply = super().sample(*args, **kwargs)
        self._n_calls = n_after
        return reply

    def update_priorities(self, updates: PriorityUpdates) -> None:
        """Count one call."""
        self._n_calls += 1
        super().update_priorities(updates)

    def n_calls(self) -> int:
        """Return the number of calls."""
        return self._n_calls
