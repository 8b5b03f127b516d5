"""``LiveProgress``: gathers what the live table shows of a training with collectors."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from sb3_compressed.distributed.collector import CollectResult
from sb3_compressed.distributed.collector_group import CollectorGroup, Member
from sb3_compressed.distributed.live_table import CollectorRow, LiveTable, ShardRow, Totals
from sb3_compressed.distributed.shard_group import ShardView

__all__ = ["LiveProgress"]

#: Episodes whose mean return is shown.
RECENT = 20


@dataclass
class Counts:
    """What a collector has returned.

    :param returns: of its last episodes
    """

    n_steps: int = 0
    n_episodes: int = 0
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    policy_version: int = 0
    epsilon: float | None = None


class LiveProgress:
    """A live table of a training, see :class:`.LiveTable`."""

    def __init__(self) -> None:
        self._table = LiveTable()
        self._counts: dict[int, Counts] = {}
        #: Numbers at the last update, from which rates are computed: by what they count.
        self._before: dict[Any, int] = {}
        self._updated_at = time.monotonic()

    def observe(self, member: Member, result: CollectResult) -> None:
        """Record a result of a collector."""
        counts = self._counts.setdefault(member.index, Counts())
        counts.n_steps += result.n_transitions
        episodes = [end.info["episode"] for end in result.episodes if "episode" in end.info]
        counts.n_episodes += len(episodes)
        counts.returns += [float(episode["r"]) for episode in episodes]
        counts.policy_version, counts.epsilon = result.policy_version, result.epsilon

    def update(self, group: CollectorGroup, shards: list[ShardView], num_timesteps: int, statistics: Any) -> None:
        """Show the present state, if an update is due.

        :param shards: the shards as the learner knows them
        :param num_timesteps: of the model
        :param statistics: see :class:`.CollectorStatistics`
        """
        if not self._table.is_due:
            return
        now = time.monotonic()
        seconds, self._updated_at = now - self._updated_at, now
        shard_rows = [self._shard_row(number, view, seconds) for number, view in enumerate(shards)]
        collector_rows = [self._collector_row(member, group.policy_version, seconds) for member in group.members]
        returns = [value for counts in self._counts.values() for value in counts.returns]
        totals = Totals(
            num_timesteps,
            samples_per_insert=statistics.samples_per_insert,
            mean_return=sum(returns) / len(returns) if returns else None,
            waiting=statistics.waiting,
            n_lost=statistics.n_lost + sum(view.n_lost for view in shards),
        )
        self._table.update(shard_rows, collector_rows, totals)

    def close(self) -> None:
        """Show the last values and end the display."""
        self._table.close()

    def _shard_row(self, number: int, view: ShardView, seconds: float) -> ShardRow:
        status = view.status
        if status is None:
            return ShardRow(f"shard {number}", 0, n_restarts=view.n_restarts)
        return ShardRow(
            f"shard {number}",
            status.n_transitions,
            status.memory,
            insert_rate=self._rate((view.epoch, number, "inserted"), status.n_inserted, seconds),
            sample_rate=self._rate((view.epoch, number, "sampled"), status.n_sampled, seconds),
            n_restarts=view.n_restarts,
        )

    def _collector_row(self, member: Member, policy_version: int, seconds: float) -> CollectorRow:
        counts = self._counts.get(member.index, Counts())
        return CollectorRow(
            f"collector {member.index}",
            step_rate=self._rate((member.index, "steps"), counts.n_steps, seconds),
            n_episodes=counts.n_episodes,
            mean_return=sum(counts.returns) / len(counts.returns) if counts.returns else None,
            policy_age=policy_version - counts.policy_version if counts.policy_version else None,
            epsilon=counts.epsilon,
            n_restarts=member.n_restarts,
        )

    def _rate(self, key: Any, count: int, seconds: float) -> float:
        """Return how often something happened per second since the last update."""
        rate = (count - self._before.get(key, count)) / max(seconds, 1e-9)
        self._before[key] = count
        return rate
