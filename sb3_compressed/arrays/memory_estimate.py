"""The memory of slots: exact, or estimated from runs of rows at a cost that does not grow with the array."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.slot_format import PAYLOAD_HEADER, SLOT_HEADER
from sb3_compressed.codecs import TrainableCodec

__all__ = ["MemoryEstimate", "estimate_memory", "tables_nbytes"]

#: Consecutive rows of a run: only these show what rows share.
RUN = 16


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory of the slots of some rows, with all they refer to.

    :param nbytes: bytes of memory, with trained codecs and the whole tables
    :param loaded_nbytes: the same if all slots were in memory: other than ``nbytes`` where they are on disk
    :param codecs: the trained codecs of the slots that were counted
    :param payload_nbytes: compressed bytes alone
    :param n_frames: frames of all observations, shared ones counted each time
    :param n_payloads: payloads that are stored for them
    """

    nbytes: float
    loaded_nbytes: float
    payload_nbytes: float
    n_frames: float
    n_payloads: float
    codecs: tuple[TrainableCodec, ...] = ()


def estimate_memory(
    load: Callable[[NDArray[Any]], NDArray[Any]],
    tables: Sequence[NDArray[Any]],
    begin: int,
    n_rows: int,
    max_slots: int,
) -> MemoryEstimate:
    """Estimate the memory of tables for one stream of observations, as observations and next observations.

    Rows share with the row before them in time. So slots and payloads that a row has and the one before has not are
    counted, in runs of rows that are spread evenly, and scaled to all rows. With ``max_slots`` or fewer it is exact.

    :param load: returns the slots of references, an object array
    :param tables: tables of one shape, ``(rows, n_envs)``
    :param begin: the oldest row
    :param n_rows: how many rows from there on were written, around the end if need be
    :param max_slots: about how many slots are counted
    """
    n_slots = sum(table[0].size for table in tables) if len(tables[0]) else 0
    count = _Count()
    n_counted = 0
    for first, last in _runs(n_rows, max(max_slots // max(n_slots, 1), 1)):
        before = max(first - 1, 0)
        rows = (begin + np.arange(before, last)) % len(tables[0])
        references = np.stack([table[rows] for table in tables], axis=1)  # [rows, tables, envs]
        slots = load(references.reshape(-1)).reshape(references.shape)
        count.begin_run(slots[: first - before])
        count.add(slots[first - before :])
        n_counted += last - first
    scale = n_rows / max(n_counted, 1)
    nbytes = count.nbytes * scale + sum(codec.nbytes for codec in count.codecs.values()) + tables_nbytes(tables)
    return MemoryEstimate(
        nbytes=nbytes,
        loaded_nbytes=nbytes,
        payload_nbytes=count.payload_nbytes * scale,
        n_frames=count.n_frames * scale,
        n_payloads=count.n_payloads * scale,
        codecs=tuple(count.codecs.values()),
    )


def _runs(n_rows: int, max_rows: int) -> Iterator[tuple[int, int]]:
    """Yield ``(first, last)`` of runs of together about ``max_rows`` of ``n_rows`` rows; one run if they are few."""
    if n_rows <= max_rows:
        yield 0, n_rows
        return
    n_runs = -(-max_rows // RUN)
    for number in range(n_runs):  # each in the middle of an equal part of all rows
        first = (2 * number + 1) * n_rows // (2 * n_runs) - RUN // 2
        yield max(first, 0), min(max(first, 0) + RUN, n_rows)


class _Count:
    """Counts slots and payloads, each once a run: rows of different runs share nothing."""

    def __init__(self) -> None:
        self.nbytes = self.payload_nbytes = self.n_frames = self.n_payloads = 0
        #: The trained codecs by their ids.
        self.codecs: dict[int, TrainableCodec] = {}
        self._counted: set[int] = set()

    def begin_run(self, before: NDArray[Any]) -> None:
        """Begin a run; what the row before it has does not count."""
        slots = [slot for slot in before.ravel().tolist() if slot is not None]
        self._counted = {~id(slot) for slot in slots}
        self._counted.update(id(part) for slot in slots for part in (slot if type(slot) is tuple else (slot,)))

    def add(self, slots: NDArray[Any]) -> None:
        """Count slots that are all alive, so that no two objects have one id."""
        for slot in slots.ravel().tolist():
            if slot is None:
                continue
            parts = slot if type(slot) is tuple else (slot,)
            if ~id(slot) not in self._counted:  # the slot of a payload is another one than the payload
                self._counted.add(~id(slot))
                self.nbytes += SLOT_HEADER + 4 * [*map(type, parts)].count(bytes)
            for part in parts:
                if type(part) is not bytes:
                    self.codecs[id(part)] = part
                    continue
                self.n_frames += 1
                if id(part) not in self._counted:
                    self._counted.add(id(part))
                    self.nbytes += PAYLOAD_HEADER + len(part)
                    self.payload_nbytes += len(part)
                    self.n_payloads += 1


def tables_nbytes(tables: Sequence[NDArray[Any]]) -> int:
    """Return the bytes of tables of references; placeholders of unwritten ones are read-only and take none."""
    return sum(table.nbytes for table in tables if table.flags.writeable)
