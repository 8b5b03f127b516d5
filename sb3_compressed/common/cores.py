"""``IdleCores``: whether a core is idle, on which other threads can work while a training runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

__all__ = ["IdleCores", "cpu_quota"]

#: The limit of a cgroup of version 2: microseconds of all cores in each period of so many microseconds.
CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
#: Seconds between two measurements.
INTERVAL_SECONDS = 2.0
#: The part of a core that must be idle.
MIN_IDLE = 0.2


class IdleCores:
    """Measures how many cores are idle: of the machine, and of what this process may use of it."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin a measurement."""
        self._begin = time.monotonic()
        self._idle, self._own = _idle_seconds(), time.process_time()

    def has_any(self) -> bool | None:
        """Return whether a core was idle for a part of the time since the last measurement; ``None`` until one ends."""
        now = time.monotonic()
        seconds = now - self._begin
        if seconds < INTERVAL_SECONDS:
            return None
        idle = (_idle_seconds() - self._idle) / seconds
        allowed = cpu_quota() - (time.process_time() - self._own) / seconds
        self.restart()
        return min(idle, allowed) >= MIN_IDLE


def _idle_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.idle + getattr(times, "iowait", 0.0))


def cpu_quota() -> float:
    """Return how many cores this process may use: by its affinity, and by the limit of its cgroup."""
    n_cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        quota, period = (int(text) for text in CPU_MAX.read_text(encoding="ascii").split())
        return min(n_cores, quota / period)
    except (OSError, ValueError, ZeroDivisionError):  # no cgroup of version 2, or "max"
        return n_cores
