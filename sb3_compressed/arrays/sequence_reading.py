"""Reading sequences of consecutive observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.batch_pool import Empty
from sb3_compressed.arrays.compressed_array import CompressedArray

__all__ = ["SequenceSteps", "clear_padding", "read_sequences"]


@dataclass(frozen=True)
class SequenceSteps:
    """The steps of a batch of sequences.

    :param rows: the row of each step, ``(batch, time)``; for padding, that of the nearest step of the sequence
    :param envs: the environment of each sequence, ``(batch,)``
    :param first: the position of the first step that is not padding, ``(batch,)``
    :param stop: the position after the last one, ``(batch,)``
    """

    rows: NDArray[np.int64]
    envs: NDArray[np.int64]
    first: NDArray[np.int64]
    stop: NDArray[np.int64]


def read_sequences(
    array: Any, next_array: Any, steps: SequenceSteps, *, with_next: bool, empty: Empty = np.empty
) -> tuple[Any, NDArray[Any] | None]:
    """Read the observations of sequences; frames that several of them contain are decoded once.

    :param array: the observations, ``(n_rows, n_envs, *item_shape)``, compressed or not
    :param next_array: the next observations; ``None`` if they are the observations of the following rows
    :param with_next: whether the next observation of its last transition is appended to each sequence
    :param empty: allocates the memory of the observations, as :func:`numpy.empty` does
    :return: observations ``(batch, time, *item_shape)``, with one more step if ``with_next``, as a tensor if they are
        on a device; and the next observation of each step, ``None`` if that is the observation one step later. Zeros
        are where sequences are padded
    :raises CorruptPayload: if a payload is damaged; the error names its slot
    :raises MemoryError: if there is not enough memory
    """
    envs, sequences = steps.envs[:, None], np.arange(len(steps.envs))
    rows, last_rows = steps.rows, steps.rows[sequences, steps.stop - 1]
    if with_next:
        rows = np.concatenate((rows, rows[:, -1:]), axis=1)
    following = array if next_array is None else next_array
    ahead = sequences, steps.stop
    next_index = (last_rows + 1) % len(array) if next_array is None else last_rows, steps.envs
    shape = (*rows.shape, *array.shape[2:])
    if isinstance(array, CompressedArray):
        array.require_same_stream(following)
        references = array.references[rows, envs]
        if with_next:
            references[ahead] = following.references[next_index]

        def slot_of(position: int) -> tuple[int, int]:
            sequence, step = divmod(position, rows.shape[1])
            return int(rows[sequence, step]), int(steps.envs[sequence])

        items = array.stream.read(
            references.reshape(-1), array.dtype, slot_of, empty=empty, num_threads=array.num_threads, to_host=False
        )
        values = items.reshape(shape)
    else:
        values = empty(shape, array.dtype)
        values[...] = array[rows, envs]
        if with_next:
            values[ahead] = following[next_index]
    next_values = None
    if with_next and next_array is not None and not _is_consecutive(array, next_array, steps):
        next_values = empty((*steps.rows.shape, *array.shape[2:]), array.dtype)
        next_values[...] = next_array[steps.rows, envs]
        clear_padding(next_values, steps.first, steps.stop)
    clear_padding(values, steps.first, steps.stop + with_next)
    return values, next_values


def _is_consecutive(array: Any, next_array: Any, steps: SequenceSteps) -> bool:
    """Return whether the next observation of each step is the observation of the following one."""
    positions = np.arange(steps.rows.shape[1])
    sequence, step = np.nonzero((positions >= steps.first[:, None]) & (positions < steps.stop[:, None] - 1))
    envs = steps.envs[sequence]
    index, next_index = (steps.rows[sequence, step + 1], envs), (steps.rows[sequence, step], envs)
    if isinstance(array, CompressedArray):  # mostly the same slot
        differ = array.references[index] != next_array.references[next_index]
        if not differ.any():
            return True
        index, next_index = ((row[differ], env[differ]) for row, env in (index, next_index))
    first, second = np.asarray(array[index]), np.asarray(next_array[next_index])
    if first.dtype.kind == "f":  # NaN equals itself here
        first, second = (np.ascontiguousarray(each).view(np.uint8) for each in (first, second))
    return np.array_equal(first, second)


def clear_padding(values: Any, first: NDArray[np.int64], stop: NDArray[np.int64]) -> None:
    """Write zeros before the first step of each sequence, and from ``stop`` on.

    :param values: ``(batch, time, ...)``
    :param first: positions ``(batch,)``
    :param stop: positions ``(batch,)``
    """
    for sequence in np.flatnonzero(first > 0).tolist():
        values[sequence, : first[sequence]] = 0
    for sequence in np.flatnonzero(stop < values.shape[1]).tolist():
        values[sequence, stop[sequence] :] = 0
