"""``new_lock``: a lock for each replay buffer, so that one thread can sample or save while another one adds.

Methods that only read acquire it, too, since a transition consists of elements of several arrays. It is reentrant: a
user's class may sample within ``add``. Forks wait for it, so that a child process has no partly written transitions,
and no lock whose owner is a thread of the parent.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any
from weakref import WeakValueDictionary

__all__ = ["new_lock"]


class BufferLock(type(threading.RLock())):  # type: ignore[misc]  # threading.RLock is a function
    """A reentrant lock of a buffer. A copy is another lock, since users pickle and copy the ``__dict__`` of buffers."""

    def __reduce__(self) -> tuple[Any, ...]:
        return new_lock, ()


#: All locks of this process, by their ids. Unlike in a set, other threads may add locks while they are listed.
_locks: WeakValueDictionary[int, threading.RLock] = WeakValueDictionary()


class _Forking(threading.local):
    """The locks that a thread has acquired to fork."""

    def __init__(self) -> None:
        self.locks: list[threading.RLock] = []


_forking = _Forking()


def new_lock() -> threading.RLock:
    """Return a lock for a buffer."""
    lock: threading.RLock = BufferLock()
    _locks[id(lock)] = lock
    return lock


def _before_fork() -> None:
    """Acquire all locks.

    Other threads acquire several in any order, as where a user's class samples from one buffer within ``add`` of
    another. So this waits for a lock only while it has no other one.
    """
    acquired = _forking.locks
    locks = [lock for reference in _locks.valuerefs() if (lock := reference()) is not None]
    while len(acquired) < len(locks):
        lock = locks[len(acquired)]
        must_wait = not acquired
        acquired.append(lock)  # before it is acquired, so that Ctrl-C in between does not leave it locked
        if not lock.acquire(blocking=must_wait):
            acquired.pop()
            _after_fork()
            locks.remove(lock)
            locks.insert(0, lock)


def _after_fork() -> None:
    while _forking.locks:
        with contextlib.suppress(RuntimeError):  # Ctrl-C came before it was acquired, or after it was released
            _forking.locks[-1].release()
        _forking.locks.pop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)
    for _ in range(2):  # Python ignores what such functions raise: the second one continues if Ctrl-C ends the first
        os.register_at_fork(after_in_parent=_after_fork, after_in_child=_after_fork)
