"""How much memory this process can still allocate, and what it keeps of the memory that was freed."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

__all__ = ["available_memory", "keep_freed_memory", "mapped_memory", "return_freed_memory"]

#: The largest block that glibc adapts to, less what it stores beside one.
LARGEST_NBYTES = (32 << 20) - (64 << 10)

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


def keep_freed_memory() -> None:
    """Let the C library keep up to 64 MB of freed memory for reuse, instead of returning all of it to the system.

    An update of a training allocates and frees tensors of many megabytes, and the system clears each page that it
    hands out again. glibc adapts to the largest block that was freed so far, see ``M_MMAP_THRESHOLD`` in mallopt(3). So
    this frees one, whose pages are never touched.
    """
    np.empty(LARGEST_NBYTES, np.uint8)


def return_freed_memory() -> None:
    """Return all memory that was freed to the system, also between parts of the heap that are in use; glibc only."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def mapped_memory(nbytes: int) -> NDArray[np.uint8]:
    """Return zeros in a memory map of their own, which the system gets back as soon as no array refers to them.

    The C library keeps freed memory below anything that is still in use. For what is large and lives long, that may be
    all of it. A map takes memory page by page as it is written to, so a part at its end that is not used takes none.

    :param nbytes: their number, at least 1
    :raises MemoryError: if there is not enough memory
    """
    try:
        if sys.platform == "win32":
            mapped = mmap.mmap(-1, nbytes)
        else:  # by default, it would be shared with a process that is forked
            mapped = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"there are no {nbytes / 1e6:,.1f} MB of memory left: {error}") from error
    return np.frombuffer(mapped, np.uint8)


def _read(name: str) -> str:
    return (CGROUP / name).read_text(encoding="ascii")
