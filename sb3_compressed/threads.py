"""The threads that decode: a small pool, one a process, for work that leaves Python's lock to others.

The pool is made when it is first needed, and anew in a forked child, where threads of the parent do not exist. Several
threads may use it at once. Nothing in it waits for anything else in it, so it cannot lock up.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise

__all__ = ["default_num_threads", "in_chunks", "validate_num_threads"]

#: More do not help: what is decoded has to go through one memory.
MOST_BY_DEFAULT = 4

_pool: ThreadPoolExecutor | None = None


def default_num_threads() -> int:
    """Return how many threads decode where nobody says it: the cores this process may use, four at most."""
    if hasattr(os, "sched_getaffinity"):  # Linux; where containers and job schedulers give us some of the cores
        return min(len(os.sched_getaffinity(0)), MOST_BY_DEFAULT)
    return min(os.cpu_count() or 1, MOST_BY_DEFAULT)


def validate_num_threads(num_threads: int | None) -> int:
    """Return a number of threads, the default for ``None``, or raise if there cannot be so many."""
    if num_threads is None:
        return default_num_threads()
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
        raise ValueError(f"num_threads must be None or a positive int, 1 for no threads, got {num_threads!r}")
    return num_threads


def in_chunks(work: Callable[[int, int], None], length: int, n_chunks: int) -> None:
    """Call ``work(start, end)`` for about equal parts of ``range(length)``, each in a thread, and wait for all.

    The calling thread does the first part itself. If parts fail, what the first of them raised is raised.
    """
    n_chunks = min(n_chunks, length)
    if n_chunks <= 1:
        work(0, length)
        return
    bounds = [length * part // n_chunks for part in range(n_chunks + 1)]
    pool = _get_pool()
    others = [pool.submit(work, start, end) for start, end in pairwise(bounds[1:])]
    try:
        work(bounds[0], bounds[1])
    finally:
        wait(others)
    for future in others:
        future.result()


def _get_pool() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="sb3-compressed")
    return _pool


def _forget_pool() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
