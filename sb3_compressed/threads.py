"""The threads that decode: a small pool, one a process, for work that leaves Python's lock to others.

The pool is made when it is first needed, and anew in a forked child, where threads of the parent do not exist. Several
threads may use it at once. Nothing in it waits for anything else in it, so it cannot lock up.

No thread is needed: whoever calls :func:`in_chunks` does all parts itself that no other thread has begun with. So it
works where no thread can be started, at a limit of processes or when the interpreter is shutting down.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from queue import SimpleQueue

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


Work = Callable[[int, int], None]


def in_chunks(work: Work, length: int, n_chunks: int) -> None:
    """Call ``work(start, end)`` for about equal parts of ``range(length)``, in threads, and wait for all.

    The calling thread does the first part itself, and all that other threads have not begun with by then. If parts
    fail, what the first of them raised is raised.
    """
    n_chunks = min(n_chunks, length)
    if n_chunks <= 1:
        work(0, length)
        return
    bounds = [length * part // n_chunks for part in range(n_chunks + 1)]
    others = _Parts(work, [*pairwise(bounds[1:])])
    try:
        _start_threads(others.help, n_chunks - 1)
        work(bounds[0], bounds[1])
        others.do_the_rest()
    finally:
        others.finish()
    others.raise_first_error()


class _Parts:
    """Parts of some work, each done by whoever claims it first: the calling thread or one that helps it.

    An interrupt may end the calling thread's part in this anywhere, as threads of a pool are never interrupted. So it
    is only ever waited for what these have claimed.

    :param bounds: where each part starts and ends
    """

    def __init__(self, work: Work, bounds: list[tuple[int, int]]) -> None:
        self._work = work
        self._bounds = bounds
        self._caller = object()
        self._owners: dict[int, object] = {}  # of parts, by their starts; setdefault is atomic
        self._done: SimpleQueue[None] = SimpleQueue()  # has an item for each part that a helping thread has done
        self._errors: dict[int, BaseException] = {}

    def help(self) -> None:
        """Do parts in a thread of the pool, as long as there are any that nobody has claimed."""
        helper = object()
        for start, end in self._bounds:
            if self._owners.setdefault(start, helper) is helper:
                try:
                    self._work(start, end)
                except BaseException as error:
                    self._errors[start] = error
                self._done.put(None)

    def do_the_rest(self) -> None:
        """Do the parts that nobody has claimed in the calling thread."""
        for start, end in reversed(self._bounds):
            if self._owners.setdefault(start, self._caller) is self._caller:
                try:
                    self._work(start, end)
                except Exception as error:
                    self._errors[start] = error

    def finish(self) -> None:
        """Let no thread begin with another part, and wait for those that have."""
        claims = [self._owners.setdefault(start, self._caller) for start, _ in self._bounds]
        for owner in claims:
            if owner is not self._caller:
                self._done.get()
        del self._work  # the pool's queue may refer to this for long; see _start_threads

    def raise_first_error(self) -> None:
        """Raise what the first of the parts raised, if one did."""
        if self._errors:
            raise self._errors[min(self._errors)]


def _start_threads(do: Callable[[], None], n_threads: int) -> None:
    """Let threads of the pool do something, as many as there can be."""
    pool = _get_pool()
    try:
        for _ in range(n_threads):
            pool.submit(do)
    except RuntimeError:  # "can't start new thread", "cannot schedule new futures after interpreter shutdown"
        # What could not be submitted may still be in the pool's queue, and is done later or never. Both do no harm,
        # but the queue would grow with each call.
        _forget_pool()


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
