"""How times and memory are measured, the same way for everything."""

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
    """Return what the operating system counts as this process's memory, less what can be given back at once."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def timed(function: Callable[..., Any], *args: Any) -> float:
    """Call and return the seconds it took."""
    begin = time.perf_counter()
    function(*args)
    return time.perf_counter() - begin


def median_us(times: Iterable[float]) -> float:
    """Return the median of seconds, in microseconds."""
    return statistics.median(times) * 1e6


def exhaust(batches: Iterable[Any]) -> None:
    """Go over all batches; each is dropped when the next is there, as in training."""
    for _ in batches:
        pass


def one_thread() -> None:
    """Let torch use one thread, as in every benchmark here; what else uses threads is a contender's own matter."""
    import torch as th

    th.set_num_threads(1)
