"""``RateLimiter``: keeps the number of samples per insert near a target, as Reverb's rate limiters do."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["RateLimiter", "WaitTime"]


class WaitTime:
    """How long one side has waited.

    Call :meth:`start` and :meth:`stop`, which may be repeated, wherever it turns out whether that side waits.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._start: float | None = None

    @property
    def seconds(self) -> float:
        """The duration of all waits, including the one in progress."""
        return self._seconds + (0.0 if self._start is None else time.monotonic() - self._start)

    def start(self) -> None:
        """Start a wait, unless one is in progress."""
        if self._start is None:
            self._start = time.monotonic()

    def stop(self) -> None:
        """End the wait in progress, if any."""
        self._seconds, self._start = self.seconds, None


@dataclass(frozen=True)
class RateLimiter:
    """How many transitions collectors may insert, by how many the learner has sampled.

    ``n_free`` transitions may be inserted before the first sample. From then on, each sample allows ``1 / ratio`` more,
    so that a transition is sampled ``ratio`` times on average, the ratio of Reverb's ``SampleToInsertRatio``
    (https://github.com/google-deepmind/reverb). Samples have no limit: the learner waits before each training step
    until enough transitions have arrived.

    >>> limiter = RateLimiter(Fraction(8), n_free=104)
    >>> limiter.allows(104, n_sampled=0), limiter.allows(105, n_sampled=0)
    (True, False)
    >>> limiter.allows(112, n_sampled=64), limiter.allows(113, n_sampled=64)
    (True, False)

    :param ratio: samples per insert, exactly, since rounding errors would add up; ``None`` for no limit
    :param n_free: how many transitions may be inserted before the first sample
    """

    ratio: Fraction | None
    n_free: Fraction | int

    def allows(self, n_inserted: int, n_sampled: int) -> bool:
        """Return whether there may be so many inserts after so many samples."""
        return self.ratio is None or n_inserted <= self.n_free + n_sampled / self.ratio
