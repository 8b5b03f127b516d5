"""Kernels that find at which transitions of a ring buffer sequences begin, and how far their episodes extend."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.kernels.byte_kernels import INT
from sb3_compressed.kernels.jit import BYTES, INTS, READ_INTS, helper, kernel

__all__ = ["count_steps", "mark_anchors", "select_anchors"]

FLAGS = types.Array(types.float32, 2, "C", readonly=True)
"""``dones`` or ``timeouts``."""


@helper(types.boolean, FLAGS, FLAGS, INT, INT, INT)
def ends_at(dones: NDArray[np.float32], timeouts: NDArray[np.float32], oldest: int, age: int, env: int) -> bool:
    """Return whether an episode ends with the transition of an age, which is in the ring."""
    row = oldest + age
    if row >= len(dones):
        row -= len(dones)
    return dones[row, env] != 0 or timeouts[row, env] != 0  # type: ignore[no-any-return]


@helper(types.boolean, FLAGS, FLAGS, INT, INT, INT, INT)
def is_boundary(
    dones: NDArray[np.float32], timeouts: NDArray[np.float32], oldest: int, n_ages: int, age: int, env: int
) -> bool:
    """Return whether no transition of the same episode follows an age in the ring; -1 is before the oldest."""
    return age < 0 or age >= n_ages - 1 or ends_at(dones, timeouts, oldest, age, env)


@helper(types.boolean, FLAGS, FLAGS, INT, INT, INT, INT, INT, INT, INT)
def is_on_stride(
    dones: NDArray[np.float32],
    timeouts: NDArray[np.float32],
    oldest: int,
    n_ages: int,
    age: int,
    env: int,
    length: int,
    stride: int,
    is_complete: int,
) -> bool:
    """Return whether the stride selects an anchor."""
    if stride == 1:
        return True
    row = oldest + age
    if (row - len(dones) if row >= len(dones) else row) % stride == 0:
        return True
    if is_boundary(dones, timeouts, oldest, n_ages, age - 1, env):
        return True
    last = age + length - 1
    return is_complete != 0 and last < n_ages and ends_at(dones, timeouts, oldest, last, env)


@helper(INT, FLAGS, FLAGS, INT, INT, INT, INT, INT, INT)
def count(
    dones: NDArray[np.float32],
    timeouts: NDArray[np.float32],
    oldest: int,
    n_ages: int,
    age: int,
    env: int,
    step: int,
    most: int,
) -> int:
    """Return how many transitions of its episode follow an age (``step=1``) or precede it (-1), at most ``most``."""
    n = 0
    at = age if step > 0 else age - 1
    while n < most and not is_boundary(dones, timeouts, oldest, n_ages, at, env):
        n += 1
        at += step
    return n


@kernel(types.void, FLAGS, FLAGS, INT, INT, READ_INTS, READ_INTS, INT, INT, INTS)
def count_steps(
    dones: NDArray[np.float32],
    timeouts: NDArray[np.float32],
    oldest: int,
    n_ages: int,
    ages: NDArray[np.int64],
    envs: NDArray[np.int64],
    step: int,
    most: int,
    counts: NDArray[np.int64],
) -> None:
    """Count how many transitions of its episode follow each one, or precede it.

    :param dones: nonzero where episodes end, ``(n_rows, n_envs)``
    :param timeouts: nonzero where they end by a time limit, of the same shape
    :param oldest: the row of age 0
    :param n_ages: number of rows that contain transitions, at most ``n_rows``
    :param ages: ages from 0 to ``n_ages - 1``, ``(n,)``
    :param envs: environments, ``(n,)``
    :param step: 1 for those that follow, -1 for those that precede
    :param most: where to stop counting
    :param counts: receives the numbers, ``(n,)``
    """
    for k in range(ages.size):
        counts[k] = count(dones, timeouts, oldest, n_ages, ages[k], envs[k], step, most)


@kernel(INT, FLAGS, FLAGS, INT, INT, READ_INTS, READ_INTS, INT, INT, INT, INTS)
def select_anchors(
    dones: NDArray[np.float32],
    timeouts: NDArray[np.float32],
    oldest: int,
    n_ages: int,
    ages: NDArray[np.int64],
    envs: NDArray[np.int64],
    length: int,
    stride: int,
    is_complete: int,
    selected: NDArray[np.int64],
) -> int:
    """Select the transitions that are anchors of sequences.

    :param ages: ages ``(n,)``; those outside the ring are none
    :param is_complete: 1 if sequences must not be padded at their end, else 0
    :param selected: receives their positions, at most as many as there is room for
    :return: the number of them
    """
    n = 0
    for k in range(ages.size):
        age, env = ages[k], envs[k]
        if n == selected.size:
            break
        if age < 0 or age >= n_ages:
            continue
        if not is_on_stride(dones, timeouts, oldest, n_ages, age, env, length, stride, is_complete):
            continue
        if is_complete != 0 and count(dones, timeouts, oldest, n_ages, age, env, 1, length - 1) < length - 1:
            continue
        selected[n] = k
        n += 1
    return n


@kernel(types.void, FLAGS, FLAGS, INT, INT, INT, INT, INT, INT, BYTES)
def mark_anchors(
    dones: NDArray[np.float32],
    timeouts: NDArray[np.float32],
    oldest: int,
    n_ages: int,
    env: int,
    length: int,
    stride: int,
    is_complete: int,
    is_anchor: NDArray[np.uint8],
) -> None:
    """Mark all anchors of one environment.

    :param is_anchor: receives 1 for ages that are anchors, else 0, ``(n_ages,)``
    """
    n_following = 0
    for back in range(n_ages):
        age = n_ages - 1 - back
        n_following = 0 if is_boundary(dones, timeouts, oldest, n_ages, age, env) else n_following + 1
        is_long_enough = is_complete == 0 or n_following >= length - 1
        is_anchor[age] = is_long_enough and is_on_stride(
            dones, timeouts, oldest, n_ages, age, env, length, stride, is_complete
        )
