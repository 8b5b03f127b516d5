"""The observations of a buffer: how they are encoded, written and read.

They are a :class:`~sb3_compressed.arrays.CompressedArray`, a plain array where compression does not pay, or for a Dict
space a dict of both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.batch_pool import Empty, checked_empty

__all__ = ["as_indices", "encode_observations", "read_observations", "take", "write_observations"]


def encode_observations(arrays: Any, *observations: Any, n_steps: int = 1) -> Any:
    """Encode validated observations of all environments, before anything of them is written.

    :param arrays: the observations of a buffer, ``(rows, n_envs, *obs_shape)``, or a dict of them
    :param observations: ``(n_envs, *obs_shape)``, or a dict of them; alone or followed by the next observations
    :param n_steps: the number of steps; if it is not 1, observations are ``(n_steps, n_envs, *obs_shape)``. One call
        for all of them takes less time
    :return: what :func:`write_observations` writes for each
    :raises Exception: if a codec raises
    """
    if isinstance(arrays, CompressedArray):
        if n_steps == 1:
            return arrays.stream.append(*observations)
        n_items = n_steps * arrays.shape[1]  # not -1, which NumPy does not infer for items without elements
        rows = [each.reshape(n_items, *arrays.item_shape) for each in observations]
        references = arrays.stream.append(*rows, n_steps=n_steps)
        return [references[first :: len(rows)] for first in range(len(rows))]
    if not isinstance(arrays, dict):
        return observations
    by_key = {
        key: encode_observations(array, *[each[key] for each in observations], n_steps=n_steps)
        for key, array in arrays.items()
    }
    return [{key: encoded[number] for key, encoded in by_key.items()} for number in range(len(observations))]


def write_observations(arrays: Any, rows: int | slice, encoded: Any) -> None:
    """Write the observations of a step to a row, or those of several steps to rows.

    :param encoded: an element of what :func:`encode_observations` returned
    """
    if isinstance(arrays, CompressedArray):
        arrays.write_encoded(rows, encoded)
    elif isinstance(arrays, dict):
        for key, each in encoded.items():
            write_observations(arrays[key], rows, each)
    else:
        written = arrays[rows]
        # As in SB3, discrete observations get an axis, and others may broadcast.
        written[...] = encoded.reshape(written.shape) if encoded.size == written.size else encoded


def read_observations(
    arrays: Any,
    indices: NDArray[np.int64],
    next_arrays: Any,
    next_indices: NDArray[np.int64],
    *,
    empty: Empty = checked_empty,
) -> tuple[Any, Any]:
    """Return copies of observations and next observations.

    :param arrays: the observations of a buffer, ``(rows, n_envs, *obs_shape)``, or a dict of them
    :param indices: the flat indices of the transitions, ``row * n_envs + env``, ``(n,)``
    :param next_arrays: its next observations, likewise
    :param next_indices: those of the transitions whose next observations are read, ``(m,)``
    :param empty: allocates memory, as :func:`numpy.empty` does
    :return: arrays ``(n, *obs_shape)`` and ``(m, *obs_shape)``, or dicts of them
    :raises CorruptPayload: if a payload is damaged; the error names its slot
    :raises MemoryError: if there is not enough memory
    """
    if isinstance(arrays, CompressedArray):
        items, n = arrays.read(indices, next_arrays, next_indices, empty=empty), len(indices)
        return items[:n], items[n:]
    if not isinstance(arrays, dict):
        return take(arrays, indices), take(next_arrays, next_indices)
    pairs = {
        key: read_observations(array, indices, next_arrays[key], next_indices, empty=empty)
        for key, array in arrays.items()
    }
    return {key: pair[0] for key, pair in pairs.items()}, {key: pair[1] for key, pair in pairs.items()}


def take(array: NDArray[Any], indices: NDArray[np.int64]) -> NDArray[Any]:
    """Return the items of an array ``(rows, n_envs, ...)`` by flat indices, as a copy."""
    n_rows, n_envs, *shape = array.shape
    if array.flags.c_contiguous:  # then reshape() returns a view, and one index takes half the time of two
        return array.reshape(n_rows * n_envs, *shape).take(indices, axis=0)
    return array[np.divmod(indices, n_envs)]


def as_indices(values: Any) -> NDArray[np.int64]:
    """Return rows or environments as int64, in which flat indices cannot overflow.

    :raises IndexError: if they are not integers, or not a vector
    """
    indices = np.asarray(values)
    if indices.ndim != 1 or (indices.dtype.kind not in "iu" and indices.size):
        raise IndexError(f"rows and environments must be vectors of integers, got {indices.shape} of {indices.dtype}")
    return indices.astype(np.int64, copy=False)
