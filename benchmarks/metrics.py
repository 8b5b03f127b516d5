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


class CallTimer:
    """Times of calls, and the minor page faults during them."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._faults = 0

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function."""
        faults = minor_page_faults()
        self._seconds.append(timed(function, *args))
        self._faults += minor_page_faults() - faults

    def add_to(self, result: dict[str, Any], key: str, divisor: int = 1) -> None:
        """Add the median time to a result in microseconds, the quartiles, and the mean number of page faults.

        :param result: gets the median as ``key``, and the others as ``key`` of its entries ``quartiles`` and ``faults``
        :param divisor: transitions per call
        """
        microseconds = [seconds * 1e6 / divisor for seconds in self._seconds]
        first, median, third = statistics.quantiles(microseconds, n=4, method="inclusive")
        result[key] = median
        result.setdefault("quartiles", {})[key] = [first, third]
        result.setdefault("faults", {})[key] = self._faults / len(microseconds) / divisor


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
