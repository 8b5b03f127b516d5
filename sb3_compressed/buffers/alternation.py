"""``Alternation``: whether something makes a loop faster, found by doing it in every other stretch of the loop.

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
    """Decides whether to do something in each round of a loop, by pairs of stretches with and without it.

    Neighboring stretches are compared, without their longest rounds, so that neither slow changes of the loop nor
    single long rounds matter, such as those in which environments are reset.

    :ivar is_on: whether to do it in this round
    :ivar ratios: logarithms of the time with it to the time without it, of each pair of the last comparison
    """

    #: Rounds before the first comparison, and between two of them, at first and at most.
    WARM_UP, SHORTEST_REST, LONGEST_REST = 256, 1024, 16_384
    #: Rounds of a stretch: whole periods of a loop with 2, 4 or 8 gradient steps; and the longest ones, left out.
    N_ROUNDS, N_LONGEST = 32, 8
    #: The least and the most pairs of a comparison, and how many standard errors decide it before.
    MIN_PAIRS, MAX_PAIRS, MIN_ERRORS = 6, 32, 4.0

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
            if len(self._stretches) % 2 == 0:
                ratio = math.log(self._stretches[-1] / self._stretches[-2])
                self.ratios.append(ratio if self.is_on else -ratio)
                if self._is_decided():
                    self.is_on = statistics.fmean(self.ratios) <= 0
                    self._is_comparing, self._n_left = False, self._rest
                    self._rest = min(2 * self._rest, self.LONGEST_REST)
                    return
        else:
            self._is_comparing = True
            self._stretches, self.ratios = [], []
        self.is_on = len(self._stretches) % 4 in (0, 3)  # with, without, without, with
        self._rounds, self._n_left, self._last = [], self.N_ROUNDS, perf_counter()

    def _is_decided(self) -> bool:
        n = len(self.ratios)
        if n < self.MIN_PAIRS:
            return False
        error = statistics.stdev(self.ratios) / math.sqrt(n)
        return n >= self.MAX_PAIRS or abs(statistics.fmean(self.ratios)) > self.MIN_ERRORS * error
