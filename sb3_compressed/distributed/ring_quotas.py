"""``RingQuotas``: how many rows the ring of each writer has."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

__all__ = ["RingQuotas"]

#: Insertions of this part of the buffer are an interval, after which the rings may be resized.
INTERVALS = 8
#: Rows of the ring of a writer that adds nothing, in a large buffer.
LEAST = 64


class RingQuotas:
    """Divides the transitions of a buffer among the rings of its writers.

    Together, the rings should contain the same transitions as a single ring of the whole buffer: the newest ones,
    whoever has inserted them. So each ring has room for its writer's part of what the single ring would contain after
    the next interval, which is expected to be like the last one. The remaining rows go to the smallest rings. Each ring
    has a small minimum, so that a writer that returns can insert at once. Resizing takes time, so rings stay as they
    are until all together lack room for an interval, or the size of one is wrong by a factor of two.

    >>> quotas = RingQuotas(1_000, {"a": 1, "b": 1})
    >>> quotas.rows
    {'a': 500, 'b': 500}
    >>> [quotas.record({"a": 100, "b": n}) for n in (100, 600, 1_100)], quotas.rows
    ([False, True, True], {'a': 31, 'b': 969})

    :param capacity: number of transitions of all rings together
    :param writers: the number of environments of each
    :param sizes: how many transitions each ring contains, by default 0; they are assumed to be the newest ones, and all
        of them fit into the rings if there is room for them
    :param n_inserted: as for :meth:`record`
    """

    def __init__(
        self,
        capacity: int,
        writers: Mapping[str, int],
        sizes: Mapping[str, int] | None = None,
        n_inserted: Mapping[str, int] | None = None,
    ) -> None:
        self._capacity = capacity
        #: Insertions after which :meth:`record` is to be called.
        self.interval = max(capacity // INTERVALS, 1)
        self._n_envs = dict(writers)
        #: How many transitions each writer has inserted in the last intervals, the newest first.
        self._intervals = deque([{name: (sizes or {}).get(name, 0) for name in writers}])
        #: How many each writer had inserted at the end of the last interval.
        self._n_inserted = dict(n_inserted or {})
        #: Number of rows of each ring.
        self.rows = self._divided()

    @property
    def n_transitions(self) -> int:
        """Number of transitions that fit into all rings."""
        return sum(n_rows * self._n_envs[name] for name, n_rows in self.rows.items())

    def include(self, writers: Mapping[str, int], n_inserted: Mapping[str, int]) -> None:
        """Include writers, and change :attr:`rows` unless all are known.

        :param writers: the number of environments of each
        :param n_inserted: as for :meth:`record`
        """
        self._end_interval(n_inserted)
        if not writers.items() <= self._n_envs.items():
            self._n_envs |= writers
            self.rows = self._divided()

    def record(self, n_inserted: Mapping[str, int]) -> bool:
        """Record what writers have inserted; return whether rings are to be changed to :attr:`rows`.

        :param n_inserted: how many transitions each writer has inserted so far
        """
        self._end_interval(n_inserted)
        rows, before = self._divided(), self.rows
        n_lacking = sum(max(rows[name] - before[name], 0) * n_envs for name, n_envs in self._n_envs.items())
        if n_lacking <= self.interval and all(n <= 2 * before[name] <= 4 * n for name, n in rows.items()):
            return False
        self.rows = rows
        return True

    def _end_interval(self, n_inserted: Mapping[str, int]) -> None:
        """Begin an interval, and forget those whose transitions a single ring would have overwritten."""
        self._intervals.appendleft(
            {name: max(n - self._n_inserted.get(name, 0), 0) for name, n in n_inserted.items() if name in self._n_envs}
        )
        self._n_inserted = dict(n_inserted)
        n_stored = sum(sum(each.values()) for each in self._intervals)
        while n_stored - (oldest := sum(self._intervals[-1].values())) >= self._capacity:
            self._intervals.pop()
            n_stored -= oldest

    def _newest(self, n: int) -> dict[str, float]:
        """Return how many of the newest transitions each writer has inserted.

        :param n: how many transitions
        """
        counts = dict.fromkeys(self._n_envs, 0.0)
        for interval in self._intervals:
            n_here = sum(interval.values())
            part = min(n / max(n_here, 1), 1.0)
            for name, count in interval.items():
                counts[name] += part * count
            n = max(n - n_here, 0)
        return counts

    def _divided(self) -> dict[str, int]:
        """Return the number of rows of each ring: as many as it needs, and otherwise as equal as possible."""
        stored, expected = self._newest(self._capacity - self.interval), self._newest(self.interval)
        n_left = n_all_envs = sum(self._n_envs.values())
        least = max(min(LEAST, self._capacity // max(16 * n_all_envs, 1)), 2)
        needed = {
            name: max(int(-(-(stored[name] + expected[name]) // n_envs)), least)
            for name, n_envs in self._n_envs.items()
        }
        left = self._capacity
        for name in sorted(needed, key=needed.__getitem__, reverse=True):
            if needed[name] * n_left <= left:
                return {name: max(n_rows, left // n_left) for name, n_rows in needed.items()}
            left -= needed[name] * self._n_envs[name]
            n_left -= self._n_envs[name]
        room = max(self._capacity - least * n_all_envs, 0)
        above = room - left  # rows of all environments besides the least ones
        return {name: least + (n_rows - least) * room // max(above, 1) for name, n_rows in needed.items()}
