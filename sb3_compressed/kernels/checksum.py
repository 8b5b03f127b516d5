"""The checksum of everything on disk: XXH64, compiled.

Yann Collet's xxHash (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md). It detects accidental damage, not
tampering. It runs at about memory bandwidth, so every payload is verified each time it is read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.lz4_library import xxh64_address
from sb3_compressed.common.probes import holds

__all__ = ["checksum", "xxh64_function"]

#: ``XXH64`` of ``xxhash.h``: of some bytes, or those at an address; their number; the seed.
XXH64 = Callable[["bytes | int", int, int], int]
C_TYPE = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64)


def checksum(data: bytes | bytearray | memoryview | NDArray[np.uint8], seed: int = 0) -> int:
    """Return the XXH64 of some bytes as a 64-bit integer.

    >>> hex(checksum(b"a", 0))
    '0xd24ec4f1a98c6e5b'

    :param seed: equal bytes have different checksums for different seeds
    """
    function = xxh64_function()
    if function is not None and type(data) is bytes:
        return function(data, len(data), seed)
    rows = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
    if function is not None:
        return function(rows.ctypes.data, rows.nbytes, seed)
    from sb3_compressed.kernels.checksum_kernels import xxh64_of  # on first use, since importing numba takes long

    return int(xxh64_of(rows, np.uint64(seed)))


@cache
def xxh64_function() -> XXH64 | None:
    """Return the function of the LZ4 library that python-lz4 contains, ``None`` where that does not export it.

    Kernels have their own, which the compiler inlines.
    """
    return C_TYPE(xxh64_address()) if holds(_is_xxh64) else None


def _is_xxh64() -> bool:
    """Return whether the function returns what xxHash specifies, for a seed of 64 bits and more than one block."""
    function = C_TYPE(xxh64_address())
    known = {b"": (0, 0xEF46DB3751D8E999), bytes(range(79)): (2**64 - 1, 0xA2A426981181AEA2)}
    return all(function(data, len(data), seed) == expected for data, (seed, expected) in known.items())
