"""Processes that are stopped or have a full disk for a while, short timeouts for what waits in vain, and waiting.

Only such calls have a short timeout: on a busy machine, any other would pass now and then.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch

import psutil

#: Seconds, far from what anything takes: only to end what hangs.
DEADLINE_S = 120.0


def until(condition: Callable[[], Any]) -> Any:
    """Wait until a condition holds, and return its value."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value


def until_ended(pids: Iterable[int]) -> None:
    """Wait until processes have ended."""
    until(lambda: not any(map(_is_running, pids)))


def _is_running(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process during the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def full_disk(n_bytes: int = 1, pid: int = 0) -> Iterator[None]:
    """Limit the size of the files of a process during the block, by default of this one."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def short_timeout(seconds: float, *owners: Any) -> Iterator[None]:
    """Make writers, groups of collectors and distributed buffers wait only so long during the block."""
    with ExitStack() as stack:
        for owner in owners:
            parts = [getattr(owner, name) for name in ("_group", "_pipeline") if hasattr(owner, name)]
            writers = [writer for _, writer in getattr(owner, "_local", [])]
            for each in (owner, *parts, *writers):
                stack.enter_context(patch.object(each, "_timeout", seconds))
        yield
