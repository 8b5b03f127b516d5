"""What logs consist of: segments, memory that was claimed in them, and blocks in which their slots are kept."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

__all__ = ["Claim", "KeptSlots", "SlotSegment"]


class SlotSegment(Protocol):
    """A part of a log, which is only appended to."""

    @property
    def number(self) -> int:
        """Its number in the log."""
        ...

    @property
    def id(self) -> int:
        """A random number, with which the seeds of checksums are XORed."""
        ...

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """Its memory, which may be replaced by a larger copy."""
        ...

    @property
    def next_offset(self) -> int:
        """Where the next bytes will be appended."""
        ...


class KeptSlots:
    """A block in which a log neither frees nor moves slots, not even in a handler of a signal that interrupts it.

    References are valid in it that no table has. An object that is not used as a block keeps slots as long as it lives.

    :param keepers: those of the log
    """

    def __init__(self, keepers: WeakSet[Any]) -> None:
        self._keepers = keepers
        keepers.add(self)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._keepers.discard(self)


class Claim(NamedTuple):
    """Memory for the next slots and payloads of a log.

    :param segment: the segment that they are appended to
    :param offset: where they begin in it
    :param room: the memory, ``(nbytes,)``
    """

    segment: SlotSegment
    offset: int
    room: NDArray[np.uint8]
