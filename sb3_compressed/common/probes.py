"""Probes test assumptions beyond the guarantees of Python and NumPy at import; if one fails, a fallback is used.

===========================================  =======================================  ================================
Assumption                                   Used by, to                              Fallback
===========================================  =======================================  ================================
``payload_kernels.LAYOUT_IS_KNOWN``: the     :mod:`.arrays.payload_batch`, to locate  Python locates the payloads
memory layout of tuples and bytes            payloads in a kernel
``random_words.STATE_IS_READABLE``: the      :mod:`.buffers.predicted_batch`, to      no batch is decoded ahead
memory of NumPy's global generator           predict what SB3 will draw
===========================================  =======================================  ================================

With fallbacks, buffers give the same results but are slower. The environment variable
``SB3_COMPRESSED_FORCE_FALLBACKS=1`` makes every probe fail, for tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["FORCE_FALLBACKS", "holds"]

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
