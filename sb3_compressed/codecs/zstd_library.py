"""Functions of the C library that python-zstandard contains, which kernels call for each payload.

Through its Python methods, a frame of 84x84 takes a third more time than the library alone, and threads wait for each
other's lock of the interpreter. Wheels for Linux and macOS export the library's functions; where they cannot be found,
each payload is decoded by python-zstandard.
"""

from __future__ import annotations

import ctypes
import importlib.util
import weakref
from functools import cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["DecompressionContext", "functions"]

#: The first version in which the interface of all functions here is stable, 1.3.0, as a number.
OLDEST = 10_300
#: What kernels call, in this order.
NAMES = "ZSTD_decompressDCtx", "ZSTD_getFrameContentSize", "ZSTD_findFrameCompressedSize"


@cache
def library() -> ctypes.CDLL | None:
    """Return the C library in python-zstandard, ``None`` if it does not export what is needed."""
    found = importlib.util.find_spec("zstandard._cffi")
    if found is None or found.origin is None:
        return None
    try:
        loaded = ctypes.CDLL(found.origin)
        for name in ("ZSTD_createDCtx", "ZSTD_freeDCtx", "ZSTD_versionNumber", *NAMES):
            getattr(loaded, name).restype = ctypes.c_size_t
        loaded.ZSTD_freeDCtx.argtypes = [ctypes.c_size_t]
        if loaded.ZSTD_versionNumber() < OLDEST:
            return None
    except (AttributeError, OSError):
        return None
    return loaded


@cache
def functions() -> NDArray[np.int64] | None:
    """Return the addresses of the functions :data:`NAMES`, ``(3,)``; ``None`` if there are none."""
    loaded = library()
    if loaded is None:
        return None
    addresses = [ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0 for name in NAMES]
    return np.array(addresses, np.int64)


class DecompressionContext:
    """The memory that the library decompresses with, for one thread.

    :ivar address: its address, 0 without memory for it
    """

    def __init__(self) -> None:
        loaded = library()
        self.address: int = 0 if loaded is None else loaded.ZSTD_createDCtx()
        if loaded is not None and self.address:
            weakref.finalize(self, loaded.ZSTD_freeDCtx, self.address).atexit = False  # threads may still use it
