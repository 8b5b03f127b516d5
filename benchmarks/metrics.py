"""How times and memory are measured in all benchmarks."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psutil


def resident_nbytes() -> int:
    """Return the resident memory (RSS) of this process after returning free memory to the operating system."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


#: Bytes from which the C library returns freed memory to the system, and their parameters for ``mallopt``.
KEPT_NBYTES = 1_000_000_000
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Keep freed memory in this process, if its C library is glibc.

    glibc returns memory to the system when the top of its heap is free, which depends on chance: one of two equal
    trainings may have thousands of page faults a second.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            mallopt(parameter, KEPT_NBYTES)


def timed(function: Callable[..., Any], *args: Any) -> float:
    """Call a function and return the seconds it took."""
    begin = time.perf_counter()
    function(*args)
    return time.perf_counter() - begin


def median_us(times: Iterable[float]) -> float:
    """Return the median of seconds, in microseconds."""
    return statistics.median(times) * 1e6


def minor_page_faults() -> int:
    """Return how often this process first touched a page of memory; 0 where the system does not count it.

    Memory that is allocated and returned to the system at each call costs such a fault, of about 0.2 us, per 4 KiB.
    """
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class TimedCalls:
    """Replaces a method of one buffer, calls it, and records the time of each call."""

    def __init__(self, buffer: Any, name: str) -> None:
        self.seconds: list[float] = []
        self._method = getattr(buffer, name)
        vars(buffer)[name] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        begin = time.perf_counter()
        result = self._method(*args, **kwargs)
        self.seconds.append(time.perf_counter() - begin)
        return result


class TimedBatches(TimedCalls):
    """The same for a generator of batches: the time until each batch."""

    def __call__(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Yield the batches."""
        batches = self._method(*args, **kwargs)
        while True:
            begin = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                return
            self.seconds.append(time.perf_counter() - begin)
            yield batch


def exhaust(batches: Iterable[Any]) -> None:
    """Iterate over all batches; each is dropped when the next one arrives, as in training."""
    for _ in batches:
        pass


def one_thread() -> None:
    """Limit torch to one thread; other libraries keep their defaults."""
    import torch as th

    th.set_num_threads(1)
