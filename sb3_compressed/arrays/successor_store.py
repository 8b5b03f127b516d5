"""``SuccessorStore``: observations as a plain array, and of next observations only those that are not among them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sb3_compressed.arrays import successor_kernels as kernels

__all__ = ["SuccessorStore"]

Ints = NDArray[np.int64]


class SuccessorStore:
    """What a pair of :class:`~sb3_compressed.arrays.successors.ObservationArray` and ``SuccessorArray`` is made of.

    The next observation at ``[row, env]`` is its *follower*, the observation at ``[row + 1, env]`` on the ring, unless
    it was found to differ, bit for bit; then it has a slot of its own in a pool. Both are zeros at first, so what was
    never written is its follower too. The pool has room for all of them, but memory is only taken as its slots are
    used, the lowest first: the operating system gives a large array its pages when they are written to.

    Comparing each row when it comes would take longer than writing it. So the rows that are written at present are
    *staged*: they are kept as they are until others take their place, and compared all at once.

    :param shape: ``(rows, n_envs, *item_shape)``, none of them 0
    :param dtype: any dtype without references
    :raises ValueError: if there are no elements or more observations than can be numbered
    """

    #: What is staged should stay in the processor's caches until it is compared.
    STAGED_NBYTES = 128 * 1024
    #: The most that is staged of all rows, so that it is no part worth mentioning of a small buffer's memory.
    STAGED_SHARE = 1 / 32

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        if len(shape) < 2 or min(shape) < 1 or shape[0] * shape[1] > np.iinfo(np.int32).max:
            raise ValueError(f"shape must be (rows, n_envs, *item_shape), none of them 0 or too large, got {shape}")
        self._set_up(np.zeros(shape, dtype))

    def _set_up(self, observations: NDArray[Any]) -> None:
        rows, n_envs = observations.shape[:2]
        row_nbytes = observations[0].nbytes
        n_staged = max(1, min(self.STAGED_NBYTES // row_nbytes, int(rows * self.STAGED_SHARE)))
        items = as_items(observations)
        #: Observations, ``(rows, n_envs, *item_shape)``. Call :meth:`keep` before writing to any but one of the rows
        #: behind ``begin`` up to ``end``: the next observations of the rows before these are staged.
        self.observations = observations
        #: Next observations of the rows from ``begin`` on, before ``end``, for reading and writing.
        self.stage: NDArray[Any] = np.empty((n_staged, *observations.shape[1:]), observations.dtype)
        self.begin = self.end = 0
        self._places, self._free = np.zeros(len(items), np.int32), np.empty(len(items), np.int32)
        self._pool = np.empty_like(items)
        self._state = np.zeros(kernels.STATE_LENGTH, dtype=np.int64)
        self._state[[kernels.N_ITEMS, kernels.ITEM_NBYTES]] = items.shape
        self._state[kernels.N_ENVS] = n_envs
        for name, array in (
            (kernels.ITEMS, observations),
            (kernels.PLACES, self._places),
            (kernels.POOL, self._pool),
            (kernels.FREE, self._free),
            (kernels.STAGE, self.stage),
        ):
            self._state[name] = array.ctypes.data

    @property
    def n_own(self) -> int:
        """How many next observations are kept that are not among the observations, staged ones not counted."""
        return int(self._state[kernels.N_SLOTS] - self._state[kernels.N_FREE])

    @property
    def extra_nbytes(self) -> int:
        """The memory that next observations take besides the observations, in bytes."""
        n_slots = int(self._state[kernels.N_SLOTS])
        return self._places.nbytes + self.stage.nbytes + self._pool[:n_slots].nbytes + self._free[:n_slots].nbytes

    def keep(self, rows: Ints, envs: Ints) -> None:
        """Prepare for other observations at ``[rows, envs]``; next observations stay what they are."""
        kernels.keep_followers(self._state, rows, envs)

    def stage_from(self, row: int) -> None:
        """Stage a row and some after it, and compare those that were staged before."""
        self._stage(row, min(row + len(self.stage), len(self.observations)))

    def settle(self, row: int) -> None:
        """Stage no rows; those that were are compared now.

        :param row: where writing is expected to go on
        """
        self._stage(row, row)

    def _stage(self, begin: int, end: int) -> None:
        self.begin = self.end = end  # no row is taken for staged if this is interrupted
        kernels.stage_rows(self._state, begin, end)
        self.begin = begin

    def read_next(self, rows: Ints, envs: Ints, out: NDArray[Any]) -> None:
        """Copy the next observations at ``[rows, envs]``.

        :param rows: numbers of rows, ``(n,)``
        :param envs: numbers of environments, ``(n,)``
        :param out: contiguous memory for them, ``(n, *item_shape)``
        :raises IndexError: if a number is out of bounds
        """
        wrong = kernels.read(self._state, rows, envs, out.reshape(-1).view(np.uint8))
        if wrong >= 0:
            raise IndexError(
                f"index ({rows[wrong]}, {envs[wrong]}) is out of bounds for {len(self.observations)} rows of "
                f"{self._state[kernels.N_ENVS]} environments"
            )

    def write_next(self, rows: Ints, envs: Ints, values: NDArray[Any]) -> None:
        """Write next observations ``(n, *item_shape)`` at ``[rows, envs]``, which are in bounds, wherever they are."""
        kernels.write(self._state, rows, envs, values.reshape(-1).view(np.uint8))

    def __getstate__(self) -> dict[str, Any]:
        # Nothing is changed: a signal's handler may save the buffer in the middle of a write. What is staged is kept as
        # it is, compared or not.
        n_envs = int(self._state[kernels.N_ENVS])
        staged = np.arange(self._state[kernels.BEGIN] * n_envs, self._state[kernels.END] * n_envs)
        own = np.union1d(np.flatnonzero(self._places), staged)
        # As numbers, not bytes: NumPy's pickles of both become the machine's byte order.
        next_observations = np.empty((len(own), *self.observations.shape[2:]), self.observations.dtype)
        self.read_next(*np.divmod(own, n_envs), next_observations)
        return {"observations": self.observations, "own": own, "next_observations": next_observations}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._set_up(state["observations"])
        own, next_observations = state["own"], state["next_observations"]
        self._places[own] = np.arange(1, len(own) + 1)
        self._pool[: len(own)].reshape(-1)[:] = next_observations.reshape(-1).view(np.uint8)
        self._state[kernels.N_SLOTS] = len(own)


def as_items(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return contiguous items ``(rows, n_envs, *item_shape)`` as their bytes, ``(n_items, item_nbytes)``, a view."""
    n_items = array.shape[0] * array.shape[1]
    return array.reshape(-1).view(np.uint8).reshape(n_items, array.nbytes // n_items)
