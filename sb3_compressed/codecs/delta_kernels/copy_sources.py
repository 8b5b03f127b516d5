"""Sources of a delta: the positions that bytes are copied from, shared by the encoder and the decoder.

Source positions count the bytes of all reference frames, one after the other, followed by the bytes of the frame that
are decoded already. The source of the byte at ``position`` of the frame is at ``offset + position``.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import types

from sb3_compressed.kernels.byte_kernels import INT, STEP, WORD
from sb3_compressed.kernels.jit import helper, put_word, stack_memory, word_at

__all__ = [
    "FRAME",
    "LONG",
    "N_RECENT",
    "PAIR",
    "Frame",
    "address_of",
    "fill_recent",
    "n_readable",
    "new_recent",
    "push_offset",
]

LONG = 255  # marks a number of two bytes, which follow
N_RECENT = 4  # recent offsets that one byte can select
PAIR = types.UniTuple(types.int64, 2)  # type: ignore[no-untyped-call]
new_recent = stack_memory(N_RECENT)
"""Return the address of scratch memory for the recent offsets."""


class Frame(NamedTuple):
    """A frame, and the references that its bytes may be copied from.

    :param address: address of the frame
    :param size: its bytes
    :param references: address of the references
    :param references_nbytes: the bytes of all of them
    """

    address: int
    size: int
    references: int
    references_nbytes: int


# Kernels pass the numbers of a tuple in registers, as separate arguments.
FRAME = types.NamedUniTuple(INT, len(Frame._fields), Frame)  # type: ignore[no-untyped-call]


@helper(types.void, INT, INT)
def fill_recent(recent: int, offset: int) -> None:
    """Replace all recent offsets by one.

    :param recent: address of the recent offsets
    """
    for k in range(N_RECENT):
        put_word(recent + k * WORD, offset)


@helper(types.void, INT, INT, INT)
def push_offset(recent: int, index: int, offset: int) -> None:
    """Insert an offset before the recent ones, and remove the one at ``index``."""
    for k in range(index, 0, -1):
        put_word(recent + k * WORD, word_at(recent + (k - 1) * WORD))
    put_word(recent, offset)


@helper(INT, FRAME, INT, INT)
def n_readable(frame: Frame, source: int, position: int) -> int:
    """Return how many bytes of a source are readable for the frame from ``position`` on; 0 if it is invalid.

    Bytes of the frame itself are readable from a whole step back: closer ones may not be written yet when a step is
    copied.
    """
    if source < 0:
        return 0
    if source < frame.references_nbytes:
        return min(frame.references_nbytes - source, frame.size - position)
    return frame.size - position if source - frame.references_nbytes + STEP <= position else 0


@helper(INT, FRAME, INT)
def address_of(frame: Frame, source: int) -> int:
    """Return the address of a source position."""
    if source < frame.references_nbytes:
        return frame.references + source
    return frame.address + source - frame.references_nbytes
