"""How this project compiles with numba: at import, without the GIL, cached on disk, and never again after that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba import types

__all__ = ["BYTES", "BYTE_ROWS", "INTS", "INT_ROWS", "READ_BYTES", "READ_BYTE_ROWS", "kernel"]

BYTES = types.Array(types.uint8, 1, "C")
"""A contiguous byte vector that a kernel writes."""
READ_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
"""A contiguous byte vector that a kernel reads; writable ones are accepted too."""

BYTE_ROWS = types.Array(types.uint8, 2, "C")
"""Rows of bytes that a kernel writes."""
READ_BYTE_ROWS = types.Array(types.uint8, 2, "C", readonly=True)
"""Rows of bytes that a kernel reads; writable ones are accepted too."""
INTS = types.Array(types.int64, 1, "C")
"""A contiguous vector of integers."""
INT_ROWS = types.Array(types.int64, 2, "C")
"""Rows of integers."""

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(result: types.Type, *arguments: types.Type) -> Callable[[Function], Function]:
    """Compile a function for one signature, when its module is imported.

    The one signature is the point: importing a module of kernels compiles all it will ever run, so nothing is
    compiled in the middle of training or in a worker process. numba keeps the machine code in a writable folder
    beside the source, else in the user's cache folder (``NUMBA_CACHE_DIR`` overrides both); where there is none
    it refuses to cache at all, and the kernel is compiled once a process.
    """

    def compile_function(function: Function) -> Function:
        signature = result(*arguments)
        try:
            compiled = numba.njit(signature, nogil=True, cache=True)(function)
        except RuntimeError:  # "cannot cache function ...: no locator available"
            compiled = numba.njit(signature, nogil=True)(function)
        return cast("Function", compiled)

    return compile_function
