"""The numba kernels behind next observations that are not kept twice; whose memory it is: ``successor_store.py``.

An *item* is one observation of one environment, numbered in the order of memory: ``row * n_envs + env``. Its follower,
the same environment's observation one row on, is ``n_envs`` items later, on the ring. What the kernels work on is
described by one vector of integers, the ``state``, at the indices below. They are called for a few items at a time, and
each array handed over would take longer than what is done with one.

They keep Python's lock: a thread that samples while another one adds never sees them halfway.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.byte_kernels import EVERYWHERE, INT, copy_bytes, differ
from sb3_compressed.jit import BYTES, INTS, int32_at, kernel, put_int32

__all__ = [
    "BEGIN",
    "END",
    "FREE",
    "ITEMS",
    "ITEM_NBYTES",
    "N_ENVS",
    "N_FREE",
    "N_ITEMS",
    "N_SLOTS",
    "PLACES",
    "POOL",
    "STAGE",
    "STATE_LENGTH",
    "keep_followers",
    "read",
    "stage_rows",
    "write",
]

STATE_LENGTH = 12
N_ITEMS, N_ENVS, ITEM_NBYTES = 0, 1, 2
ITEMS = 3
"""Address of the observations, ``n_items`` times ``item_nbytes``."""
PLACES = 4
"""Address of one int32 an item: 0 if its next observation is its follower, else one more than its slot in the pool."""
POOL = 5
"""Address of the pool of next observations of their own, with as many slots as there are items."""
N_SLOTS = 6
"""How many slots, from the first one on, have ever been used."""
FREE = 7
"""Address of a stack, in int32, of the places that are free again."""
N_FREE = 8
STAGE = 9
"""Address of the next observations of the rows ``BEGIN`` up to ``END``; these go before all others."""
BEGIN, END = 10, 11

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
INT32 = 4


@kernel(INT, INTS, INT)
def follower_of(state: Ints, item: int) -> int:
    """Return the address of the observation that follows an item."""
    follower = item + state[N_ENVS]
    if follower >= state[N_ITEMS]:
        follower -= state[N_ITEMS]
    address: int = state[ITEMS] + follower * state[ITEM_NBYTES]
    return address


@kernel(INT, INTS, INT)
def slot_of(state: Ints, item: int) -> int:
    """Return the address of the slot in the pool that an item has."""
    address: int = state[POOL] + (int32_at(state[PLACES] + item * INT32) - 1) * state[ITEM_NBYTES]
    return address


@kernel(INT, INTS, INT)
def address_of(state: Ints, item: int) -> int:
    """Return the address of the next observation of an item."""
    staged = item - state[BEGIN] * state[N_ENVS]
    if staged >= 0 and item < state[END] * state[N_ENVS]:
        address: int = state[STAGE] + staged * state[ITEM_NBYTES]
        return address
    if int32_at(state[PLACES] + item * INT32):
        return slot_of(state, item)
    return follower_of(state, item)


@kernel(types.void, INTS, INT, INT)
def put(state: Ints, item: int, source: int) -> None:
    """Give an item that is not staged a next observation of its own, with the bytes at an address."""
    place = state[PLACES] + item * INT32
    if int32_at(place) == 0:
        if state[N_FREE]:
            state[N_FREE] -= 1
            put_int32(place, int32_at(state[FREE] + state[N_FREE] * INT32))
        else:  # the lowest that was never used: behind it, no memory has been touched
            state[N_SLOTS] += 1
            put_int32(place, state[N_SLOTS])
    copy_bytes(source, slot_of(state, item), state[ITEM_NBYTES], state[ITEM_NBYTES])


@kernel(types.void, INTS, INT)
def release(state: Ints, item: int) -> None:
    """Let the next observation of an item be its follower again."""
    place = state[PLACES] + item * INT32
    if int32_at(place):  # else nothing is written: this page of memory may never have been touched
        put_int32(state[FREE] + state[N_FREE] * INT32, int32_at(place))
        state[N_FREE] += 1
        put_int32(place, 0)


@kernel(types.void, INTS, INT, INT)
def assign(state: Ints, item: int, source: int) -> None:
    """Make the bytes at an address the next observation of an item that is not staged."""
    if differ(source, follower_of(state, item), state[ITEM_NBYTES], EVERYWHERE):
        put(state, item, source)
    else:
        release(state, item)


@kernel(types.void, INTS, INT, INT, nogil=False)
def stage_rows(state: Ints, begin: int, end: int) -> None:
    """Stage the rows from ``begin`` up to ``end``, none if they are equal, instead of those that were staged."""
    n_envs, item_nbytes = state[N_ENVS], state[ITEM_NBYTES]
    first, stop = state[BEGIN] * n_envs, state[END] * n_envs
    state[BEGIN], state[END] = 0, 0
    for item in range(first, stop):
        assign(state, item, state[STAGE] + (item - first) * item_nbytes)
    for item in range(begin * n_envs, end * n_envs):
        target = state[STAGE] + (item - begin * n_envs) * item_nbytes
        copy_bytes(address_of(state, item), target, item_nbytes, item_nbytes)
        release(state, item)
    state[BEGIN], state[END] = begin, end


@kernel(types.void, INTS, INTS, INTS, nogil=False)
def keep_followers(state: Ints, rows: Ints, envs: Ints) -> None:
    """Prepare for other observations at ``[rows, envs]``: next observations that are found there get their own."""
    for k in range(len(rows)):
        item = rows[k] * state[N_ENVS] + envs[k]
        before = item - state[N_ENVS]
        if before < 0:
            before += state[N_ITEMS]
        follower = follower_of(state, before)
        if address_of(state, before) == follower:
            put(state, before, follower)


@kernel(INT, INTS, INTS, INTS, BYTES, nogil=False)
def read(state: Ints, rows: Ints, envs: Ints, out: Bytes) -> int:
    """Copy the next observations at ``[rows, envs]``, which may be negative as in NumPy.

    :param out: is given their bytes, ``(n * item_nbytes,)``
    :return: the first position in ``rows`` and ``envs`` that is out of bounds, -1 if all are fine
    """
    n_envs, item_nbytes = state[N_ENVS], state[ITEM_NBYTES]
    n_rows = state[N_ITEMS] // n_envs
    for k in range(len(rows)):
        row = rows[k] + n_rows if rows[k] < 0 else rows[k]
        env = envs[k] + n_envs if envs[k] < 0 else envs[k]
        if row < 0 or row >= n_rows or env < 0 or env >= n_envs:
            return k
        source = address_of(state, row * n_envs + env)
        copy_bytes(source, out.ctypes.data + k * item_nbytes, item_nbytes, item_nbytes)
    return -1


@kernel(types.void, INTS, INTS, INTS, BYTES, nogil=False)
def write(state: Ints, rows: Ints, envs: Ints, values: Bytes) -> None:
    """Make ``values`` the next observations at ``[rows, envs]``, which are in bounds; the last one of equals stays.

    :param values: their bytes, ``(n * item_nbytes,)``
    """
    n_envs, item_nbytes = state[N_ENVS], state[ITEM_NBYTES]
    for k in range(len(rows)):
        source = values.ctypes.data + k * item_nbytes
        staged = rows[k] - state[BEGIN]
        if staged >= 0 and rows[k] < state[END]:
            target = state[STAGE] + (staged * n_envs + envs[k]) * item_nbytes
            copy_bytes(source, target, item_nbytes, item_nbytes)
        else:
            assign(state, rows[k] * n_envs + envs[k], source)
