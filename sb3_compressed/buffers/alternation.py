"""``Alternation``: whether something slows a loop down, found by leaving it out in some stretches of the loop.

What another thread costs that shares cores, caches and Python's lock with a loop cannot be computed: a training may
take longer although ``sample`` takes less time. So the loop itself is timed.
"""

from __future__ import annotations

import math
import statistics
import threading
from time import perf_counter

__all__ = ["Alternation"]


class Alternation:
    """Decides whether to do something in each round of a loop, by timing stretches with and without it.

    Each stretch without it is compared with both of its neighbors, and none with its longest rounds, so that neither
    slow changes of the loop nor single long rounds matter, such as those in which environments are reset.

    :ivar is_on: whether to do it in this round
    :ivar ratios: logarithms of the time with it to the time without it, of each stretch without it in the last
        comparison
    """

    #: Rounds before the first comparison, and between two of them, at first and at most.
    WARM_UP, SHORTEST_REST, LONGEST_REST = 256, 1024, 16_384
    #: Rounds of a stretch: whole periods of a loop with 2, 4 or 8 gradient steps; and the longest ones, left out.
    N_ROUNDS, N_LONGEST = 32, 8
    #: The least and the most ratios of a comparison.
    MIN_RATIOS, MAX_RATIOS = 6, 24
    #: It is done unless it could cost so much of the loop's time, by one standard error more than what was measured.
    TOLERANCE = 0.02
    #: How many standard errors show that it costs time.
    MIN_ERRORS = 3.0

    def __init__(self) -> None:
        self.is_on = True
        self.ratios: list[float] = []
        self._lock = threading.Lock()
        self._n_left = self.WARM_UP
        self._rest = self.SHORTEST_REST
        self._is_comparing = False
        self._last = 0.0
        self._rounds: list[float] = []  # seconds of each round of the stretch
        self._stretches: list[float] = []  # seconds of each stretch of the comparison

    def __reduce__(self) -> tuple[type[Alternation], tuple[()]]:
        return type(self), ()  # copies and pickles begin anew

    @property
    def is_left_out_to_compare(self) -> bool:
        """Whether it is left out in this round for the comparison only."""
        return self._is_comparing and not self.is_on

    def begin_round(self) -> None:
        """Begin a round; the time from here to the next call is that of the round."""
        # Without waiting, also for a thread that a forked process does not have: that round does not count.
        if self._lock.acquire(blocking=False):
            try:
                self._count_round()
            finally:
                self._lock.release()

    def _count_round(self) -> None:
        if self._is_comparing:
            now = perf_counter()
            self._rounds.append(now - self._last)
            self._last = now
        self._n_left -= 1
        if self._n_left <= 0:
            self._end_stretch()

    def _end_stretch(self) -> None:
        if self._is_comparing:
            # Not zero, which a clock that stands still would give.
            self._stretches.append(max(sum(sorted(self._rounds)[: -self.N_LONGEST]), 1e-9))
            if len(self._stretches) % 3 == 0:
                before, without, after = self._stretches[-3:]
                self.ratios.append(math.log(math.sqrt(before * after) / without))
                if (decision := self._decision()) is not None:
                    self.is_on = decision
                    self._is_comparing, self._n_left = False, self._rest
                    self._rest = min(2 * self._rest, self.LONGEST_REST)
                    return
        else:
            self._is_comparing = True
            self._stretches, self.ratios = [], []
        self.is_on = len(self._stretches) % 3 != 1  # with, without, with
        self._rounds, self._n_left, self._last = [], self.N_ROUNDS, perf_counter()

    def _decision(self) -> bool | None:
        """Return whether to do it, ``None`` if that is not clear yet."""
        n = len(self.ratios)
        if n < self.MIN_RATIOS:
            return None
        mean, error = statistics.fmean(self.ratios), statistics.stdev(self.ratios) / math.sqrt(n)
        if mean + error < self.TOLERANCE:
            return True
        return False if n >= self.MAX_RATIOS or mean > self.MIN_ERRORS * error else None
