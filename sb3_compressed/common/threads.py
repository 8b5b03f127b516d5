"""Threads for decoding and for training: both release the GIL for most of their work.

Decoding uses one small pool per process, which is created when it is first needed, and again in a forked child, where
the parent's threads do not exist. Any number of threads may use it concurrently. Its tasks never wait for each other,
so it cannot deadlock.

It works without any threads, too: the caller of :func:`in_chunks` runs all chunks that no other thread has started. So
it also works where no thread can be started, at a process limit or during interpreter shutdown.

Codecs train, and frames are encoded again, in another pool of one thread, see :class:`BackgroundTask`, so that decoding
never waits for them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Generic, TypeVar

from sb3_compressed.common.thread_pool import ThreadPool

__all__ = ["BackgroundTask", "PoolTask", "default_num_threads", "in_chunks", "validate_num_threads"]

#: More threads do not help, as decoding is limited by the memory bandwidth.
MAX_DEFAULT_THREADS = 4
#: By how much the priority of background tasks is lower than that of other threads, so that these get the cores first.
NICENESS = 5
#: Seconds after which a thread that waits for a task looks again, where several wait for the same one.
WAIT_SECONDS = 0.05


class _SharedPool:
    """A thread pool that the whole process shares, created when it is first needed.

    :param max_threads: most threads
    :param niceness: by how much their priority is lower
    """

    def __init__(self, max_threads: int, niceness: int = 0) -> None:
        self._max_threads, self._niceness = max_threads, niceness
        self.pool: ThreadPool | None = None  # of this process

    def submit(self, task: Callable[[], None], n_threads: int = 1) -> ThreadPool | None:
        """Submit a task to up to ``n_threads`` threads; return the pool, ``None`` if no thread can be started."""
        pool = self.pool
        if pool is None:
            pool = self.pool = ThreadPool(self._max_threads, self._niceness)
        try:
            for _ in range(n_threads):
                pool.submit(task)
        except RuntimeError:  # "can't start new thread"
            # A task that could not be submitted may stay in the pool's queue, and run later or never. Both are
            # harmless, but the queue would grow with each call.
            self.discard()
            return None
        return pool

    def discard(self) -> None:
        """Use another pool from now on."""
        self.pool = None


_decoding = _SharedPool(os.cpu_count() or 1)
_background = _SharedPool(1, NICENESS)


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
        _decoding.submit(others.run_in_pool, n_chunks - 1)
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
        del self._work  # the pool's queue may keep a reference to this object for long; see submit()

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
    :ivar error: what it has raised
    """

    _pool: ClassVar[_SharedPool] = _decoding

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work: Callable[[], Result] | None = work
        self.result: Result | None = None
        self.error: BaseException | None = None
        self._is_claimed = False
        self._is_in_pool = False  # whether a thread of the pool has claimed it
        #: Whether it has run.
        self.is_complete = False
        # Not an event, whose lock is written in Python: an interrupt may leave it acquired for ever.
        self._completion: SimpleQueue[None] = SimpleQueue()
        self._submitted_to: ThreadPool | None = None

    def start(self) -> None:
        """Let the pool run it."""
        self._submitted_to = self._pool.submit(self._run_in_pool)

    @property
    def is_done(self) -> bool:
        """Whether :meth:`wait` returns without waiting for another thread: it has run, or the caller has to run it."""
        return self.is_complete or self._submitted_to is None or self._submitted_to is not self._pool.pool

    def wait(self) -> Result:
        """Run it, or wait until a thread of the pool has run it; return what ``work()`` returned.

        :raises BaseException: what ``work()`` has raised
        """
        self.complete()
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]

    def complete(self) -> None:
        """Run it, or wait until a thread of the pool has run it."""
        if self._claim():
            try:
                self._run(Exception)
            except BaseException:  # an interrupt
                self._is_claimed = False
                raise
        else:
            self._wait_for_pool()

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
            self._wait_briefly()

    def _wait_briefly(self) -> None:
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
            _running_tasks[self] = threading.get_ident()
        try:
            self._run(BaseException)
        finally:
            _running_tasks.pop(self, None)

    def _run(self, errors: type[BaseException]) -> None:
        """Call ``work()``.

        :param errors: the errors to keep for :meth:`wait`; others, such as an interrupt, are raised here
        """
        if (work := self._work) is not None:  # otherwise, Ctrl-C interrupted another thread after it had run it
            try:
                self.result = work()
            except errors as error:
                self.error = error
        self.is_complete = True
        self._completion.put(None)
        self._work = None  # the pool's queue may keep a reference to this object for long; see submit()


class BackgroundTask(PoolTask[Result]):
    """A task that is queued at once for one thread of low priority, which runs tasks in their order.

    Only where no thread will run it, :meth:`wait` does. The exit of the interpreter waits for it.
    """

    _pool: ClassVar[_SharedPool] = _background

    def __init__(self, work: Callable[[], Result]) -> None:
        super().__init__(work)
        if threading.main_thread().is_alive():  # during interpreter shutdown, threads start but are not waited for
            self.start()

    def complete(self) -> None:
        """Wait until the thread has run it; run it if none will.

        It may be interrupted anywhere, and be called by several threads, and again in a forked child.
        """
        while not self.is_done:
            self._wait_briefly()
        if self.is_complete:
            return
        self._claim()  # so that no thread of a pool that was discarded begins now
        if self._is_in_pool:
            self._wait_for_pool()
        else:
            self._run(Exception)


#: Acquired while a task is claimed, and during a fork, so that no task starts.
_claims = threading.RLock()
#: Tasks that threads of pools run, and the identifiers of these threads.
_running_tasks: dict[PoolTask[Any], int] = {}


def _before_fork() -> None:
    """Wait for tasks before a fork: a child would never get the locks that their threads have acquired."""
    _claims.acquire()
    for task, thread in [*_running_tasks.items()]:
        if thread != threading.get_ident():  # a task may fork
            task._wait_for_pool()


def _after_fork_in_child() -> None:
    global _claims
    _claims = threading.RLock()
    _running_tasks.clear()  # they have ended, but their threads may not have removed them yet
    _decoding.discard()
    _background.discard()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=lambda: _claims.release(), after_in_child=_after_fork_in_child
    )
