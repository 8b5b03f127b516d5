"""What slots take and share, estimated from runs of rows: the cost does not grow with the array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.compressed_array import CompressedArray
from sb3_compressed.arrays.memory import allocated_nbytes
from sb3_compressed.codecs import TrainableCodec

__all__ = ["MemoryEstimate", "survey"]

#: Rows of a run: neighbours, since what they share is only seen side by side.
RUN = 16


@dataclass(frozen=True)
class MemoryEstimate:
    """What the slots of some rows take, with all they refer to.

    :param nbytes: their memory in bytes, Python's overhead and the whole arrays of references included
    :param payload_nbytes: compressed bytes alone
    :param n_frames: how many frames observations show, each as often as it is seen
    :param n_payloads: how many payloads stand for these
    """

    nbytes: float
    payload_nbytes: float
    n_frames: float
    n_payloads: float


def survey(arrays: Sequence[CompressedArray], begin: int, n_rows: int, max_slots: int = 8192) -> MemoryEstimate:
    """Look at what arrays hold that receive one stream, as observations and next observations do.

    A row shares with the one before it in time, so all that a row has and the one before has not is its own. That is
    counted, in runs of rows that are spread evenly, and scaled to all rows. With ``max_slots`` or fewer it is exact.

    :param arrays: arrays of one shape that share frames
    :param begin: the oldest row
    :param n_rows: how many rows from there on were written, around the end if need be
    :param max_slots: about how many slots are looked at
    """
    n_slots = sum(array.slots[0].size for array in arrays) if len(arrays[0]) else 0
    tally = _Tally()
    n_seen = 0
    for first, last in _runs(n_rows, max(max_slots // max(n_slots, 1), 1)):
        before = max(first - 1, 0)
        rows = (begin + np.arange(before, last)) % len(arrays[0])
        slots = np.stack([array.slots[rows] for array in arrays], axis=1)  # (rows, arrays, n_envs)
        slots = arrays[0].load_slots(slots)
        tally.begin_run(slots[: first - before])
        tally.count(slots[first - before :])
        n_seen += last - first
    scale = n_rows / max(n_seen, 1)
    codecs = sum(codec.nbytes for codec in tally.codecs.values())
    references = sum(array.slots.nbytes for array in arrays if array.slots.flags.writeable)
    # Where slots are addresses, what they stand for is on a disk.
    objects = tally.nbytes * scale + codecs if arrays[0].slots.dtype == object else 0
    return MemoryEstimate(
        references + objects, tally.payload_nbytes * scale, tally.n_frames * scale, tally.n_payloads * scale
    )


def _runs(n_rows: int, max_rows: int) -> Iterator[tuple[int, int]]:
    """Yield ``(first, last)`` of runs of together about ``max_rows`` of ``n_rows`` rows; all in one if they are few."""
    if n_rows <= max_rows:
        yield 0, n_rows
        return
    n_runs = -(-max_rows // RUN)
    for number in range(n_runs):  # each in the middle of an equal part of all rows
        first = (2 * number + 1) * n_rows // (2 * n_runs) - RUN // 2
        yield max(first, 0), min(max(first, 0) + RUN, n_rows)


class _Tally:
    """Counts objects, each once a run: what no row of it has in common with others is different anyway."""

    def __init__(self) -> None:
        self.nbytes = self.payload_nbytes = self.n_frames = self.n_payloads = 0
        self.codecs: dict[int, TrainableCodec] = {}
        self._seen: set[int] = set()

    def begin_run(self, before: NDArray[Any]) -> None:
        """Know the objects of the row before a run, without counting them."""
        known = [slot for slot in before.ravel().tolist() if slot is not None]
        self._seen = {id(slot) for slot in known}
        self._seen.update(id(part) for slot in known if type(slot) is tuple for part in slot)

    def count(self, slots: NDArray[Any]) -> None:
        """Count what is new in slots, which all are alive, so that no two objects have one id."""
        for slot in slots.ravel().tolist():
            if slot is None:
                continue
            is_tuple = type(slot) is tuple
            if is_tuple and id(slot) not in self._seen:
                self._seen.add(id(slot))
                self.nbytes += allocated_nbytes(slot)
            for part in slot if is_tuple else (slot,):
                if isinstance(part, TrainableCodec):
                    self.codecs[id(part)] = part
                    continue
                self.n_frames += 1
                if id(part) not in self._seen:
                    self._seen.add(id(part))
                    self.nbytes += allocated_nbytes(part)
                    self.payload_nbytes += len(part)
                    self.n_payloads += 1
