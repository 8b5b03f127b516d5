"""Kernels that find the distinct frames of consecutive stacked observations."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT
from sb3_compressed.kernels.jit import INT_ROWS, INTS, READ_BYTE_ROWS, READ_INTS, helper, kernel

__all__ = ["align_frames", "n_different_frames"]


@helper(types.boolean, INT_ROWS, INT, INT)
def is_same_payload(places: NDArray[np.int64], first: int, second: int) -> bool:
    """Return whether two payloads are the same bytes by the same codec."""
    return (  # type: ignore[no-any-return]
        places[first, 0] == places[second, 0]
        and places[first, 1] == places[second, 1]
        and places[first, 2] == places[second, 2]
    )


@kernel(INT, INT_ROWS, INT, READ_INTS, READ_INTS, INT, INTS, INT_ROWS)
def align_frames(
    places: NDArray[np.int64],
    n_frames: int,
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    n_steps: int,
    chosen: NDArray[np.int64],
    doubtful: NDArray[np.int64],
) -> int:
    """Choose a payload for each frame of sequences, in which every step shifts the stack by one frame.

    Frame ``t + k`` of a sequence is the one that its step ``t`` has at position ``k``. Where the payloads of two steps
    differ, the frames may still be equal, as on a still screen, where a stack consists of equal frames.

    :param places: the places of all payloads, ``(batch * n_steps * n_frames, 3)``
    :param n_frames: frames of a stack
    :param first: the first step of each sequence, ``(batch,)``
    :param last: its last step, ``(batch,)``
    :param n_steps: steps of a sequence
    :param chosen: receives the payload of each frame, ``(batch * (n_steps + n_frames - 1),)``; any for frames before
        the first step and after the last one
    :param doubtful: receives pairs of a frame and another payload for it, each run of equal ones once,
        ``(batch * n_steps * n_frames, 2)``
    :return: the number of these pairs
    """
    n_doubtful = 0
    width = n_steps + n_frames - 1
    for sequence in range(first.size):
        frames, payloads = sequence * width, sequence * n_steps * n_frames
        begin, end = first[sequence], last[sequence]
        for frame in range(begin):
            chosen[frames + frame] = payloads + begin * n_frames
        for frame in range(n_frames):
            chosen[frames + begin + frame] = payloads + begin * n_frames + frame
        for step in range(begin + 1, end + 1):
            payload = payloads + step * n_frames
            chosen[frames + step + n_frames - 1] = payload + n_frames - 1
            for k in range(n_frames - 1):
                other = chosen[frames + step + k]
                if is_same_payload(places, other, payload + k):
                    continue
                is_repeated = (
                    step > begin + 1
                    and is_same_payload(places, payload + k, payload + k - n_frames)
                    and is_same_payload(places, other, chosen[frames + step + k - 1])
                )
                if not is_repeated:
                    doubtful[n_doubtful, 0] = frames + step + k
                    doubtful[n_doubtful, 1] = payload + k
                    n_doubtful += 1
        for frame in range(end + n_frames, width):
            chosen[frames + frame] = payloads + begin * n_frames
    return n_doubtful


@kernel(INT, READ_BYTE_ROWS, INT_ROWS, INT)
def n_different_frames(frames: NDArray[np.uint8], pairs: NDArray[np.int64], first: int) -> int:
    """Return how many frames differ from the ones that were decoded for comparison.

    :param frames: bytes of all frames, ``(n, frame_nbytes)``
    :param pairs: the first column contains the frames that are compared, ``(n_pairs, 2)``
    :param first: the number of the frame that the first pair is compared with; others follow it
    """
    n_different = 0
    for pair in range(len(pairs)):
        these, those = frames[pairs[pair, 0]], frames[first + pair]
        different = np.uint8(0)
        for k in range(these.size):  # without branches, so that it compiles to SIMD instructions
            different |= these[k] ^ those[k]
        n_different += different != 0
    return n_different
