"""Logs for the tests of slots, and the codecs that write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from slot_objects import Slot, load_slots

from sb3_compressed.arrays.memory_log import MemoryLog
from sb3_compressed.arrays.slot_log import SlotLog
from sb3_compressed.codecs import TrainableCodec
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.codecs.zstd_dict import ZstdDict
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.log_files import segment_numbers

CODECS: list[TrainableCodec] = [Delta(1), Delta(2), ZstdDict(3), Delta(1)]
"""Two of them are equal, but not the same: one of both is written."""

#: Of the segment that slots are written to first; a log begins with a snapshot.
FIRST = 1


def new_log(folder: Path) -> Log:
    log = Log.create(folder)
    log.begin_segment([])
    log.begin_segment()
    return log


def opened(folder: Path) -> Log:
    """Open a log for reading, with all segments."""
    log = Log.open(folder)
    for segment in log.open_chain():
        assert all(segment.records())
    for number in segment_numbers(folder):
        segment = log.open_segment(number)
        log.ids[number] = segment.id
        segment.close()
    return log


def keep(log: Log, numbers: list[int]) -> None:
    """Delete all segments but some."""
    log.begin_segment([])
    log.drop_segments(numbers)


def assert_same_slots(found: Any, expected: list[Slot]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert type(ours) is type(theirs)
        assert _with_each_codec_once(ours) == _with_each_codec_once(theirs)


def _with_each_codec_once(slot: Slot) -> Slot:
    """Return a slot that does not name a codec equal to the one before."""
    if not isinstance(slot, tuple):
        return slot
    parts: list[Any] = []
    codec = None
    for part in slot:
        if isinstance(part, bytes) or part != codec:
            parts.append(part)
            codec = codec if isinstance(part, bytes) else part
    return tuple(parts)


Read = Callable[[SlotLog, NDArray[np.int64]], Any]


def copied(reader: SlotLog, addresses: NDArray[np.int64]) -> Any:
    """Return slots of ``Delta`` after copying them to memory."""
    memory = MemoryLog()
    table = memory.new_table(addresses.shape)
    table[:] = memory.copier_from(reader).copy(addresses)
    return load_slots(memory, table)


READERS: dict[str, Read] = {
    "copy": copied,
    "gather": lambda reader, addresses: reader.gather(addresses, 2),
}
