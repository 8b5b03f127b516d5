"""Reading slots without Python: where the payloads of many slots are, told by a kernel in one go.

Slots are tuples of bytes, and how CPython lays these out in memory is known (``Include/cpython/tupleobject.h``,
``bytesobject.h``). Going from object to object in Python takes about as long as decoding what is found. Whether the
interpreter that runs this keeps to that layout is tried when the module is imported.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.byte_kernels import INT, copy_bytes
from sb3_compressed.jit import BYTE_ROWS, BYTES, INT_ROWS, INTS, kernel, prefetch, word_at
from sb3_compressed.probes import holds

__all__ = ["LAYOUT_IS_KNOWN", "copy_known", "locate_payloads"]

TYPE = object.__basicsize__ - 8  # the last field of what every object begins with
SIZE = object.__basicsize__  # of an object of variable size
LINE = 64  # bytes that caches fetch at once
ITEMS = tuple.__basicsize__
CONTENT = bytes.__basicsize__ - 1  # which counts the zero behind them


@kernel(INT, INT)
def int64_at(address: int) -> int:
    """Read the int64 at an address."""
    return np.int64(word_at(address))  # type: ignore[return-value]


@kernel(INT, INT, INT, INT, INT, INT, INT_ROWS, INT_ROWS)
def locate_payloads(
    slots: int,
    n_slots: int,
    n_frames: int,
    tuple_type: int,
    bytes_type: int,
    codecs: NDArray[np.int64],
    places: NDArray[np.int64],
) -> int:
    """Tell where the payloads of slots are, if each slot is a tuple of codecs and of ``n_frames`` payloads in all.

    :param slots: address of the references to the slots, which the caller keeps alive
    :param n_slots: how many there are
    :param tuple_type: ``id(tuple)``
    :param bytes_type: ``id(bytes)``
    :param codecs: is given the ``id`` of each different codec and the first payload that it wrote, ``(at most, 2)``
    :param places: is given the address of each payload's bytes, how many they are, and the number of its codec,
        ``(n_slots * n_frames, 3)``
    :return: how many different codecs there are; 0 if a slot is of another kind, or there is no room for all codecs
    """
    # Objects lie anywhere in memory. Fetching them all at once takes a fraction of waiting for one after the other.
    for k in range(n_slots):
        prefetch(int64_at(slots + 8 * k) + SIZE)
    n_codecs = 0
    written = 0
    for k in range(n_slots):
        slot = int64_at(slots + 8 * k)
        if slot == 0 or int64_at(slot + TYPE) != tuple_type:
            return 0
        end = (k + 1) * n_frames
        writer = -1
        for item in range(int64_at(slot + SIZE)):
            part = int64_at(slot + ITEMS + 8 * item)
            if int64_at(part + TYPE) != bytes_type:
                writer = 0
                while writer < n_codecs and codecs[writer, 0] != part:
                    writer += 1
                if writer == len(codecs):
                    return 0
                if writer == n_codecs:
                    codecs[writer, 0] = part
                    codecs[writer, 1] = written
                    n_codecs += 1
            elif writer < 0 or written == end:
                return 0
            else:
                places[written, 0] = part + CONTENT
                places[written, 1] = int64_at(part + SIZE)
                places[written, 2] = writer
                prefetch(part + CONTENT + LINE)
                written += 1
        if written != end:
            return 0
    return n_codecs


@kernel(types.void, INT, INT, INT_ROWS, INTS, INT_ROWS, BYTE_ROWS, BYTE_ROWS, BYTES)
def copy_known(
    start: int,
    n_frames: int,
    places: NDArray[np.int64],
    same: NDArray[np.int64],
    known_places: NDArray[np.int64],
    known_frames: NDArray[np.uint8],
    frames: NDArray[np.uint8],
    done: NDArray[np.uint8],
) -> None:
    """Copy the frames of payloads that the slots at the same places of another batch have as well.

    :param start: the first payload to look at
    :param n_frames: payloads of a slot
    :param places: as :func:`locate_payloads` gives them, ``(n, 3)``
    :param same: for each codec, its number among those of the other batch, -1 if it is not there
    :param known_places: as ``places``, of the other batch
    :param known_frames: the frames of the other batch, ``(n, frame_nbytes)``
    :param frames: is given those that are the same, ``(n, frame_nbytes)``
    :param done: is given 1 for these, from ``start`` on
    """
    size = frames.shape[1]
    for index in range(done.size):
        k = start + index
        begin = k - k % n_frames
        for other in range(begin, begin + n_frames):
            # One object may be two codecs' payload, such as the only one that Python has of a single byte.
            if known_places[other, 0] == places[k, 0] and known_places[other, 2] == same[places[k, 2]]:
                copy_bytes(known_frames.ctypes.data + other * size, frames.ctypes.data + k * size, size, size)
                done[index] = 1
                break


PAYLOADS = [b"one", b"", b"three", b"4"]


def _layout_is_known() -> bool:
    """Try the kernel on slots of which all is known."""
    if sys.implementation.name != "cpython" or object.__itemsize__ != 0 or sys.maxsize != 2**63 - 1:
        return False
    codec = object()
    # The header of an object as ctypes reads it, before a kernel does.
    if ctypes.c_int64.from_address(id(codec) + TYPE).value != id(object):
        return False
    slots = np.empty(2, dtype=object)
    slots[:] = [(codec, *PAYLOADS[:2]), (codec, *PAYLOADS[2:])]
    codecs, places = np.ones((4, 2), dtype=np.int64), np.ones((4, 3), dtype=np.int64)
    n_codecs = locate_payloads(slots.ctypes.data, 2, 2, id(tuple), id(bytes), codecs, places)
    found = [ctypes.string_at(address, length) for address, length, _ in places.tolist()]
    return n_codecs == 1 and codecs[0].tolist() == [id(codec), 0] and not places[:, 2].any() and found == PAYLOADS


LAYOUT_IS_KNOWN = holds(_layout_is_known)
"""Whether this interpreter's objects are laid out as :func:`locate_payloads` reads them."""
