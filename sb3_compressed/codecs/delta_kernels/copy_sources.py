"""Sources of a delta: the positions that bytes are copied from, shared by the encoder and the decoder.

Source positions count the bytes of all reference frames, one after the other, followed by the bytes of the frame that
are decoded already. The source of the byte at ``position`` of the frame is at ``offset + position``.
"""

from __future__ import annotations

from numba import types

from sb3_compressed.kernels.byte_kernels import INT, STEP, WORD
from sb3_compressed.kernels.jit import helper, put_word, stack_memory, word_at

__all__ = ["LONG", "N_RECENT", "PAIR", "address_of", "fill_recent", "n_readable", "new_recent", "push_offset"]

LONG = 255  # marks a number of two bytes, which follow
N_RECENT = 4  # recent offsets that one byte can select
PAIR = types.UniTuple(types.int64, 2)  # type: ignore[no-untyped-call]
new_recent = stack_memory(N_RECENT)
"""Return the address of scratch memory for the recent offsets."""


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


@helper(INT, INT, INT, INT, INT)
def n_readable(source: int, references_size: int, position: int, size: int) -> int:
    """Return how many bytes of a source are readable for the frame from ``position`` on; 0 if it is invalid.

    Bytes of the frame itself are readable from a whole step back: closer ones may not be written yet when a step is
    copied.
    """
    if source < 0:
        return 0
    if source < references_size:
        return min(references_size - source, size - position)
    return size - position if source - references_size + STEP <= position else 0


@helper(INT, INT, INT, INT, INT)
def address_of(source: int, references: int, references_size: int, frame: int) -> int:
    """Return the address of a source position."""
    return references + source if source < references_size else frame + source - references_size
