"""Probes test assumptions beyond the guarantees of Python and NumPy at import; if one fails, a fallback is used.

============================================  =======================================  ================================
Assumption                                    Used by, to                              Fallback
============================================  =======================================  ================================
:func:`references_are_counted`: the           :mod:`.arrays.batch_pool`, to reuse      each batch has new memory
interpreter counts references                 batch memory
``payload_kernels.LAYOUT_IS_KNOWN``: the      :mod:`.arrays.payload_batch`, to locate  Python locates the payloads
memory layout of tuples and bytes             payloads in a kernel
============================================  =======================================  ================================

With fallbacks, buffers give the same results but are slower. The environment variable
``SB3_COMPRESSED_FORCE_FALLBACKS=1`` makes every probe fail, for tests.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import numpy as np

__all__ = ["FORCE_FALLBACKS", "holds", "references_are_counted"]

FORCE_FALLBACKS = os.environ.get("SB3_COMPRESSED_FORCE_FALLBACKS", "0") not in ("", "0")
"""Whether every probe should fail."""


def holds(probe: Callable[[], bool]) -> bool:
    """Return the result of a probe, ``False`` if it raises or fallbacks are forced."""
    if FORCE_FALLBACKS:
        return False
    try:
        return bool(probe())
    except Exception:  # the interpreter lacks a function that the probe calls
        return False


def references_are_counted() -> bool:
    """Return whether Python immediately counts all references to an array, including those of views on it."""
    block = np.empty(64, dtype=np.uint8)
    alone = sys.getrefcount(block)
    holders: list[object] = [np.ndarray((8, 8), np.uint8, block)]
    counts = [sys.getrefcount(block)]
    for make_holder in (
        lambda: holders[0][2:4],  # type: ignore[index]
        lambda: np.ndarray((2, 4), np.float64, block).reshape(-1).view(np.int64),
        lambda: block.data,
        lambda: np.asarray(block.data[8:]),
        lambda: [block],
    ):
        holders.append(make_holder())
        del holders[0]
        counts.append(sys.getrefcount(block))
    holders.clear()
    return min(counts) > alone == sys.getrefcount(block)
