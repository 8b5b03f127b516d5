"""``available_memory``: how much memory this process can still allocate."""

from __future__ import annotations

from pathlib import Path

import psutil

__all__ = ["available_memory"]

CGROUP = Path("/sys/fs/cgroup")
#: Of a cgroup of version 2 and 1: its limit, what it uses, and what of that are files that the system can drop.
CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", ("inactive_file", "active_file")),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        ("total_inactive_file", "total_active_file"),
    ),
)


def available_memory() -> int:
    """Return the bytes that this process can allocate without swapping: of the machine, and of its cgroup."""
    available: int = psutil.virtual_memory().available
    for limit_file, usage_file, statistics_file, droppable in CGROUP_FILES:
        try:
            limit, usage = (int(_read(name)) for name in (limit_file, usage_file))
            statistics = dict(line.split() for line in _read(statistics_file).splitlines())
            usage -= sum(int(statistics.get(name, 0)) for name in droppable)
        except (OSError, ValueError):  # another version, or "max"
            continue
        if limit > 0:
            available = min(available, max(limit - usage, 0))
    return available


def _read(name: str) -> str:
    return (CGROUP / name).read_text(encoding="ascii")
