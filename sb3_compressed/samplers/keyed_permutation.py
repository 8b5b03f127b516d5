"""``keyed_permutation``: a pseudo-random permutation of integers that takes no memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["keyed_permutation"]

#: The multipliers of the finalizer of SplitMix64 (Steele, Lea and Flood 2014, https://doi.org/10.1145/2660193.2660195).
MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
#: The golden ratio, from which SplitMix64 derives a sequence of keys.
INCREMENT = 0x9E3779B97F4A7C15
#: Four suffice for a permutation that cannot be distinguished from a random one (Luby and Rackoff 1988,
#: https://doi.org/10.1137/0217022), if halves are long; those of small buffers are short.
N_ROUNDS = 6


def keyed_permutation(numbers: NDArray[np.uint64], n_bits: int, key: int) -> NDArray[np.uint64]:
    """Return the images of numbers under a permutation of all integers of ``n_bits`` bits.

    A Feistel network: each round changes one half of the bits by a keyed hash of the other half, so that it can be
    inverted, whatever the hash is.

    >>> images = keyed_permutation(np.arange(8, dtype=np.uint64), 3, key=1)
    >>> sorted(images.tolist())
    [0, 1, 2, 3, 4, 5, 6, 7]

    :param numbers: integers from 0 to ``2 ** n_bits - 1``, of any shape
    :param n_bits: from 2 to 64
    :param key: any integer; it selects the permutation
    """
    n_low_bits = n_bits // 2
    lengths = n_bits - n_low_bits, n_low_bits
    halves = [numbers >> np.uint64(n_low_bits), numbers & np.uint64((1 << n_low_bits) - 1)]
    for step in range(N_ROUNDS):
        key = (key + INCREMENT) % 2**64
        changed = step % 2
        hashed = halves[1 - changed] ^ np.uint64(key)
        for shift, multiplier in zip((30, 27), MULTIPLIERS, strict=True):
            hashed ^= hashed >> np.uint64(shift)
            hashed *= multiplier
        # The high bits of a product depend on all bits of the number.
        halves[changed] = halves[changed] ^ (hashed >> np.uint64(64 - lengths[changed]))
    images: NDArray[np.uint64] = (halves[0] << np.uint64(n_low_bits)) | halves[1]
    return images
