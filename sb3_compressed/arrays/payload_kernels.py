"""Kernels that locate the payloads of slots in memory, and copy frames that are decoded already.

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

from sb3_compressed.byte_kernels import INT, copy_bytes
from sb3_compressed.jit import BYTE_ROWS, BYTES, INT_ROWS, INTS, helper, kernel, prefetch, word_at
from sb3_compressed.probes import holds

__all__ = ["LAYOUT_IS_KNOWN", "OBJECT_TYPES", "copy_decoded", "locate_payloads"]

TYPE = object.__basicsize__ - 8  # the last field of the header of every object
SIZE = object.__basicsize__  # of an object of variable size
LINE = 64  # bytes of a cache line
ITEMS = tuple.__basicsize__
CONTENT = bytes.__basicsize__ - 1  # which includes the terminating zero
OBJECT_TYPES = np.array([id(type(None)), id(tuple), id(bytes)])


@helper(INT, INT)
def int64_at(address: int) -> int:
    """Read the int64 at an address."""
    return np.int64(word_at(address))  # type: ignore[return-value]


@kernel(INT, INT, INT, INT, INT, INTS, INT_ROWS, INTS, INT_ROWS)
def locate_payloads(
    slots: int,
    n_slots: int,
    n_frames: int,
    n_codecs: int,
    object_types: NDArray[np.int64],
    codecs: NDArray[np.int64],
    offsets: NDArray[np.int64],
    places: NDArray[np.int64],
) -> int:
    """Locate the payloads of slots: of ``n_frames`` payloads each, of whole items, or not written yet.

    :param slots: address of the references to the slots, which the caller keeps alive
    :param n_slots: the number of slots
    :param n_codecs: 1 if the slots contain payloads only, all of codec 0; 0 if codecs precede their payloads
    :param object_types: the addresses of the types of ``None``, tuples and bytes
    :param codecs: receives the address of each different codec, and the slot and position where it is found first,
        ``(at most, 3)``
    :param offsets: receives the index of the first payload of each slot, and the number of payloads, ``(n_slots + 1,)``
    :param places: receives the address of each payload's bytes, their number, and the number of its codec,
        ``(n_slots * n_frames, 3)``
    :return: the number of different codecs; -1 for an invalid slot, or if there are more codecs than ``codecs`` has
        room for
    """
    none_type, tuple_type, bytes_type = object_types
    has_codecs = n_codecs == 0
    # Objects lie anywhere in memory. Fetching them all at once takes a fraction of waiting for one after the other.
    for k in range(n_slots):
        prefetch(int64_at(slots + 8 * k) + SIZE)
    written = 0
    for k in range(n_slots):
        slot = int64_at(slots + 8 * k)
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
    offsets[n_slots] = written
    return n_codecs


@kernel(types.void, INT, INT, INT_ROWS, INTS, INT_ROWS, BYTE_ROWS, BYTE_ROWS, BYTES)
def copy_decoded(
    start: int,
    n_frames: int,
    places: NDArray[np.int64],
    same: NDArray[np.int64],
    decoded_places: NDArray[np.int64],
    decoded_frames: NDArray[np.uint8],
    frames: NDArray[np.uint8],
    done: NDArray[np.uint8],
) -> None:
    """Copy the frames of payloads that the items at the same positions of another batch have as well.

    :param start: the first payload to copy
    :param n_frames: payloads of an item
    :param places: as :func:`locate_payloads` returns them, ``(n, 3)``
    :param same: for each codec its number in the other batch, -1 if it is not there
    :param decoded_places: ``places`` of the other batch
    :param decoded_frames: the frames of the other batch, ``(n, frame_nbytes)``
    :param frames: receives the frames that are the same, ``(n, frame_nbytes)``
    :param done: receives 1 for these, from ``start`` on
    """
    size = frames.shape[1]
    for index in range(done.size):
        k = start + index
        begin = k - k % n_frames
        for other in range(begin, begin + n_frames):
            # Python may use one object for equal payloads of two codecs, as for all payloads of one byte.
            if decoded_places[other, 0] == places[k, 0] and decoded_places[other, 2] == same[places[k, 2]]:
                copy_bytes(decoded_frames.ctypes.data + other * size, frames.ctypes.data + k * size, size, size)
                done[index] = 1
                break


PAYLOADS = [b"one", b"", b"three", b"4"]


def _layout_is_known() -> bool:
    """Locate payloads of slots whose content is known."""
    if sys.implementation.name != "cpython" or object.__itemsize__ != 0 or sys.maxsize != 2**63 - 1:
        return False
    codec = object()
    # The header of an object as ctypes reads it, before a kernel does.
    if ctypes.c_int64.from_address(id(codec) + TYPE).value != id(object):
        return False
    slots = np.empty(4, dtype=object)
    slots[:] = [(codec, *PAYLOADS[:2]), None, (codec, *PAYLOADS[2:]), (codec, PAYLOADS[0])]
    codecs, places = np.ones((4, 3), dtype=np.int64), np.ones((8, 3), dtype=np.int64)
    offsets = np.ones(5, dtype=np.int64)
    n_codecs = locate_payloads(slots.ctypes.data, 4, 2, 0, OBJECT_TYPES, codecs, offsets, places)
    found = [ctypes.string_at(address, length) for address, length, _ in places[:5].tolist()]
    return (
        n_codecs == 1
        and codecs[0].tolist() == [id(codec), 0, 0]
        and offsets.tolist() == [0, 2, 2, 4, 5]
        and not places[:5, 2].any()
        and found == [*PAYLOADS, PAYLOADS[0]]
    )


LAYOUT_IS_KNOWN = holds(_layout_is_known)
"""Whether objects of this interpreter have the layout that :func:`locate_payloads` reads."""
