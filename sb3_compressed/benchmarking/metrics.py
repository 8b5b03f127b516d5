"""How measurements are summarized and printed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

__all__ = ["format_nbytes", "median_us"]


def median_us(times: Iterable[float]) -> float:
    """Return the median of seconds, in microseconds."""
    return statistics.median(times) * 1e6


def format_nbytes(nbytes: float) -> str:
    """Return a number of bytes with a unit.

    >>> format_nbytes(427.4), format_nbytes(56_571), format_nbytes(5.6e13)
    ('427 B', '56.6 kB', '56 TB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 999.5:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"
