"""Processes that are stopped for a while, short timeouts for what is to wait for them in vain, and waiting for others.

Only such calls have a short timeout: on a busy machine, any other would pass now and then.
"""

from __future__ import annotations

import os
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
def short_timeout(seconds: float, *owners: Any) -> Iterator[None]:
    """Make writers, groups of collectors and distributed buffers wait only so long during the block."""
    with ExitStack() as stack:
        for owner in owners:
            parts = [getattr(owner, name) for name in ("_group", "_pipeline") if hasattr(owner, name)]
            writers = [writer for _, writer in getattr(owner, "_local", [])]
            for each in (owner, *parts, *writers):
                stack.enter_context(patch.object(each, "_timeout", seconds))
        yield
