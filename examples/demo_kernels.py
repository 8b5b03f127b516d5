"""Compiles the kernels of a compressed buffer that are not cached yet, and prints how many.

    python examples/demo_kernels.py

The first buffer of an installation would do the same. The demo does it before, in a process of its own, because the
compiler takes memory that has nothing to do with buffers.
"""

from __future__ import annotations

import numpy as np

from sb3_compressed import CompressedArray
from sb3_compressed.kernels.jit import kernels

#: Rows after which the codec is trained.
N_ROWS = 1000


def main() -> None:
    """Write rows of frames until the codec is trained, and read some."""
    array = CompressedArray((N_ROWS, 1, 4, 84, 84), np.uint8, num_threads=1)
    array.prepare()
    frames = np.zeros((N_ROWS + 4, 84, 84), np.uint8)
    for k, frame in enumerate(frames):  # a bright object crosses a still background
        frame[60:64, :], frame[k % 60 : k % 60 + 8, k % 76 : k % 76 + 8] = 90, 200
    for row in range(N_ROWS):
        array[row] = frames[np.newaxis, row : row + 4]
    array[np.arange(32), np.zeros(32, int)]
    print(sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels))


if __name__ == "__main__":
    main()
