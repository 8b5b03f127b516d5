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

from sb3_compressed.jit import INTS, kernel, prefetch, word_at

__all__ = ["LAYOUT_IS_KNOWN", "locate_payloads"]

INT = types.int64

TYPE = object.__basicsize__ - 8  # the last field of what every object begins with
SIZE = object.__basicsize__  # of an object of variable size
LINE = 64  # bytes that caches fetch at once
ITEMS = tuple.__basicsize__
BYTES = bytes.__basicsize__ - 1  # which counts the zero behind them


@kernel(INT, INT)
def int_at(address: int) -> int:
    """Read the int64 at an address."""
    return np.int64(word_at(address))  # type: ignore[return-value]


@kernel(INT, INT, INT, INT, INT, INT, INTS, INTS, INTS, INTS, INTS)
def locate_payloads(
    slots: int,
    n_slots: int,
    n_frames: int,
    tuple_type: int,
    bytes_type: int,
    codecs: NDArray[np.int64],
    first: NDArray[np.int64],
    writers: NDArray[np.int64],
    addresses: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> int:
    """Tell where the payloads of slots are, if each slot is a tuple of codecs and of ``n_frames`` payloads in all.

    :param slots: address of the references to the slots, which the caller keeps alive
    :param n_slots: how many there are
    :param tuple_type: ``id(tuple)``
    :param bytes_type: ``id(bytes)``
    :param codecs: is given the ``id`` of each different codec, ``(at most so many,)``
    :param first: is given the first payload that each of them wrote, of the same shape
    :param writers: is given the number of the codec of each payload, ``(n_slots * n_frames,)``
    :param addresses: is given the address of each payload's bytes, ``(n_slots * n_frames,)``
    :param lengths: is given how many they are, ``(n_slots * n_frames,)``
    :return: how many different codecs there are; 0 if a slot is of another kind, or there is no room for all codecs
    """
    # Objects lie anywhere in memory. Fetching them all at once takes a fraction of waiting for one after the other.
    for k in range(n_slots):
        prefetch(int_at(slots + 8 * k) + SIZE)
    n_codecs = 0
    written = 0
    for k in range(n_slots):
        slot = int_at(slots + 8 * k)
        if slot == 0 or int_at(slot + TYPE) != tuple_type:
            return 0
        end = (k + 1) * n_frames
        writer = -1
        for item in range(int_at(slot + SIZE)):
            part = int_at(slot + ITEMS + 8 * item)
            if int_at(part + TYPE) != bytes_type:
                writer = 0
                while writer < n_codecs and codecs[writer] != part:
                    writer += 1
                if writer == codecs.size:
                    return 0
                if writer == n_codecs:
                    codecs[writer] = part
                    first[writer] = written
                    n_codecs += 1
            elif writer < 0 or written == end:
                return 0
            else:
                writers[written] = writer
                addresses[written] = part + BYTES
                lengths[written] = int_at(part + SIZE)
                prefetch(part + BYTES + LINE)
                written += 1
        if written != end:
            return 0
    return n_codecs


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
    codecs, first, writers, addresses, lengths = np.ones((5, 4), dtype=np.int64)
    n_codecs = locate_payloads(
        slots.ctypes.data, 2, 2, id(tuple), id(bytes), codecs, first, writers, addresses, lengths
    )
    found = [ctypes.string_at(*place) for place in zip(addresses.tolist(), lengths.tolist(), strict=True)]
    return (n_codecs, codecs[0], first[0], *writers) == (1, id(codec), 0, 0, 0, 0, 0) and found == PAYLOADS


LAYOUT_IS_KNOWN = _layout_is_known()
"""Whether this interpreter's objects are laid out as :func:`locate_payloads` reads them."""
