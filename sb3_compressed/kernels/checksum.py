"""The checksum of everything on disk: XXH64, compiled.

Yann Collet's xxHash (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md). It detects accidental damage, not
tampering. It runs at about memory bandwidth, so every payload is verified each time it is read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["checksum"]


def checksum(data: bytes | bytearray | memoryview | NDArray[np.uint8], seed: int = 0) -> int:
    """Return the XXH64 of some bytes as a 64-bit integer.

    >>> hex(checksum(b"a", 0))
    '0xd24ec4f1a98c6e5b'

    :param seed: equal bytes have different checksums for different seeds
    """
    from sb3_compressed.kernels.checksum_kernels import xxh64_of  # on first use, since importing numba takes long

    return int(xxh64_of(np.frombuffer(data, dtype=np.uint8), np.uint64(seed)))
