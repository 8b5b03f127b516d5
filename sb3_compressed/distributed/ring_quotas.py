"""``RingQuotas``: how many rows the ring of each writer has."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

__all__ = ["RingQuotas"]

#: Insertions of this part of the buffer are an interval, after which the rings may be resized.
INTERVALS = 8
#: Larger than rounding errors of numbers of rows, and too small to make all rings together larger than the buffer.
ROUNDING = 1e-6


class RingQuotas:
    """Divides the transitions of a buffer among the rings of its writers.

    Together, the rings should contain the same transitions as a single ring of the whole buffer: the newest ones,
    whoever has inserted them. So each ring has room for its writer's part of what the single ring would contain after
    the next interval, in which an eighth of the buffer is inserted. Each writer's part of that interval is estimated
    from the last half of the buffer; new writers are expected to be as fast as the others. The remaining rows go to
    the smallest rings. Each ring has a small minimum, so that a writer that returns can insert at once.

    Resizing takes time, so rings stay as they are until together they lack room for a sixteenth of the buffer, or one
    of them has less than half of the rows that it needs.

    >>> quotas = RingQuotas(1_000, 4, {"a": 1, "b": 1})
    >>> quotas.rows
    {'a': 500, 'b': 500}
    >>> [quotas.record({"a": 100, "b": n}) for n in (100, 600, 1_100)], quotas.rows, quotas.idle
    ([False, True, True], {'a': 16, 'b': 984}, {'a'})

    :param capacity: number of transitions of all rings together
    :param segment_length: number of rows that writers insert at once
    :param writers: the number of environments of each
    :param sizes: how many transitions each ring contains, by default 0; they are assumed to be the newest ones, and all
        of them fit into the rings if there is room for them
    :param n_inserted: as for :meth:`record`
    """

    def __init__(
        self,
        capacity: int,
        segment_length: int,
        writers: Mapping[str, int],
        sizes: Mapping[str, int] | None = None,
        n_inserted: Mapping[str, int] | None = None,
    ) -> None:
        self._capacity, self._segment_length = capacity, segment_length
        #: Insertions after which :meth:`record` is to be called.
        self.interval = max(capacity // INTERVALS, 1)
        #: Writers all of whose transitions a single ring would have overwritten.
        self.idle: set[str] = set()
        self._n_envs = dict(writers)
        #: How many transitions each writer has inserted in the last intervals, the newest first.
        self._intervals: deque[dict[str, int]] = deque()
        #: How many each writer had inserted at the end of the last interval.
        self._n_inserted = dict(n_inserted or {})
        #: For each writer, how many transitions all writers have inserted since it was included.
        self._ages = dict.fromkeys(writers, 0)
        self._add_interval({name: (sizes or {}).get(name, 0) for name in writers})
        #: Number of rows of each ring.
        self.rows = self._with_room(sizes or {}, self._divided(self._demands()))

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
        if writers.items() <= self._n_envs.items():
            return
        self._n_envs |= writers
        self._ages = {name: self._ages.get(name, 0) for name in self._n_envs}
        self.rows = self._divided(self._demands())

    def record(self, n_inserted: Mapping[str, int]) -> bool:
        """Record what writers have inserted; return whether rings are to be changed to :attr:`rows` and :attr:`idle`.

        :param n_inserted: how many transitions each writer has inserted so far
        """
        self._end_interval(n_inserted)
        demands, idle, before = self._demands(), self._idle(), self.idle
        self.idle = idle
        if idle <= before and not self._is_due(demands):
            return False
        self.rows = self._divided(demands)
        return True

    @property
    def _least(self) -> int:
        """The least number of rows of a ring."""
        equal = self._capacity // max(sum(self._n_envs.values()), 1)
        return max(min(4 * self._segment_length, equal // 16), 2)

    def _end_interval(self, n_inserted: Mapping[str, int]) -> None:
        before, self._n_inserted = self._n_inserted, dict(n_inserted)
        self._add_interval({name: max(n_inserted.get(name, 0) - before.get(name, 0), 0) for name in self._n_envs})

    def _add_interval(self, counts: dict[str, int]) -> None:
        if not (n_new := sum(counts.values())):
            return
        self._intervals.appendleft(counts)
        self._ages = {name: age + n_new for name, age in self._ages.items()}
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
            part = min(n / n_here, 1.0)
            for name, count in interval.items():
                counts[name] += part * count
            n = max(n - n_here, 0)
        return counts

    def _idle(self) -> set[str]:
        """Return the writers without any of the newest transitions; none before the whole buffer was filled once."""
        newest = self._newest(self._capacity)
        if sum(newest.values()) < self._capacity * (1 - 1e-9):
            return set()
        return {name for name, count in newest.items() if not count}

    def _demands(self) -> dict[str, float]:
        """Return how many transitions of each writer a single ring would contain after the next interval, at most."""
        n_all_envs, n_recent = sum(self._n_envs.values()), max(self._capacity // 2, 1)
        demands, speeds = self._newest(self._capacity - self.interval), self._newest(n_recent)
        for name, n_envs in self._n_envs.items():  # the speed of new ones is not known yet
            speeds[name] += max(n_recent - self._ages[name], 0) * n_envs / n_all_envs
        all_speeds = sum(speeds.values())
        return {name: demand + self.interval * speeds[name] / all_speeds for name, demand in demands.items()}

    def _divided(self, demands: Mapping[str, float]) -> dict[str, int]:
        """Return the number of rows of each ring: as many as it demands, and otherwise as equal as possible."""
        needed = {name: demand / self._n_envs[name] for name, demand in demands.items()}
        n_all_envs = n_envs_left = sum(self._n_envs.values())
        left: float = self._capacity
        for name in sorted(needed, key=needed.__getitem__, reverse=True):
            if needed[name] * n_envs_left <= left:
                break
            left -= demands[name]
            n_envs_left -= self._n_envs[name]
        equal, least = left / max(n_envs_left, 1), self._least
        part = max(self._capacity - least * n_all_envs, 0) / self._capacity
        return {name: least + int(part * max(n_rows, equal) + ROUNDING) for name, n_rows in needed.items()}

    def _with_room(self, sizes: Mapping[str, int], rows: Mapping[str, int]) -> dict[str, int]:
        """Return numbers of rows close to some others, with room for what the rings contain, if all of it fits."""
        needed = {name: max(-(-sizes.get(name, 0) // n), self._least) for name, n in self._n_envs.items()}
        further = {name: max(rows[name] - n_rows, 0) for name, n_rows in needed.items()}
        n_left = self._capacity - sum(n_rows * self._n_envs[name] for name, n_rows in needed.items())
        n_further = sum(n_rows * self._n_envs[name] for name, n_rows in further.items())
        if n_left < 0:
            return dict(rows)
        part = min(n_left / max(n_further, 1), 1.0)
        return {name: n_rows + int(part * further[name]) for name, n_rows in needed.items()}

    def _is_due(self, demands: Mapping[str, float]) -> bool:
        """Return whether rings must be resized: if one has less than half of its demand, or all together lack much."""
        sizes = {name: n_rows * self._n_envs[name] for name, n_rows in self.rows.items()}
        n_lacking = sum(max(demand - sizes[name], 0) for name, demand in demands.items())
        return n_lacking > self._capacity / 16 or any(demand > 2 * sizes[name] for name, demand in demands.items())
