"""``LoopTiming``: times the training loop around a buffer, and counts what is added and sampled in it.

Nobody waits for ``sample``; people wait for trainings. So the time of coding is judged by the loop that calls ``add``
and ``sample``: how many transitions are added and sampled in a second of it.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from sb3_compressed.common.cores import IdleCores

__all__ = ["LoopTiming", "Rates"]

#: Batches, and seconds of the loop, after which its speed is known.
MIN_BATCHES, MIN_SECONDS = 32, 0.25
#: Seconds of the loop after which earlier ones count half.
WINDOW_SECONDS = 20.0
#: A gap between two calls that is so many times longer than the mean one is a pause: an evaluation, a debugger.
PAUSE = 50
#: Calls in a window before pauses can be recognized.
MIN_CALLS = 16


class Rates(NamedTuple):
    """Transitions in a second of a training.

    :param added: that are added
    :param waited: that are sampled and decoded while the training waits
    :param ahead: that are sampled, after another thread has decoded them
    :param has_idle_core: whether a core is idle, so that other threads take only a part of their time from the training
    """

    added: float
    waited: float
    ahead: float
    has_idle_core: bool


class LoopTiming:
    """Times the loop around a buffer, and counts the transitions that are added and sampled in it.

    A cycle of the loop consists of adding, then sampling: a step and an update, or a rollout and its epochs. Only whole
    cycles count, from the first batch on. Copies and pickles begin anew.
    """

    def __init__(self) -> None:
        self._idle_cores = IdleCores()
        self._has_idle_core = True
        self._last = math.nan  # time of the last call
        self._is_sampling = False
        self._seconds = self._n_calls = self._added = self._waited = self._ahead = self._n_batches = 0.0
        self._whole_cycles: _Counts | None = None  # None before the first batch

    def __reduce__(self) -> tuple[type[LoopTiming], tuple[()]]:
        return LoopTiming, ()

    def add(self, n: int) -> None:
        """Count transitions that are about to be added."""
        if self._is_sampling:
            self._end_cycle()
        self._count_time()
        self._added += n

    def sample(self, n: int, *, is_ready: bool = False) -> None:
        """Count transitions that are about to be sampled.

        :param is_ready: whether another thread has decoded them
        """
        self._is_sampling = True
        self._count_time()
        if is_ready:
            self._ahead += n
        else:
            self._waited += n
        self._n_batches += 1

    @property
    def rates(self) -> Rates | None:
        """What happens in a second of the loop, ``None`` if that is not known yet."""
        counts = self._whole_cycles
        if counts is None or counts.n_batches < MIN_BATCHES or counts.seconds < MIN_SECONDS:
            return None
        seconds = counts.seconds
        return Rates(counts.added / seconds, counts.waited / seconds, counts.ahead / seconds, self._has_idle_core)

    def _count_time(self) -> None:
        now = time.perf_counter()
        gap, self._last = now - self._last, now
        counts = self._whole_cycles
        if counts is not None and counts.n_calls >= MIN_CALLS:
            gap = min(gap, PAUSE * counts.seconds / counts.n_calls)
        if gap > 0:  # not for the first call
            self._seconds += gap
            self._n_calls += 1

    def _end_cycle(self) -> None:
        self._is_sampling = False
        counts = _Counts(self._seconds, self._n_calls, self._added, self._waited, self._ahead, self._n_batches)
        if self._whole_cycles is None:  # what was added before training began, and the first update, do not count
            counts = _Counts(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
            self._idle_cores.restart()
        elif counts.seconds > WINDOW_SECONDS:
            counts = _Counts(*(count / 2 for count in counts))
        self._whole_cycles = counts
        self._seconds, self._n_calls, self._added, self._waited, self._ahead, self._n_batches = counts
        if (has_idle_core := self._idle_cores.has_any()) is not None:
            self._has_idle_core = has_idle_core


class _Counts(NamedTuple):
    """What happened in whole cycles of the loop.

    :param seconds: their time
    :param n_calls: calls of ``add`` and ``sample``
    :param added: transitions that were added
    :param waited: transitions that were sampled and decoded while the training waited
    :param ahead: transitions that were sampled and had been decoded
    :param n_batches: batches that were sampled
    """

    seconds: float
    n_calls: float
    added: float
    waited: float
    ahead: float
    n_batches: float
