"""Addresses of functions in C libraries that other packages contain, for use in kernels.

Those packages decode one payload at a time into a new object, with the GIL. Kernels call the libraries in them at the
addresses that their extension modules export. Where these do not export them, the packages' own functions are used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

__all__ = ["addresses_of"]


def addresses_of(library: ctypes.CDLL, names: Iterable[str]) -> list[int]:
    """Return the addresses of functions of a library.

    :raises AttributeError: if the library does not export one
    """
    return [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names]
