"""``RateLimiter``: keeps the number of samples per insert near a target, as Reverb's rate limiters do."""

from __future__ import annotations

import operator
import sys
import time
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

__all__ = ["RateLimiter", "RateLimiterStatistics", "WaitTime"]

#: What may be inserted or sampled where nothing limits it.
UNLIMITED = sys.maxsize
#: Part of ``min_size_to_sample * samples_per_insert`` that the default error buffer is, as in Acme.
DEFAULT_TOLERANCE = Fraction(1, 10)


class WaitTime:
    """How often and how long one side has waited.

    Use it as a context manager around a wait, or call :meth:`start` and :meth:`stop`, which may be repeated, wherever
    it turns out whether that side waits.

    >>> wait = WaitTime()
    >>> with wait:
    ...     pass  # until there is something to sample
    >>> wait.n_waits, wait.is_waiting
    (1, False)

    :param clock: returns the time in seconds
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = 0.0
        self._start: float | None = None
        #: How many waits have started.
        self.n_waits = 0

    @property
    def is_waiting(self) -> bool:
        """Whether a wait is in progress."""
        return self._start is not None

    @property
    def seconds(self) -> float:
        """The duration of all waits, including the one in progress."""
        return self._seconds + (0.0 if self._start is None else self._clock() - self._start)

    def start(self) -> None:
        """Start a wait, unless one is in progress."""
        if self._start is None:
            self._start = self._clock()
            self.n_waits += 1

    def stop(self) -> None:
        """End the wait in progress, if any."""
        if self._start is not None:
            self._seconds += self._clock() - self._start
            self._start = None

    def __enter__(self) -> WaitTime:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class RateLimiterStatistics(NamedTuple):
    """What a rate limiter has counted.

    :param n_inserted: transitions inserted
    :param n_sampled: transitions sampled
    :param samples_per_insert: see :attr:`RateLimiter.achieved_samples_per_insert`
    :param n_insert_waits: how often collectors have waited for the learner
    :param insert_wait_seconds: how long they have
    :param n_sample_waits: how often the learner has waited for collectors
    :param sample_wait_seconds: how long it has
    :param waiting: which side the limiter allows nothing at the moment: ``"insert"``, ``"sample"``, or ``None``
    """

    n_inserted: int
    n_sampled: int
    samples_per_insert: float | None
    n_insert_waits: int
    insert_wait_seconds: float
    n_sample_waits: int
    sample_wait_seconds: float
    waiting: str | None


class RateLimiter:
    """Decides whether transitions may be inserted or sampled, so that their ratio stays near a target.

    The definition is that of Reverb's ``SampleToInsertRatio`` (Cassirer et al. 2021, https://arxiv.org/abs/2102.04736),
    where items are transitions. While the buffer has fewer than ``min_size_to_sample`` transitions, nothing may be
    sampled. From then on, the error ``n_inserted * samples_per_insert - n_sampled`` stays within
    ``min_size_to_sample * samples_per_insert`` plus or minus ``error_buffer``: what would move it beyond the upper end
    may not be inserted, and what would move it beyond the lower end may not be sampled. It only counts; the caller
    waits, and records what was inserted and sampled, even without permission.

    One side may always proceed. Reverb ensures that for single items; here several transitions are inserted or sampled
    at once. If neither an insert of ``insert_size`` nor a sample of ``sample_size`` transitions were allowed, the error
    would be less than ``sample_size`` above the lower end and less than ``insert_size * samples_per_insert`` below the
    upper one. That is impossible if ``error_buffer`` is at least as large as both, hence the smallest allowed value.
    All comparisons are exact, with fractions, since rounding errors could block both sides too. And where the buffer
    has lost transitions (:meth:`record_size`), it may be refilled to ``min_size_to_sample`` whatever the error is; the
    last insert may exceed that by less than ``insert_size``.

    The counted numbers are not limited to what was allowed, so inserts that are already under way count as
    ``can_insert(n_under_way + n)``; one side may proceed when they have arrived or are lost.

    >>> limiter = RateLimiter(samples_per_insert=8, min_size_to_sample=100, error_buffer=32, sample_size=32)
    >>> limiter.can_sample(32), limiter.n_insertable
    (False, 104)
    >>> limiter.record_insert(104)
    >>> limiter.can_insert(1), limiter.n_sampleable
    (False, 64)
    >>> limiter.record_sample(64)
    >>> limiter.can_sample(1), limiter.n_insertable
    (False, 8)

    :param samples_per_insert: how many times a transition shall be sampled on average, such as
        ``gradient_steps * batch_size / n_transitions`` of an algorithm's own schedule; without a limit if ``None`` or
        infinite, so that only ``min_size_to_sample`` counts (Reverb's ``MinSize``)
    :param min_size_to_sample: number of transitions in the buffer before anything may be sampled; not more than its
        capacity, or nothing ever is
    :param error_buffer: by how many samples the error may deviate from the target; ``None`` for a tenth of
        ``min_size_to_sample * samples_per_insert``, as in Acme, or for the smallest allowed value if that is larger
    :param insert_size: the largest number of transitions that are inserted at once
    :param sample_size: the largest number of transitions that are sampled at once
    :param clock: returns the time in seconds, for statistics of waits
    :raises ValueError: if an argument is out of range; the message states the smallest allowed ``error_buffer``
    :raises TypeError: if an argument is not a number
    """

    def __init__(
        self,
        samples_per_insert: float | None,
        min_size_to_sample: int,
        error_buffer: float | None = None,
        *,
        insert_size: int = 1,
        sample_size: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.min_size_to_sample = _whole_number("min_size_to_sample", min_size_to_sample, 1)
        self.insert_size = _whole_number("insert_size", insert_size, 1)
        self.sample_size = _whole_number("sample_size", sample_size, 1)
        self._ratio = _ratio(samples_per_insert)
        self._error_buffer = self._valid_error_buffer(error_buffer)
        #: Transitions inserted and sampled so far.
        self.n_inserted = self.n_sampled = 0
        self._size = 0
        self._error = Fraction(0)
        #: Waits of collectors for the learner, and of the learner for collectors.
        self.insert_wait, self.sample_wait = WaitTime(clock), WaitTime(clock)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(samples_per_insert={self.samples_per_insert!r}, "
            f"min_size_to_sample={self.min_size_to_sample!r}, error_buffer={self.error_buffer!r}, "
            f"insert_size={self.insert_size!r}, sample_size={self.sample_size!r})"
        )

    @property
    def samples_per_insert(self) -> float | None:
        """The target, ``None`` without a limit."""
        return None if self._ratio is None else float(self._ratio)

    @property
    def error_buffer(self) -> float | None:
        """By how many samples the error may deviate from the target, ``None`` without a limit."""
        return None if self._ratio is None else float(self._error_buffer)

    @property
    def achieved_samples_per_insert(self) -> float | None:
        """Samples per insert so far, not counting the first ``min_size_to_sample`` inserts, which nothing limits.

        ``None`` until there are more. It approaches the target; at first the error buffer makes a large difference.
        """
        n_counted = self.n_inserted - self.min_size_to_sample
        return self.n_sampled / n_counted if n_counted > 0 else None

    @property
    def n_insertable(self) -> int:
        """How many transitions may be inserted now; a large number (``sys.maxsize``) without a limit."""
        if self._ratio is None:
            return UNLIMITED
        until_sampling = self.min_size_to_sample + self.insert_size - 1 - self._size
        until_limit = (self._target + self._error_buffer - self._error) // self._ratio
        # Below the minimum, Reverb allows the first number only as long as it does not exceed the minimum.
        is_refilled = self._size < self.min_size_to_sample
        return max(0, min(UNLIMITED, max(until_limit, until_sampling if is_refilled else 0)))

    @property
    def n_sampleable(self) -> int:
        """How many transitions may be sampled now; a large number (``sys.maxsize``) without a limit."""
        if self._size < self.min_size_to_sample:
            return 0
        if self._ratio is None:
            return UNLIMITED
        return max(0, min(UNLIMITED, (self._error - self._target + self._error_buffer) // 1))

    def can_insert(self, n: int) -> bool:
        """Return whether ``n`` more transitions may be inserted.

        :raises ValueError: if ``n`` is not positive
        """
        return _whole_number("n", n, 1) <= self.n_insertable

    def can_sample(self, n: int) -> bool:
        """Return whether ``n`` more transitions may be sampled.

        :raises ValueError: if ``n`` is not positive
        """
        return _whole_number("n", n, 1) <= self.n_sampleable

    def record_insert(self, n: int) -> None:
        """Count transitions that were inserted, whether or not that was allowed.

        :raises ValueError: if ``n`` is negative
        """
        n = _whole_number("n", n, 0)
        self.n_inserted += n
        self._size += n
        self._error += n * (self._ratio or 0)

    def record_sample(self, n: int) -> None:
        """Count transitions that were sampled, whether or not that was allowed.

        :raises ValueError: if ``n`` is negative
        """
        n = _whole_number("n", n, 0)
        self.n_sampled += n
        self._error -= n

    def record_size(self, size: int) -> None:
        """Set the number of transitions in the buffer, such as after the loss of a shard.

        Without it, that is the number of inserts. What a full buffer overwrites needs not be recorded, as long as a
        full buffer has at least ``min_size_to_sample`` transitions, and nothing is lost.

        :raises ValueError: if it is negative
        """
        self._size = _whole_number("size", size, 0)

    def statistics(self) -> RateLimiterStatistics:
        """Return what was counted, and who waits."""
        return RateLimiterStatistics(
            n_inserted=self.n_inserted,
            n_sampled=self.n_sampled,
            samples_per_insert=self.achieved_samples_per_insert,
            n_insert_waits=self.insert_wait.n_waits,
            insert_wait_seconds=self.insert_wait.seconds,
            n_sample_waits=self.sample_wait.n_waits,
            sample_wait_seconds=self.sample_wait.seconds,
            waiting=self._blocked_side(),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs: counts and the settings they were made with, as plain values."""
        return {
            "samples_per_insert": None if self._ratio is None else list(self._ratio.as_integer_ratio()),
            "min_size_to_sample": self.min_size_to_sample,
            "n_inserted": self.n_inserted,
            "n_sampled": self.n_sampled,
            "size": self._size,
            "error": list(self._error.as_integer_ratio()),  # exact, unlike a float
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint. Statistics of waits are not part of it.

        If ``samples_per_insert`` or ``min_size_to_sample`` differ from those of the checkpoint, the error starts at the
        target, as if the new ones had been met from the beginning. Otherwise one side would have to make up for
        everything before, and might block the other for hours.

        :param state: what :meth:`state_dict` returned
        :raises ValueError: if it is not that; the limiter remains as it was
        """
        try:
            n_inserted = _whole_number("n_inserted", state["n_inserted"], 0)
            n_sampled = _whole_number("n_sampled", state["n_sampled"], 0)
            size = _whole_number("size", state["size"], 0)
            min_size = _whole_number("min_size_to_sample", state["min_size_to_sample"], 1)
            ratio = None if state["samples_per_insert"] is None else Fraction(*state["samples_per_insert"])
            error = Fraction(*state["error"])
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as reason:
            raise ValueError(f"state must be what state_dict() returned, got {state!r}: {reason!r}") from reason
        if (ratio, min_size) != (self._ratio, self.min_size_to_sample):
            error = min(n_inserted, self.min_size_to_sample) * (self._ratio or Fraction(0))
        self.n_inserted, self.n_sampled, self._size, self._error = n_inserted, n_sampled, size, error

    @property
    def _target(self) -> Fraction:
        """The error in the middle of the allowed range."""
        return self.min_size_to_sample * (self._ratio or Fraction(0))

    def _blocked_side(self) -> str | None:
        if self.n_insertable < self.insert_size:
            return "insert"
        return "sample" if self.n_sampleable < self.sample_size else None

    def _valid_error_buffer(self, error_buffer: float | None) -> Fraction:
        if error_buffer is not None:
            if isinstance(error_buffer, bool) or not isinstance(error_buffer, int | float | np.integer | np.floating):
                raise TypeError(f"error_buffer must be a number or None, got {error_buffer!r}")
            if not error_buffer > 0 or error_buffer == float("inf"):
                raise ValueError(f"error_buffer must be positive and finite, got {error_buffer!r}")
        if self._ratio is None:
            return Fraction(0)
        smallest = max(Fraction(self.sample_size), self.insert_size * self._ratio)
        if error_buffer is None:
            return max(smallest, DEFAULT_TOLERANCE * self._target)
        # A caller's product of floats may be rounded down, and so may be the value in the message.
        if error_buffer < float(smallest) * (1 - 1e-12):
            raise ValueError(
                f"error_buffer must be at least {float(smallest)!r}, got {error_buffer!r}: smaller values could block "
                f"both inserts of insert_size={self.insert_size} transitions with samples_per_insert="
                f"{self.samples_per_insert!r} and samples of sample_size={self.sample_size}"
            )
        return max(smallest, _fraction(error_buffer))


def _ratio(samples_per_insert: float | None) -> Fraction | None:
    if samples_per_insert is None:
        return None
    if isinstance(samples_per_insert, bool) or not isinstance(
        samples_per_insert, int | float | np.integer | np.floating
    ):
        raise TypeError(f"samples_per_insert must be a number or None, got {samples_per_insert!r}")
    if not samples_per_insert > 0:
        raise ValueError(f"samples_per_insert must be positive, or None for no limit, got {samples_per_insert!r}")
    return None if samples_per_insert == float("inf") else _fraction(samples_per_insert)


def _fraction(number: float) -> Fraction:
    """Return a number as it is written: 0.1 is 1/10, so that ten times it is 1."""
    return Fraction(str(number))


def _whole_number(name: str, value: SupportsIndex, smallest: int) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {value!r}") from None
    if number < smallest:
        raise ValueError(f"{name} must be at least {smallest}, got {number}")
    return number
