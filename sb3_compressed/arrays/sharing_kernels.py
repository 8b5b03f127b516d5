"""The numba kernels behind frame sharing: what observations repeat, and their new frames taken out of them.

An observation is seen as its bytes in memory, ``[before, frame, after]``: ``n_before`` blocks of ``n_frames`` pieces of
``piece`` bytes. Frames that lie one after the other are one block of large pieces; in channel-last memory, where each
pixel holds a byte of every frame, there are as many blocks as pixels.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.jit import BYTE_ROWS, INTS, READ_BYTE_ROWS, READ_BYTES, kernel

__all__ = ["count_new_frames", "take_new_frames"]

CHUNK = 2048  # bytes compared before a difference ends it


@kernel(types.boolean, READ_BYTES, READ_BYTES, READ_BYTES)
def differ(some: NDArray[np.uint8], others: NDArray[np.uint8], mask: NDArray[np.uint8]) -> bool:
    """Tell whether two byte vectors differ where ``mask`` is 1; without branches, for wide instructions."""
    n_different = 0
    for i in range(some.size):
        n_different += (some[i] != others[i]) & mask[i]
    return n_different > 0


@kernel(types.void, READ_BYTE_ROWS, READ_BYTE_ROWS, READ_BYTE_ROWS, types.int64, INTS)
def count_new_frames(
    items: NDArray[np.uint8], known: NDArray[np.uint8], masks: NDArray[np.uint8], piece: int, n_new: NDArray[np.int64]
) -> None:
    """Tell how many frames of each observation are new, the newest ones; the others continue the known observation.

    :param items: bytes of the observations, ``(n_envs, item_nbytes)``
    :param known: bytes of those before them, ``(n_envs, item_nbytes)``
    :param masks: 1 at the bytes of all but the newest ``shift`` frames, ``(shift: n_frames, item_nbytes)``
    :param piece: bytes of one frame that lie together
    :param n_new: is given the number of new frames, ``(n_envs,)``
    """
    for env in range(len(items)):
        n_new[env] = len(masks)
        for shift in range(len(masks)):
            length = items.shape[1] - shift * piece
            start = 0
            while start < length:
                end = min(start + CHUNK, length)
                some = items[env, start:end]
                others = known[env, start + shift * piece : end + shift * piece]
                if differ(some, others, masks[shift, start:end]):
                    break
                start = end
            if start >= length:
                n_new[env] = shift
                break


@kernel(types.void, READ_BYTE_ROWS, INTS, types.int64, types.int64, BYTE_ROWS)
def take_new_frames(
    items: NDArray[np.uint8], n_new: NDArray[np.int64], n_frames: int, piece: int, frames: NDArray[np.uint8]
) -> None:
    """Copy the new frames of all observations, each together.

    :param items: bytes of the observations, ``(n_envs, item_nbytes)``
    :param n_new: how many of each are new, ``(n_envs,)``
    :param frames: is given the frames, ``(sum of n_new, frame_nbytes)``
    """
    n_before = frames.shape[1] // piece
    written = 0
    for env in range(len(items)):
        item = items[env]
        for frame in range(n_frames - n_new[env], n_frames):
            out = frames[written]
            written += 1
            if piece == 1:
                for block in range(n_before):
                    out[block] = item[block * n_frames + frame]
            else:
                for block in range(n_before):
                    for i in range(piece):
                        out[block * piece + i] = item[(block * n_frames + frame) * piece + i]
