"""Probes test assumptions beyond the guarantees of Python and NumPy at import; if one fails, a fallback is used.

============================================  =======================================  ================================
Assumption                                    Used by, to                              Fallback
============================================  =======================================  ================================
:func:`references_are_counted`: the           :mod:`.arrays.batch_pool`, to reuse      each batch has new memory
interpreter counts references                 batch memory
:func:`metadata_is_handed_on`: copies of an   :mod:`.buffers.base`, to pass slots      SB3's code copies observations
array keep the metadata of its dtype          through SB3's code                       before they are encoded
``payload_kernels.LAYOUT_IS_KNOWN``: the      :mod:`.arrays.payload_batch`, to locate  Python locates the payloads
memory layout of tuples and bytes             payloads in a kernel
:func:`call_stack_is_visible`: the running    :mod:`.callbacks.checkpoint_callback`,   the folder stays locked until
calls of each thread can be inspected         to detect failed trainings               ``callback.close()``
============================================  =======================================  ================================

With fallbacks, buffers give the same results but are slower. One guarantee is weaker: without metadata, a codec that
raises during ``add`` may leave the new row partly written, as in SB3. The environment variable
``SB3_COMPRESSED_FORCE_FALLBACKS=1`` makes every probe fail, for tests.
"""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections.abc import Callable

import numpy as np

__all__ = ["FORCE_FALLBACKS", "call_stack_is_visible", "holds", "metadata_is_handed_on", "references_are_counted"]

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


def metadata_is_handed_on() -> bool:
    """Return whether copies and views of arrays, made as SB3's code makes them, keep the metadata of the dtype."""
    metadata = {"probe": 1}
    for dtype in (np.dtype(object, metadata=metadata), np.dtype(np.int64, metadata=metadata)):
        array = np.zeros(4, np.int64).astype(object).astype(dtype) if dtype.hasobject else np.zeros(4, dtype)
        views = (array, array.reshape(2, 2), array[1:], array[[0, 1]])
        copies = [duplicate for view in views for duplicate in (np.array(view), view.copy(), copy.deepcopy(view))]
        if any(derived.dtype.metadata != metadata for derived in (*views, *copies)):
            return False
    return True


def call_stack_is_visible() -> bool:
    """Return whether the call stacks of threads, with their functions and local variables, can be inspected."""
    local = object()
    frame = sys._current_frames()[threading.get_ident()]
    return frame.f_code.co_name == "call_stack_is_visible" and frame.f_locals.get("local") is local
