"""Kernels that locate the payloads of slots in memory, and copy decoded frames.

Slots are tuples of bytes, whose layout in CPython's memory is documented (``Include/cpython/tupleobject.h``,
``bytesobject.h``). Going from object to object in Python takes about as long as decoding. A probe at import verifies
that the running interpreter has this layout.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.common.probes import holds
from sb3_compressed.kernels.byte_kernels import INT, copy_bytes
from sb3_compressed.kernels.jit import (
    BYTE_ROWS,
    BYTES,
    INT_ROWS,
    INTS,
    READ_INTS,
    int64_at,
    kernel,
    prefetch,
)

__all__ = [
    "LAYOUT_IS_KNOWN",
    "TYPE_ADDRESSES",
    "concatenate_payloads",
    "copy_repeated",
    "find_repeated",
    "locate_payloads",
]

TYPE = object.__basicsize__ - 8  # the last field of the header of every object
SIZE = object.__basicsize__  # of an object of variable size
LINE = 64  # bytes of a cache line
ITEMS = tuple.__basicsize__
CONTENT = bytes.__basicsize__ - 1  # which includes the terminating zero
HASH_FACTOR = 0x9E3779B1
TYPE_ADDRESSES = np.array([id(type(None)), id(tuple), id(bytes)])
"""The addresses of the types of objects in slots, which each object has in its header. They differ between processes,
and machine code is cached, so kernels get them as an argument."""


@kernel(INT, READ_INTS, INT, INT, INTS, INT_ROWS, INTS, INT_ROWS)
def locate_payloads(
    slots: NDArray[np.int64],
    n_frames: int,
    n_codecs: int,
    type_addresses: NDArray[np.int64],
    codecs: NDArray[np.int64],
    offsets: NDArray[np.int64],
    places: NDArray[np.int64],
) -> int:
    """Locate the payloads of slots: of ``n_frames`` payloads each, of whole items, or not written yet.

    :param slots: the addresses of the slots, ``(n_slots,)``, in the memory of an object array that lives on
    :param n_frames: the number of frames of an item
    :param n_codecs: 1 if the slots contain payloads only, all of codec 0; 0 if handles of codecs precede their payloads
    :param type_addresses: :data:`TYPE_ADDRESSES`
    :param codecs: receives the address of each different handle, and the slot and position where it is found first,
        ``(at most, 3)``
    :param offsets: receives the index of the first payload of each slot, and the number of payloads, ``(n_slots + 1,)``
    :param places: receives the address of each payload's bytes, their number, and the number of its codec,
        ``(n_slots * n_frames, 3)``
    :return: the number of different codecs; -1 for an invalid slot, or if there are more codecs than ``codecs`` has
        room for
    """
    none_type, tuple_type, bytes_type = type_addresses
    has_codecs = n_codecs == 0
    # Objects lie anywhere in memory. Fetching them all at once takes a fraction of waiting for one after the other.
    for slot in slots:
        prefetch(slot + SIZE)
    written = 0
    for k in range(slots.size):
        slot = slots[k]
        offsets[k] = written
        if slot == 0 or int64_at(slot + TYPE) == none_type:
            continue
        is_tuple = int64_at(slot + TYPE) == tuple_type
        writer = -1 if has_codecs else 0
        for item in range(int64_at(slot + SIZE) if is_tuple else 1):
            part = int64_at(slot + ITEMS + 8 * item) if is_tuple else slot
            if int64_at(part + TYPE) != bytes_type:
                if not (has_codecs and is_tuple):
                    return -1
                writer = 0
                while writer < n_codecs and codecs[writer, 0] != part:
                    writer += 1
                if writer == len(codecs):
                    return -1
                if writer == n_codecs:
                    codecs[writer, 0] = part
                    codecs[writer, 1] = k
                    codecs[writer, 2] = item
                    n_codecs += 1
            elif writer < 0 or written == offsets[k] + n_frames:
                return -1
            else:
                places[written, 0] = part + CONTENT
                places[written, 1] = int64_at(part + SIZE)
                places[written, 2] = writer
                prefetch(part + CONTENT + LINE)
                written += 1
        if written != offsets[k] + n_frames and written != offsets[k] + 1:
            return -1
    offsets[slots.size] = written
    return n_codecs


@kernel(INT, INT_ROWS, INTS, INTS, INTS, BYTES)
def find_repeated(
    places: NDArray[np.int64],
    table: NDArray[np.int64],
    first: NDArray[np.int64],
    repeated: NDArray[np.int64],
    is_repeated: NDArray[np.uint8],
) -> int:
    """Find the payloads that occur several times in a batch.

    :param places: as :func:`locate_payloads` returns them, ``(n, 3)``
    :param table: scratch memory for a hash table; its length is a power of two above ``n``
    :param first: receives for each payload the index of the first one at its address and of its codec, ``(n,)``
    :param repeated: receives the indices of the payloads that are not the first one, ``(at most n,)``
    :param is_repeated: receives 1 for these, else 0, ``(n,)``
    :return: the number of payloads that are not the first one
    """
    table[:] = -1
    n_repeated = 0
    for k in range(len(places)):
        address = places[k, 0]
        slot = (address >> 4) * HASH_FACTOR >> 16 & (table.size - 1)
        while table[slot] >= 0 and places[table[slot], 0] != address:
            slot = (slot + 1) & (table.size - 1)
        if table[slot] < 0:
            table[slot] = k
        same = table[slot]
        # Python may use one object for equal payloads of two codecs, and payloads without bytes have no address.
        is_same = places[same, 1] == places[k, 1] and places[same, 2] == places[k, 2]
        first[k] = same if is_same else k
        is_repeated[k] = first[k] != k
        if is_repeated[k]:
            repeated[n_repeated] = k
            n_repeated += 1
    return n_repeated


@kernel(types.void, INTS, INTS, BYTE_ROWS)
def copy_repeated(repeated: NDArray[np.int64], first: NDArray[np.int64], frames: NDArray[np.uint8]) -> None:
    """Copy the frames of payloads that occur several times.

    :param repeated: the indices of payloads that are not the first one
    :param first: as :func:`find_repeated` returns it, ``(n,)``
    :param frames: the frames of payloads that are the first one; receives the others, ``(n, frame_nbytes)``
    """
    size, start = frames.shape[1], frames.ctypes.data
    for k in repeated:
        copy_bytes(start + first[k] * size, start + k * size, size, size)


@kernel(types.void, INT_ROWS, BYTES)
def concatenate_payloads(places: NDArray[np.int64], content: NDArray[np.uint8]) -> None:
    """Copy payloads to contiguous memory.

    :param places: as :func:`locate_payloads` returns them, ``(n, 3)``
    :param content: receives the bytes of the payloads, one after the other, ``(sum of their lengths,)``
    """
    to = content.ctypes.data
    for k in range(len(places)):
        length = places[k, 1]
        copy_bytes(places[k, 0], to, length, length)
        to += length


PAYLOADS = [b"one", b"", b"three", b"4"]


def _layout_is_known() -> bool:
    """Locate payloads of slots whose content is known."""
    if sys.implementation.name != "cpython" or object.__itemsize__ != 0 or sys.maxsize != 2**63 - 1:
        return False
    handle = object()
    # The header of an object as ctypes reads it, before a kernel does.
    if ctypes.c_int64.from_address(id(handle) + TYPE).value != id(object):
        return False
    slots = np.empty(4, dtype=object)
    slots[:] = [(handle, *PAYLOADS[:2]), None, (handle, *PAYLOADS[2:]), (handle, PAYLOADS[0])]
    codecs, places = np.ones((4, 3), dtype=np.int64), np.ones((8, 3), dtype=np.int64)
    offsets = np.ones(5, dtype=np.int64)
    n_codecs = locate_payloads(np.frombuffer(slots, np.int64), 2, 0, TYPE_ADDRESSES, codecs, offsets, places)
    found = [ctypes.string_at(address, length) for address, length, _ in places[:5].tolist()]
    return (
        n_codecs == 1
        and codecs[0].tolist() == [id(handle), 0, 0]
        and offsets.tolist() == [0, 2, 2, 4, 5]
        and not places[:5, 2].any()
        and found == [*PAYLOADS, PAYLOADS[0]]
    )


LAYOUT_IS_KNOWN = holds(_layout_is_known)
"""Whether objects of this interpreter have the layout that :func:`locate_payloads` reads."""
