"""The memory of slots: exact, or estimated from runs of rows at a cost that does not grow with the array."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_format import OFFSET_NBYTES, PAYLOAD_HEADER, REFERENCE_NBYTES, SLOT_HEADER
from sb3_compressed.codecs import TrainableCodec

__all__ = ["MemoryEstimate", "estimate_memory", "observation_nbytes", "tables_nbytes"]

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


def observation_nbytes(payload_nbytes: float, n_frames: int) -> float:
    """Return the memory that one more observation takes in a replay buffer, in bytes.

    It has one new frame, and is referred to twice: as an observation, and as the one that follows the observation
    before.

    :param payload_nbytes: the size of the payload of that frame
    :param n_frames: the number of frames of an observation
    """
    return PAYLOAD_HEADER + payload_nbytes + SLOT_HEADER + OFFSET_NBYTES * n_frames + 2 * REFERENCE_NBYTES


def estimate_memory(
    gather: Callable[[NDArray[np.int64]], PayloadBatch],
    tables: Sequence[NDArray[Any]],
    begin: int,
    n_rows: int,
    max_slots: int,
) -> MemoryEstimate:
    """Estimate the memory of tables for one stream of observations, as observations and next observations.

    Rows share with the row before them in time. So slots and payloads that a row has and the one before has not are
    counted, in runs of rows that are spread evenly, and scaled to all rows. With ``max_slots`` or fewer it is exact.

    :param gather: returns the payloads of slots, which shared ones have in one place
    :param tables: tables of one shape, ``(rows, n_envs)``
    :param begin: the oldest row
    :param n_rows: how many rows from there on were written, around the end if need be
    :param max_slots: about how many slots are counted
    """
    n_slots = sum(table[0].size for table in tables) if len(tables[0]) else 0
    total, codecs, n_counted = np.zeros(4), dict[int, TrainableCodec](), 0
    for first, last in _runs(n_rows, max(max_slots // max(n_slots, 1), 1)):
        before = max(first - 1, 0)
        rows = (begin + np.arange(before, last)) % len(tables[0])
        references = np.stack([table[rows] for table in tables], axis=1)  # [rows, tables, envs]
        n_before = references[: first - before].size
        references = references.reshape(-1)
        batch = gather(references)
        total += _counted(references, batch, n_before)
        codecs |= {id(codec): codec for codec in batch.codecs if isinstance(codec, TrainableCodec)}
        n_counted += last - first
    slots_nbytes, payload_nbytes, n_frames, n_payloads = (total * n_rows / max(n_counted, 1)).tolist()
    nbytes = slots_nbytes + payload_nbytes + PAYLOAD_HEADER * n_payloads
    nbytes += sum(codec.nbytes for codec in codecs.values()) + tables_nbytes(tables)
    return MemoryEstimate(
        nbytes=nbytes,
        loaded_nbytes=nbytes,
        payload_nbytes=payload_nbytes,
        n_frames=n_frames,
        n_payloads=n_payloads,
        codecs=tuple(codecs.values()),
    )


def _counted(references: NDArray[np.int64], batch: PayloadBatch, n_before: int) -> tuple[int, int, int, int]:
    """Count the slots and payloads of a run of rows, each once: rows of different runs share nothing.

    :param references: those of the row before and of the rows
    :param batch: their payloads
    :param n_before: the number of references of the row before; what it has does not count
    :return: bytes of slots, bytes of payloads, frames, payloads
    """
    places, counts, first = batch.payloads.places, np.diff(batch.offsets), batch.offsets[n_before]
    slots = _distinct(references[n_before:], references[:n_before])
    n_payloads = counts[n_before:][slots]
    payloads = _distinct(places[first:, 0], places[:first, 0])
    return (
        int(SLOT_HEADER * np.count_nonzero(n_payloads) + OFFSET_NBYTES * n_payloads.sum()),
        int(places[first:, 1][payloads].sum()),
        len(places) - int(first),
        len(payloads),
    )


def _distinct(numbers: NDArray[np.int64], excluded: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the first of each of some numbers, without those that are excluded."""
    distinct, indices = np.unique(numbers, return_index=True)
    kept: NDArray[np.int64] = indices[~np.isin(distinct, excluded)]
    return kept


def _runs(n_rows: int, max_rows: int) -> Iterator[tuple[int, int]]:
    """Yield ``(first, last)`` of runs of together about ``max_rows`` of ``n_rows`` rows; one run if they are few."""
    if n_rows <= max_rows:
        yield 0, n_rows
        return
    n_runs = -(-max_rows // RUN)
    for number in range(n_runs):  # each in the middle of an equal part of all rows
        first = (2 * number + 1) * n_rows // (2 * n_runs) - RUN // 2
        yield max(first, 0), min(max(first, 0) + RUN, n_rows)


def tables_nbytes(tables: Sequence[NDArray[Any]]) -> int:
    """Return the bytes of tables of references; placeholders of unwritten ones are read-only and take none."""
    return sum(table.nbytes for table in tables if table.flags.writeable)
