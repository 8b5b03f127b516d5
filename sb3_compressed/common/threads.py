"""Threads for decoding large batches, which releases the GIL for most of its work.

There is one small pool per process, which is created when it is first needed, and again in a forked child, where
the parent's threads do not exist. Any number of threads may use it concurrently. Its tasks never wait for each other,
so it cannot deadlock.

It works without any threads, too: the caller of :func:`in_chunks` runs all chunks that no other thread has started. So
it also works where no thread can be started, at a process limit or during interpreter shutdown.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from queue import SimpleQueue

from sb3_compressed.common.thread_pool import ThreadPool

__all__ = ["default_num_threads", "in_chunks", "validate_num_threads"]

#: More threads do not help, as decoding is limited by the memory bandwidth.
MAX_DEFAULT_THREADS = 4
#: The pool of this process, ``None`` until it is needed.
_pool: ThreadPool | None = None


def _submit(task: Callable[[], None], n_threads: int) -> None:
    """Submit a task to up to ``n_threads`` threads; without effect where no thread can be started."""
    global _pool
    pool = _pool
    if pool is None:
        pool = _pool = ThreadPool(os.cpu_count() or 1)
    try:
        for _ in range(n_threads):
            pool.submit(task)
    except RuntimeError:  # "can't start new thread"
        # A task that could not be submitted may stay in the pool's queue, and run later or never. Both are harmless,
        # but the queue would grow with each call.
        _pool = None


def default_num_threads() -> int:
    """Return the default number of decoding threads: the cores available to this process, at most four."""
    if hasattr(os, "sched_getaffinity"):  # Linux; containers and job schedulers may allow only some of the cores
        return min(len(os.sched_getaffinity(0)), MAX_DEFAULT_THREADS)
    return min(os.cpu_count() or 1, MAX_DEFAULT_THREADS)  # pragma: no cover  # not on Linux


def validate_num_threads(num_threads: int | None) -> int:
    """Return the number of threads, the default one for ``None``.

    :raises ValueError: if it is not a positive int
    """
    if num_threads is None:
        return default_num_threads()
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
        raise ValueError(f"num_threads must be None or a positive int, 1 for no threads, got {num_threads!r}")
    return num_threads


Work = Callable[[int, int], None]


def in_chunks(work: Work, length: int, n_chunks: int) -> None:
    """Call ``work(start, end)`` for chunks of about equal size of ``range(length)`` in threads, and wait for all.

    The calling thread runs the first chunk, and then all that other threads have not started. If chunks raise, the
    error of the first of them is raised.
    """
    n_chunks = min(n_chunks, length)
    if n_chunks <= 1:
        work(0, length)
        return
    bounds = [length * chunk // n_chunks for chunk in range(n_chunks + 1)]
    others = _Chunks(work, [*pairwise(bounds[1:])])
    try:
        _submit(others.run_in_pool, n_chunks - 1)
        work(bounds[0], bounds[1])
        others.run_in_caller()
    finally:
        others.close()
    others.raise_first_error()


class _Chunks:
    """Chunks of work, each run by the thread that claims it first: the calling thread or one of the pool.

    An interrupt may end the calling thread's part anywhere, but never that of a pool thread. So the caller only waits
    for chunks that pool threads have claimed.

    :param bounds: start and end of each chunk
    """

    def __init__(self, work: Work, bounds: list[tuple[int, int]]) -> None:
        self._work = work
        self._bounds = bounds
        self._caller = object()
        self._owners: dict[int, object] = {}  # by the start of the chunk; setdefault is atomic
        self._done: SimpleQueue[None] = SimpleQueue()  # one item per chunk that a pool thread has finished
        self._errors: dict[int, BaseException] = {}

    def run_in_pool(self) -> None:
        """Run unclaimed chunks in a thread of the pool."""
        thread = object()
        for start, end in self._bounds:
            if self._owners.setdefault(start, thread) is thread:
                try:
                    self._work(start, end)
                except BaseException as error:
                    self._errors[start] = error
                self._done.put(None)

    def run_in_caller(self) -> None:
        """Run unclaimed chunks in the calling thread."""
        for start, end in reversed(self._bounds):
            if self._owners.setdefault(start, self._caller) is self._caller:
                try:
                    self._work(start, end)
                except Exception as error:
                    self._errors[start] = error

    def close(self) -> None:
        """Prevent pool threads from starting further chunks, and wait for those that they have started."""
        owners = [self._owners.setdefault(start, self._caller) for start, _ in self._bounds]
        for owner in owners:
            if owner is not self._caller:
                self._done.get()
        del self._work  # the pool's queue may keep a reference to this object for long; see _submit()

    def raise_first_error(self) -> None:
        """Raise the error of the first chunk that failed, if any."""
        if self._errors:
            raise self._errors[min(self._errors)]


def _after_fork_in_child() -> None:
    global _pool
    _pool = None  # its threads do not exist here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
