"""Helpers for stores: small stores with numbered commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from slot_objects import load_slots, write_slots

from sb3_compressed.codecs.delta import Delta
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.commit_writer import RING_ROWS, CommitWriter
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.manifest import ArraySpec
from sb3_compressed.storage.verification import damaged_slots

N_ROWS = 20
METADATA = {"class": "Example", "number": 5, "list": [1, None, {"a": 0.5}]}
SPECS = {
    "numbers": ArraySpec((N_ROWS, 3), "<f4", is_ring=True),
    "flags": ArraySpec((N_ROWS,), "|b1"),
    "table": ArraySpec((N_ROWS, 2), "<i8", is_table=True, is_ring=True),
    "wide": ArraySpec((2, 150), "<u2"),
    "empty": ArraySpec((0, 5), "<i4"),
}
CODECS = [Delta(level, bytes([level] * 30)) for level in range(1, 6)]


def set_segment_nbytes(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEGMENT_NBYTES", "MIN_SEGMENT_NBYTES"):
        monkeypatch.setattr(CommitWriter, name, nbytes)


def create(folder: Path, **options: Any) -> CommitWriter:
    return CommitWriter.create(folder, METADATA, SPECS, {"pos": 0}, **options)


def open_to_write(folder: Path, **options: Any) -> CommitWriter:
    return CommitWriter(ArrayStore.open(folder, lock=FolderLock(folder), **options))


def crash(writer: CommitWriter) -> None:
    """Close the files without a final snapshot, as a crash does."""
    writer.store.log.close()


def read_values(folder: Path, **options: Any) -> dict[str, Any]:
    store = ArrayStore.open(folder, **options)
    try:
        return store.values
    finally:
        store.close()


def commit_number(writer: CommitWriter, number: int, nbytes: int = 300) -> None:
    """Commit a state whose parts all contain the same number; the first one is 1."""
    store = writer.store
    row = (number - 1) % N_ROWS
    store.arrays["numbers"][row] = number
    store.arrays["flags"][...] = number % 2 == 1
    payloads = [number.to_bytes(4, "little") * (nbytes // 8) for _ in range(2)]
    store.arrays["table"][row] = write_slots(store.log, [(CODECS[0], payload) for payload in payloads])
    writer.commit([(RING_ROWS, row, row + 1), ("flags", 0, N_ROWS)], values_of(number), {"": CODECS[0]})


def values_of(number: int) -> dict[str, Any]:
    return {"pos": number % N_ROWS, "number": number}


def assert_consistent(store: ArrayStore, nbytes: int = 300) -> int:
    """Assert that all parts contain the same number, and return it."""
    number = int(store.values.get("number", 0))
    for old in range(max(number - N_ROWS + 1, 1), number + 1):
        row = (old - 1) % N_ROWS
        assert store.arrays["numbers"][row].tolist() == [old] * 3
        slots = load_slots(store.log, store.arrays["table"][row])
        assert [slot[1] for slot in slots] == [old.to_bytes(4, "little") * (nbytes // 8)] * 2
        store.log.gather(store.arrays["table"][row], 1)
    assert store.arrays["flags"].all() == store.arrays["flags"].any() == (number % 2 == 1)
    assert store.values["pos"] == number % N_ROWS
    assert store.metadata == METADATA
    if number:
        assert store.log.codec(store.codecs[""]) == CODECS[0]
    return number


def spec_of(array: NDArray[Any], *, is_table: bool = False) -> ArraySpec:
    return ArraySpec(array.shape, array.dtype.str, is_table)


def resized(store: ArrayStore) -> tuple[dict[str, ArraySpec], dict[str, Any]]:
    """Return specs and arrays with half the rows, in another order."""
    arrays = {name: array[:10].copy() for name, array in reversed(store.arrays.items()) if name != "empty"}
    return {name: spec_of(array, is_table=name == "table") for name, array in arrays.items()}, arrays


def commit_tiny(writer: CommitWriter, number: int) -> None:
    store, n_rows = writer.store, writer.store.n_ring_rows
    row = (number - 1) % n_rows
    store.arrays["numbers"][row] = number
    store.arrays["table"][row] = write_slots(store.log, [b"%d" % number * 3])
    writer.commit([(RING_ROWS, row, row + 1)], {"pos": number % n_rows, "number": number}, {})


def tiny_store(folder: Path, n_commits: int, n_a_snapshot: int = 5, n_rows: int = 4) -> CommitWriter:
    specs = {
        "numbers": ArraySpec((n_rows,), "<i4", is_ring=True),
        "table": ArraySpec((n_rows, 1), "<i8", is_table=True, is_ring=True),
    }
    writer = CommitWriter.create(folder, {}, specs, {"pos": 0, "number": 0})
    for number in range(1, n_commits + 1):
        commit_tiny(writer, number)
        if number % n_a_snapshot == 0:
            writer.write_snapshot()
    return writer


def damaged_rows(store: ArrayStore) -> NDArray[np.bool_]:
    """Return which rows of the table have a damaged slot, ``(rows,)``."""
    return np.isin(store.arrays["table"][:, 0], [*damaged_slots(store, "table")])
