"""Threads for decoding and for training: both release the GIL for most of their work.

Decoding uses one small pool per process, which is created when it is first needed, and again in a forked child, where
the parent's threads do not exist. Any number of threads may use it concurrently. Its tasks never wait for each other,
so it cannot deadlock.

It works without any threads, too: the caller of :func:`in_chunks` runs all chunks that no other thread has started. So
it also works where no thread can be started, at a process limit or during interpreter shutdown.

Batches are decoded ahead in the same pool, see :class:`PoolTask`.

Codecs train in threads of their own, see :class:`BackgroundTask`, so that decoding never waits for a training.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from sb3_compressed.common.thread_pool import ThreadPool, start_thread

__all__ = ["BackgroundTask", "PoolTask", "default_num_threads", "in_chunks", "validate_num_threads"]

#: More threads do not help, as decoding is limited by the memory bandwidth.
MAX_DEFAULT_THREADS = 4
#: By how much the priority of background tasks is lower than that of other threads, so that these get the cores first.
NICENESS = 5
#: Seconds after which a thread that waits for a task looks again, where several wait for the same one.
WAIT_SECONDS = 0.05

_pool: ThreadPool | None = None


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
        del self._work  # the pool's queue may keep a reference to this object for long; see _submit

    def raise_first_error(self) -> None:
        """Raise the error of the first chunk that failed, if any."""
        if self._errors:
            raise self._errors[min(self._errors)]


Result = TypeVar("Result")


class PoolTask(Generic[Result]):
    """Calls ``work()`` once: in a thread of the pool, or in the thread that needs the result if that comes first.

    So it also runs where no thread can be started, and in a forked child. Forks wait for tasks that have started.

    :param work: must have the same result when it is called again after an interrupt
    :ivar result: what ``work()`` returned, ``None`` if it has not, or has raised
    """

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work: Callable[[], Result] | None = work
        self.result: Result | None = None
        self._is_claimed = False
        self._is_in_pool = False  # whether a thread of the pool has claimed it
        #: Whether it has run.
        self.is_complete = False
        # Not an event, whose lock is written in Python: an interrupt may leave it acquired for ever.
        self._completion: SimpleQueue[None] = SimpleQueue()
        self._error: Exception | None = None

    def start(self) -> None:
        """Let the pool run it."""
        _submit(self._run_in_pool, 1)

    def wait(self) -> None:
        """Run it, or wait until a thread of the pool has run it; raise the error that ``work()`` raised."""
        if self._claim():
            try:
                self._run()
            except BaseException:  # an interrupt
                self._is_claimed = False
                raise
        else:
            self._wait_for_pool()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Wait until a thread of the pool has run it, if one has started; otherwise do not run it.

        For work that the caller can do as well.
        """
        self.cancel()
        if self._is_in_pool:  # an earlier call may have claimed it as well, before Ctrl-C
            self._wait_for_pool()

    def _wait_for_pool(self) -> None:
        """Wait until a thread of the pool has run it."""
        while not self.is_complete:
            with contextlib.suppress(Empty):  # another thread that waits may have taken the item
                self._completion.get(timeout=WAIT_SECONDS)

    def cancel(self) -> None:
        """Do not run it, unless it has started; :meth:`wait` may not be called any more."""
        if self._claim():
            self._work = None

    def _claim(self) -> bool:
        with _claims:
            is_first = not self._is_claimed
            self._is_claimed = True
        return is_first

    def _run_in_pool(self) -> None:
        with _claims:
            if self._is_claimed:
                return
            self._is_claimed = self._is_in_pool = True
            _running_tasks.add(self)
        try:
            self._run()
        finally:
            _running_tasks.discard(self)

    def _run(self) -> None:
        if (work := self._work) is not None:  # otherwise, Ctrl-C interrupted another thread after it had run it
            try:
                self.result = work()
            except Exception as error:
                self._error = error
        self.is_complete = True
        self._completion.put(None)
        self._work = None  # the pool's queue may keep a reference to this object for long; see _submit


#: Acquired while a task is claimed, and during a fork, so that no task starts.
_claims = threading.RLock()
#: Tasks that threads of the pool run.
_running_tasks: set[PoolTask[Any]] = set()


class BackgroundTask(Generic[Result]):
    """Calls ``work()`` in a thread of low priority, after all earlier tasks.

    One task runs at a time. The exit of the interpreter and forks wait for tasks. Where no thread can be started, and
    in a forked child in which the thread does not exist, :meth:`result` calls ``work()`` instead.
    """

    def __init__(self, work: Callable[[], Result]) -> None:
        global _latest_task
        self._work = work
        self._outcome: list[tuple[Result | None, BaseException | None]] = []
        self._thread = _TaskThread(target=self._run, args=(_latest_task,), name="sb3-compressed-background")
        if threading.main_thread().is_alive():  # during interpreter shutdown, threads start but are not waited for
            with contextlib.suppress(RuntimeError):  # "can't start new thread"
                start_thread(self._thread)
                _latest_task = self._thread

    @property
    def is_done(self) -> bool:
        """Whether :meth:`result` returns without waiting for another thread."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait until :attr:`is_done`."""
        if self._thread.is_alive():
            self._thread.join()

    @property
    def error(self) -> BaseException | None:
        """What ``work()`` has raised, if it has."""
        return self._outcome[0][1] if self._outcome else None

    def result(self) -> Result:
        """Wait for the result and return it, or raise what ``work()`` raised."""
        self.wait()
        if not self._outcome:
            self._call()
        # There may be two: an interrupted is_alive() marks a running thread as ended (python/cpython#90882).
        result, error = self._outcome[0]
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def _run(self, previous: threading.Thread | None) -> None:
        if previous is not None:
            previous.join()
        if sys.platform == "linux":  # where threads have priorities of their own
            with contextlib.suppress(OSError):  # forbidden by a sandbox, or the priority is even lower
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        self._call()

    def _call(self) -> None:
        try:
            self._outcome.append((self._work(), None))
        except BaseException as error:
            self._outcome.append((None, error))


class _TaskThread(threading.Thread):
    """A thread that runs a background task."""


_latest_task: _TaskThread | None = None


def _before_fork() -> None:
    """Wait for tasks before a fork: a child would never get the locks that their threads have acquired."""
    if _latest_task is not None and not isinstance(threading.current_thread(), _TaskThread):
        _latest_task.join()
    _claims.acquire()
    for task in [*_running_tasks]:
        task._wait_for_pool()


def _after_fork_in_child() -> None:
    global _claims
    _claims = threading.RLock()
    _running_tasks.clear()  # they have ended, but their threads may not have removed them yet
    _discard_pool()


def _submit(task: Callable[[], None], n_threads: int) -> None:
    """Submit a task to up to ``n_threads`` threads of the pool, as far as threads can be started."""
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
        _discard_pool()


def _discard_pool() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=lambda: _claims.release(), after_in_child=_after_fork_in_child
    )
