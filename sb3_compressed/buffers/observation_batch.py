"""``Transitions`` and ``ObservationBatch``: a batch of transitions, located before its observations are decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.batch_pool import Empty, checked_empty
from sb3_compressed.arrays.decoding import LocatedItems
from sb3_compressed.common.spaces import Key

__all__ = ["ObservationBatch", "Transitions", "as_indices", "take"]


class ObservationBatch:
    """Observations of a batch, alone or with next observations; call :meth:`decode` before they are read.

    :param arrays: the observations of a buffer, ``(rows, n_envs, *obs_shape)``, or a dict of them
    :param indices: the flat indices of the transitions, ``row * n_envs + env``, ``(batch_size,)``
    :param next_arrays: its next observations, ``None`` for none
    :param next_indices: those of the transitions whose next observations are read, likewise; ``None`` for none
    :param begin_batch: returns a function that allocates the memory of the batch
    :ivar observations: ``(batch_size, *obs_shape)``, or a dict of them
    :ivar next_observations: likewise; empty if there are none
    :ivar located: by key, the items of compressed arrays, those of observations before those of next observations
    """

    observations: Any
    next_observations: Any

    def __init__(
        self,
        arrays: Any,
        indices: NDArray[np.int64],
        next_arrays: Any = None,
        next_indices: NDArray[np.int64] | None = None,
        begin_batch: Callable[[], Empty] = lambda: checked_empty,
    ) -> None:
        if next_arrays is None or next_indices is None:
            next_arrays, next_indices = arrays, indices[:0]
        self.indices, self.next_indices = indices, next_indices
        self.located: dict[Key, LocatedItems] = {}
        self._is_dict = isinstance(arrays, dict)
        self._arrays: dict[Key, tuple[Any, Any]] = (
            {key: (array, next_arrays[key]) for key, array in arrays.items()}
            if self._is_dict
            else {None: (arrays, next_arrays)}
        )
        self._begin_batch = begin_batch

    def locate(self) -> None:
        """Locate the payloads, and copy what is not compressed; the content no longer changes from then on.

        :raises CorruptPayload: if a slot is invalid; the error names it
        """
        empty = self._begin_batch()
        for key, (array, next_array) in self._arrays.items():
            if isinstance(array, CompressedArray):
                self.located[key] = array.locate(self.indices, next_array, self.next_indices, empty=empty)
        self._copy_plain()

    def decode(self) -> None:
        """Locate the observations, and decode them.

        :raises CorruptPayload: if a payload is damaged; the error names its slot
        """
        self.locate()
        for items in self.located.values():
            items.decode()

    def _copy_plain(self) -> None:
        n = len(self.indices)
        first, second = {}, {}
        for key, (array, next_array) in self._arrays.items():
            if key in self.located:
                out = self.located[key].out
                first[key], second[key] = out[:n], out[n:]
            else:
                first[key], second[key] = take(array, self.indices), take(next_array, self.next_indices)
        self.observations, self.next_observations = (first, second) if self._is_dict else (first[None], second[None])


class Transitions(NamedTuple):
    """A batch of transitions. Its observations must be decoded before they are read.

    :param observations: its observations and next observations
    :param actions: actions ``(batch_size, action_dim)``
    :param dones: 1 where an episode ends, except by a time limit, else 0; ``(batch_size, 1)`` of float32
    :param rewards: rewards of one step, as they were added, or returns of several steps; ``(batch_size, 1)`` of float32
    :param discounts: by which the values of next observations are multiplied, ``(batch_size, 1)``; ``None`` for those
        of one step
    """

    observations: ObservationBatch
    actions: NDArray[Any]
    dones: NDArray[Any]
    rewards: NDArray[Any]
    discounts: NDArray[Any] | None = None


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
