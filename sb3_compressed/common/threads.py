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
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise

__all__ = ["default_num_threads", "in_chunks", "validate_num_threads"]

#: More threads do not help, as decoding is limited by the memory bandwidth.
MAX_DEFAULT_THREADS = 4
#: The pool of this process, ``None`` until it is needed.
_pool: ThreadPoolExecutor | None = None

Work = Callable[[int, int], None]


def _submit(work: Work, chunks: list[tuple[int, int]]) -> list[Future[None]]:
    """Submit chunks of work to the pool; return those of the first chunks, as many as it accepted."""
    global _pool
    futures: list[Future[None]] = []
    if _pool is None:
        _pool = ThreadPoolExecutor(os.cpu_count() or 1, "sb3-compressed")
    pool = _pool
    try:
        for chunk in chunks:
            futures.append(pool.submit(work, *chunk))  # noqa: PERF401  # those before an error are needed
    except RuntimeError:  # "can't start new thread", and then the task that was not submitted stays in the queue
        pool.shutdown(cancel_futures=True)
        _pool = None
    return futures


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
    first, *others = pairwise(bounds)
    futures = dict(zip(others, _submit(work, others), strict=False))
    errors: dict[int, BaseException] = {}
    try:
        for chunk in [first, *reversed(others)]:
            if chunk not in futures or futures[chunk].cancel():  # no other thread has started it
                try:
                    work(*chunk)
                except Exception as error:
                    errors[chunk[0]] = error
    finally:  # also after Ctrl-C, since the other threads write to the same memory
        started = {chunk: future for chunk, future in futures.items() if not future.cancel()}
        wait(started.values())
    errors |= {chunk[0]: raised for chunk, future in started.items() if (raised := future.exception()) is not None}
    if errors:
        raise errors[min(errors)]


def _after_fork_in_child() -> None:
    global _pool
    _pool = None  # its threads do not exist here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
