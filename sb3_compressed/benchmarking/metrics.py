"""How times and memory are measured in all benchmarks."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import psutil


def resident_nbytes() -> int:
    """Return the resident memory (RSS) of this process after returning free memory to the operating system."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def timed(function: Callable[..., Any], *args: Any) -> float:
    """Call a function and return the seconds it took."""
    begin = time.perf_counter()
    function(*args)
    return time.perf_counter() - begin


def median_us(times: Iterable[float]) -> float:
    """Return the median of seconds, in microseconds."""
    return statistics.median(times) * 1e6


def exhaust(batches: Iterable[Any]) -> None:
    """Iterate over all batches; each is dropped when the next one arrives, as in training."""
    for _ in batches:
        pass


def one_thread() -> None:
    """Limit torch to one thread; other libraries keep their defaults."""
    import torch as th

    th.set_num_threads(1)


def format_nbytes(nbytes: float) -> str:
    """Return a number of bytes with a unit.

    >>> format_nbytes(427.4), format_nbytes(56_571), format_nbytes(5.6e10)
    ('427 B', '56.6 kB', '56 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 999.5:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"
