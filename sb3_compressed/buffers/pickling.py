"""What copies and pickles of buffers contain.

Instead of method timers, they contain the methods that these have replaced. Other parts of a buffer have a
``__getstate__`` of their own: :class:`.CompressedArray` leaves out the rows after the last written one,
:class:`.FrameDeduplicator` the previous row, :class:`.CodecTrainer` its sample, :class:`.BatchPool` its memory, and
samplers what they can compute again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sb3_compressed.buffers.timing import MethodTimer, replaced_by_timer

__all__ = ["attributes_to_pickle"]

#: Attributes that are left out: the folder, and the folders of checkpoints. Copies and pickles are in memory.
LEFT_OUT = {"_storage", "_checkpoints"}


def attributes_to_pickle(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a buffer that its copies and pickles contain."""
    own = {name: value for name, value in attributes.items() if name not in LEFT_OUT}
    timed = [name for name, value in own.items() if isinstance(value, MethodTimer)]
    for name in timed:
        method = replaced_by_timer(own.pop(name))
        if method is not None:
            own[name] = method
    return own
