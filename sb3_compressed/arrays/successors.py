"""``ObservationArray`` and ``SuccessorArray``: observations and next ones, two ndarrays to whoever uses them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sb3_compressed.arrays.array_like import ArrayLike
from sb3_compressed.arrays.cast import cast_values
from sb3_compressed.arrays.indexing import basic_index, has_ellipsis, is_whole, split_index
from sb3_compressed.arrays.reductions import REDUCTIONS
from sb3_compressed.arrays.successor_store import SuccessorStore
from sb3_compressed.arrays.write_through import Items, Source, WriteThroughArray

__all__ = ["ObservationArray", "SuccessorArray", "successor_arrays"]


def successor_arrays(shape: tuple[int, ...], dtype: DTypeLike) -> tuple[ObservationArray, SuccessorArray]:
    """Return arrays of zeros for observations and the ones that follow, which take about the memory of one of them.

    Whatever is written where, each reads as an ndarray of its own would.

    >>> import numpy as np
    >>> observations, next_observations = successor_arrays((1000, 2, 17), np.float64)
    >>> rng = np.random.default_rng(0)
    >>> obs = rng.normal(size=(2, 17))
    >>> for step in range(1000):
    ...     observations[step] = obs
    ...     obs = rng.normal(size=(2, 17))
    ...     next_observations[step] = obs
    >>> bool((next_observations[:-1] == observations[1:]).all())
    True
    >>> (observations.nbytes + next_observations.nbytes) / (2 * observations.raw_nbytes) < 0.6
    True

    :param shape: ``(rows, n_envs, *item_shape)``
    :param dtype: dtype of both
    :raises ValueError: if there are no elements or more observations than can be numbered
    """
    store = SuccessorStore(shape, dtype)
    return ObservationArray(store), SuccessorArray(store)


class PlainArray(ArrayLike):
    """What the two have in common: all that an ndarray can do.

    Where NumPy would return a view, what is assigned to the result is written back.

    :param store: the memory of both
    """

    def __init__(self, store: SuccessorStore) -> None:
        self._store = store
        self._rows = store.observations
        self.shape, self.dtype = self._rows.shape, self._rows.dtype
        #: Whether values of other dtypes have to be looked at; floats only round.
        self._is_exact = self.dtype.kind in "biu"
        self.ndim, self.size, self.itemsize = self._rows.ndim, self._rows.size, self._rows.itemsize

    @property
    def raw_nbytes(self) -> int:
        """The memory that an ndarray of this shape and dtype takes, in bytes."""
        return self._rows.nbytes

    def __len__(self) -> int:
        return len(self._rows)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        array: NDArray[Any] = np.asarray(self[...])  # read-only
        is_other = dtype is not None and np.dtype(dtype) != self.dtype
        if is_other and copy is False:
            raise ValueError(f"an array of {self.dtype} cannot become one of {np.dtype(dtype)} without a copy")
        return np.array(array, dtype=dtype) if copy or is_other else array

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(self[...], name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._store,)

    def __copy__(self) -> PlainArray:
        return copy.deepcopy(self)

    def _read(self, rows: Items, envs: Items) -> NDArray[Any]:
        """Return a copy of the items at ``[rows, envs]``, C-contiguous."""
        raise NotImplementedError

    def _write(self, rows: Items, envs: Items, values: NDArray[Any]) -> None:
        """Write the items at ``[rows, envs]``."""
        raise NotImplementedError

    def _read_view(self, index: Any) -> Any:
        """Return what a basic index selects: a copy whose changes are written back, or a scalar."""
        lead, inside = split_index(index, 2, self.ndim)
        rows, envs, _ = self._located(index)
        source = ItemSource(
            self, rows.reshape(-1), envs.reshape(-1), is_contiguous=self._rows[(*lead, None)].flags.c_contiguous
        )
        view = WriteThroughArray.of(source, rows.shape + self.shape[2:])
        view = view[(slice(None),) * rows.ndim + (*inside, ...)]
        return view if view.ndim or has_ellipsis(index) else view[()]

    def _cast(self, value: Any) -> NDArray[Any]:
        """Return a value in the dtype of the array; raise if that would change an integer."""
        if type(value) is np.ndarray and value.dtype == self.dtype:
            return value
        return cast_values(np.asarray(value), self.dtype)

    def _located(self, index: Any) -> tuple[NDArray[np.int64], NDArray[np.int64], Any]:
        """Return which rows and environments an index selects, and the index into the items that are there."""
        shape = self.shape[:2]
        try:
            lead, inside = split_index(index, 2, len(self.shape))
        except IndexError:  # NumPy's rules for some depend on all axes at once
            lead, inside = (), None
        rows, envs = (
            np.array(np.broadcast_to(np.arange(length).reshape(form), shape)[lead], order="C")
            for length, form in zip(shape, ((-1, 1), (1, -1)))
        )
        return rows, envs, index if inside is None else (slice(None),) * rows.ndim + inside


class ObservationArray(PlainArray):
    """Observations ``(rows, n_envs, *item_shape)``, a plain array that notices when it is written to.

    :param store: its memory, shared with the :class:`SuccessorArray`
    """

    def __init__(self, store: SuccessorStore) -> None:
        super().__init__(store)
        # Nobody else gets it, or a view of it: who writes to this memory has to call the store first.
        self._read_only = self._rows.view()
        self._read_only.flags.writeable = False

    @property
    def nbytes(self) -> int:
        """The memory it takes, in bytes."""
        return self._rows.nbytes

    def __getitem__(self, index: Any) -> Any:
        read = self._read_only[index]
        if type(read) is np.ndarray and not read.flags.writeable:  # a view
            return self._read_view(index)
        return read

    def __getattr__(self, name: str) -> Any:
        # Reductions need no copy of all of it.
        return getattr(self._read_only, name) if name in REDUCTIONS else super().__getattr__(name)

    def __setitem__(self, index: Any, value: Any) -> None:
        if self._is_exact:
            value = self._cast(value)
        store = self._store
        if type(index) is not int or not store.begin < index <= store.end:
            rows, envs, _ = self._located(index)
            store.keep(rows.reshape(-1), envs.reshape(-1))
        self._rows[index] = value

    def _read(self, rows: Items, envs: Items) -> NDArray[Any]:
        items: NDArray[Any] = self._rows[rows, envs]
        return items

    def _write(self, rows: Items, envs: Items, values: NDArray[Any]) -> None:
        self._store.keep(rows, envs)  # next observations that are found here
        self._rows[rows, envs] = values


class SuccessorArray(PlainArray):
    """Next observations ``(rows, n_envs, *item_shape)``, of which those that follow are not kept twice.

    :param store: its memory, shared with the :class:`ObservationArray`
    """

    @property
    def nbytes(self) -> int:
        """The memory it takes besides that of the observations, in bytes."""
        return self._store.extra_nbytes

    @property
    def n_own(self) -> int:
        """How many of them are kept since they are not the observations that follow."""
        return self._store.n_own

    def __getitem__(self, index: Any) -> Any:
        if type(index) is tuple and _are_pairs(*index):
            rows, envs = index[:2]
            if not rows.dtype == envs.dtype == np.int64 or not rows.flags.carray or not envs.flags.carray:
                rows, envs = np.array(rows, np.int64, order="C"), np.array(envs, np.int64, order="C")
            out = np.empty((len(rows), *self.shape[2:]), self.dtype)
            self._store.read_next(rows, envs, out)
            return out
        if basic_index(index if isinstance(index, tuple) else (index,)) is not None:
            return self._read_view(index)
        rows, envs, inside = self._located(index)
        return self._read_items(rows, envs)[inside]

    def __setitem__(self, index: Any, value: Any) -> None:
        if self._is_exact:
            value = self._cast(value)
        store = self._store
        if type(index) is int:
            if store.begin <= index < store.end:
                store.stage[index - store.begin] = value
                return
            if 0 <= index < len(self._rows):
                if index == store.end % len(self._rows):  # one after the other, as buffers write
                    store.stage_from(index)
                    store.stage[0] = value
                    return
                store.settle(index + 1)
        rows, envs, inside = self._located(index)
        values = self._read_items(rows, envs)
        values[inside] = value
        store.write_next(rows.reshape(-1), envs.reshape(-1), values)

    def _read_items(self, rows: NDArray[np.int64], envs: NDArray[np.int64]) -> NDArray[Any]:
        return self._read(rows.reshape(-1), envs.reshape(-1)).reshape(rows.shape + self.shape[2:])

    def _read(self, rows: Items, envs: Items) -> NDArray[Any]:
        out = np.empty((len(rows), *self.shape[2:]), self.dtype)
        self._store.read_next(rows, envs, out)
        return out

    def _write(self, rows: Items, envs: Items, values: NDArray[Any]) -> None:
        self._store.write_next(rows, envs, values)


def _are_pairs(*parts: Any) -> bool:
    """Return whether an index is the numbers of rows and environments of some items, as SB3 samples."""
    if len(parts) != 2 and not (len(parts) == 3 and is_whole(parts[2])):
        return False
    rows, envs = parts[:2]
    return (
        type(rows) is type(envs) is np.ndarray
        and rows.ndim == 1
        and rows.shape == envs.shape
        and rows.dtype.kind in "iu"
        and envs.dtype.kind in "iu"
    )


class ItemSource(Source):
    """Where items were read from an :class:`ObservationArray` or a :class:`SuccessorArray`.

    :param array: the array
    :param rows: the rows of the items, ``(n,)``
    :param envs: their environments, ``(n,)``
    :param is_contiguous: whether they would be one piece of memory in an ndarray
    """

    def __init__(self, array: PlainArray, rows: Items, envs: Items, *, is_contiguous: bool) -> None:
        super().__init__(array._read(rows, envs), is_contiguous=is_contiguous)
        self._array, self._rows, self._envs = array, rows, envs

    def prepare(self, items: Items) -> None:
        """Read items again: others may have written to them since."""
        self.block[items] = self._array._read(self._rows[items], self._envs[items])

    def write(self, items: Items) -> None:
        """Write items to where they were read from."""
        self._array._write(self._rows[items], self._envs[items], self.block[items])
