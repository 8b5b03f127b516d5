"""``ThreadPool``: a few threads that call functions, which Ctrl-C cannot leave locked."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

__all__ = ["ThreadPool", "start_thread"]

Task = Callable[[], None]


class ThreadPool:
    """Daemon threads that call functions, in their order; the exit of the interpreter waits for them.

    ``concurrent.futures.ThreadPoolExecutor`` has locks that are written in Python: an interrupt within ``submit`` may
    leave one acquired, and then the threads and the exit of the interpreter wait forever. Here are only queues that are
    written in C, whose methods are atomic.

    :param max_threads: how many threads are started at most, each when there is no idle one
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        #: One item for each idle thread.
        self._idle: SimpleQueue[None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        atexit.register(self._end)

    def submit(self, task: Task) -> None:
        """Call a function in a thread as soon as one is free.

        :param task: raises no exceptions
        :raises RuntimeError: if no thread can be started; the function may be called later or never
        """
        self._tasks.put(task)
        try:
            self._idle.get_nowait()
        except Empty:
            if len(self._threads) < self._max_threads:
                thread = threading.Thread(target=self._run, name="sb3-compressed", daemon=True)
                self._threads.append(thread)
                start_thread(thread)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task  # it may refer to large arrays
            self._idle.put(None)

    def _end(self) -> None:
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            with contextlib.suppress(RuntimeError):  # it was never started, or does not exist in this forked process
                thread.join()


def start_thread(thread: threading.Thread) -> None:
    """Start a thread, which Ctrl-C cannot leave locked.

    ``Thread.start`` waits for the new thread with a lock that is written in Python: an interrupt may leave it acquired,
    and then the new thread waits forever. Interrupts only reach the main thread, so another one calls it.

    :raises RuntimeError: if it cannot be started
    """
    errors: SimpleQueue[BaseException | None] = SimpleQueue()

    def start() -> None:  # pragma: no cover  # in a thread that coverage does not see
        try:
            thread.start()
        except BaseException as error:
            errors.put(error)
        else:
            errors.put(None)

    _thread.start_new_thread(start, ())
    if (error := errors.get()) is not None:
        raise error
