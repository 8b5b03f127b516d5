"""``available_memory``: how much memory this process can still allocate."""

from __future__ import annotations

from pathlib import Path

import psutil

__all__ = ["available_memory"]

#: The limit of the cgroup of a process and what it uses, of versions 2 and 1.
CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_memory() -> int:
    """Return the bytes that this process can allocate without swapping: of the machine, and of its cgroup."""
    available: int = psutil.virtual_memory().available
    for limit, usage in CGROUP_FILES:
        try:
            left = int(Path(limit).read_text(encoding="ascii")) - int(Path(usage).read_text(encoding="ascii"))
        except (OSError, ValueError):  # another version, or "max"
            continue
        available = min(available, max(left, 0))
    return available
