"""What slots really take: every object they refer to, once, as Python's allocator lays it out."""

from __future__ import annotations

import sys
from typing import Any

from numpy.typing import NDArray

from sb3_compressed.codecs import TrainableCodec

__all__ = ["allocated_nbytes", "codec_state_nbytes", "slots_nbytes"]

ALIGNMENT = 16  # of pymalloc and of glibc's malloc
SMALL = 512  # up to here pymalloc serves, without a header of its own
MALLOC_HEADER = 8


def slots_nbytes(*slot_arrays: NDArray[Any]) -> int:
    """Return the bytes that object arrays of slots take together with all they refer to.

    What is referred to more than once, as shared payloads and what codecs have learned, counts once. The walk takes
    time in proportion to the slots written.
    """
    total = 0
    seen: set[int] = set()
    for slots in slot_arrays:
        if not slots.flags.writeable:  # nothing was written yet
            continue
        total += slots.nbytes
        if slots.dtype != object:  # addresses
            continue
        for slot in slots.ravel().tolist():
            if slot is None or id(slot) in seen:
                continue
            seen.add(id(slot))
            total += allocated_nbytes(slot)
            for part in slot if isinstance(slot, tuple) else ():
                if id(part) not in seen:
                    seen.add(id(part))
                    total += part.nbytes if isinstance(part, TrainableCodec) else allocated_nbytes(part)
    return total


def codec_state_nbytes(*slot_arrays: NDArray[Any]) -> int:
    """Return the part of :func:`slots_nbytes` that is what codecs have learned: it does not grow with every slot."""
    slots = (slot for array in slot_arrays if array.dtype == object for slot in array.ravel().tolist())
    codecs = {id(part): part for slot in slots if isinstance(slot, tuple) for part in slot if type(part) is not bytes}
    return sum(codec.nbytes for codec in codecs.values())


def allocated_nbytes(obj: object) -> int:
    """Return the bytes that an object takes of its own, as the allocator rounds them."""
    nbytes = sys.getsizeof(obj)
    if nbytes > SMALL:
        nbytes += MALLOC_HEADER
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
