"""``SelectedEnvironments``: arrays that return the transitions of chosen environments to SB3's ``_get_samples``.

SB3's buffers draw the environments of a batch in ``_get_samples`` itself, between its other steps, so no argument
passes them. With a sampler, SB3's method is called on a stand-in for the buffer, in which each array of shape
``(rows, n_envs, ...)`` is replaced by a :class:`SelectedEnvironments`: whatever environments SB3 draws, it reads those
that the sampler has chosen. Everything else is SB3's own code, also n-step returns and a user's ``_get_samples``.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.array_like import ArrayLike
from sb3_compressed.buffers.timing import MethodTimer

__all__ = ["SelectedEnvironments", "Selection", "get_samples_at"]

_Buffer = TypeVar("_Buffer")

ARRAYS = (np.ndarray, CompressedArray)  # a tuple, which isinstance examines faster than a union


class Selection:
    """The environments of a batch.

    :param envs: environments ``(batch_size,)``
    :param rows: the rows that arrays are read at, one for each of them, ``(batch_size,)``; ``None`` for any rows
    :param n_envs: number of environments in the arrays, if there are rows
    """

    def __init__(
        self, envs: NDArray[np.int64], rows: NDArray[np.int64] | None = None, n_envs: int | None = None
    ) -> None:
        self.envs, self.rows = envs, rows
        #: The numbers of the transitions, counted row by row.
        self.indices = None if rows is None or n_envs is None else rows * n_envs + envs
        #: Whether an array was read at them.
        self.is_used = False


class SelectedEnvironments(ArrayLike):
    """A view of an array ``(rows, n_envs, ...)`` that replaces arrays of environments in an index by chosen ones.

    >>> rewards = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> view = SelectedEnvironments(rewards, Selection(np.array([1, 1, 0])))
    >>> rows, drawn = np.array([0, 1, 1]), np.array([0, 0, 0])
    >>> view[rows, drawn]
    array([2., 4., 3.])
    >>> view[1]
    array([3., 4.])

    Other indices select the same elements as in the array, which assignments write to.
    """

    shape, dtype, ndim, size, itemsize = (
        property(attrgetter(f"_array.{name}")) for name in ("shape", "dtype", "ndim", "size", "itemsize")
    )

    def __init__(self, array: NDArray[Any] | CompressedArray, selection: Selection) -> None:
        vars(self).update(_array=array, _selection=selection)  # faster than two assignments

    def __getitem__(self, index: Any) -> Any:
        array = self._array
        if type(array) is np.ndarray and self._is_of_selection(index) and array.flags.c_contiguous:
            # The same elements as below, in half the time.
            self._selection.is_used = True
            return array.reshape(-1, *array.shape[2:]).take(self._selection.indices, axis=0)
        return array[self._with_selection(index)]

    def _is_of_selection(self, index: Any) -> bool:
        """Return whether an index is that of the chosen rows and some environments, as in ``array[rows, envs, :]``."""
        rows = self._selection.rows
        if rows is None or type(index) is not tuple or index[0] is not rows or not 2 <= len(index) <= 3:
            return False
        return type(index[1]) is np.ndarray and index[1].shape == rows.shape and index[2:] in ((), (slice(None),))

    def __setitem__(self, index: Any, value: Any) -> None:
        self._array[self._with_selection(index)] = value

    def _with_selection(self, index: Any) -> Any:
        if type(index) is not tuple or len(index) < 2 or type(index[1]) is not np.ndarray:
            return index
        selection = self._selection
        selection.is_used = True
        envs, shape = selection.envs, index[1].shape
        if shape != envs.shape:  # n-step returns: (batch_size, 1)
            envs = envs.reshape(shape)
        return (index[0], envs, *index[2:])


def get_samples_at(buffer: Any, rows: NDArray[np.int64], envs: NDArray[np.int64], env: Any) -> Any:
    """Return the samples that a buffer's ``_get_samples`` creates for chosen rows and environments.

    :param rows: rows ``(batch_size,)``
    :param envs: their environments, likewise
    :param env: a ``VecNormalize``, or ``None``
    :raises TypeError: if a user's ``_get_samples`` does not index arrays by rows and environments
    """
    if buffer.n_envs == 1:
        return buffer._get_samples(rows, env=env)
    selection = Selection(envs, rows, buffer.n_envs)
    stand_in = _stand_in(buffer, selection)
    before = None if buffer._is_from_this_package else dict(vars(stand_in))
    samples = stand_in._get_samples(rows, env=env)
    if not selection.is_used:
        raise TypeError(
            f"{type(buffer).__name__}._get_samples must index arrays as array[rows, envs] for a sampler to choose the "
            "environments; a function that was assigned to a buffer cannot be used with a sampler"
        )
    if before is not None:
        for name, value in vars(stand_in).items():  # such as a counter of a user's class
            if value is not before.get(name, before):
                vars(buffer)[name] = value
    return samples


def _stand_in(buffer: _Buffer, selection: Selection) -> _Buffer:
    """Return a shallow copy of a buffer with views in place of its arrays of transitions."""
    leading_shape: tuple[int, int] = (buffer.buffer_size, buffer.n_envs)  # type: ignore[attr-defined]

    def is_selected(value: Any) -> bool:
        return isinstance(value, ARRAYS) and value.shape[:2] == leading_shape

    stand_in = object.__new__(type(buffer))
    attributes = vars(stand_in)
    attributes.update(vars(buffer))
    for name, value in vars(buffer).items():
        if is_selected(value):
            attributes[name] = SelectedEnvironments(value, selection)
        elif isinstance(value, dict) and any(map(is_selected, value.values())):
            attributes[name] = {
                key: SelectedEnvironments(part, selection) if is_selected(part) else part for key, part in value.items()
            }
        elif type(value) is MethodTimer:
            del attributes[name]
    return stand_in
