"""Chunks of large arrays: each row is visited once, and pages that were never written stay unallocated."""

from __future__ import annotations

from typing import Any

import numpy as np

from sb3_compressed.storage.chunks import CHUNK_NBYTES, addresses_in, copy_changed, segments_of

#: Rows of a table of two addresses each that takes several chunks.
N_ROWS = 3 * CHUNK_NBYTES // 16 + 5


def table_of(addresses: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return a table of several chunks, ``(rows, 2)``, with the addresses spread over it and 0 elsewhere."""
    table = np.zeros((N_ROWS, 2), np.int64)
    table.reshape(-1)[np.linspace(0, table.size - 1, len(addresses), dtype=int)] = addresses
    return table


def test_copy_changed_copies_bit_for_bit() -> None:
    source = np.zeros(CHUNK_NBYTES, np.float32)  # of four chunks
    target = source.copy()
    source[-1] = -0.0
    source[5] = np.frombuffer(b"\1\0\xc0\x7f", np.float32)[0]  # a NaN with a payload
    target[CHUNK_NBYTES // 2] = 7
    copy_changed(source, target)
    assert target.tobytes() == source.tobytes()


def test_copy_changed_writes_only_chunks_that_differ() -> None:
    assigned: list[int] = []

    class Recorded(np.ndarray[tuple[int, ...], np.dtype[np.uint8]]):
        def __setitem__(self, index: Any, value: Any) -> None:
            assigned.extend(range(len(self))[index])
            super().__setitem__(index, value)

    target = np.zeros((16, CHUNK_NBYTES), np.uint8).view(Recorded)
    source = np.zeros((16, CHUNK_NBYTES), np.uint8)
    source[11, 3] = 1
    copy_changed(source, target)
    assert np.array_equal(target, source)
    assert assigned == [11]


def test_addresses_in_tables_are_sorted_and_unique() -> None:
    addresses = [5 << 32 | 7, 9, 0, 9, 1 << 32, 5 << 32 | 7, 9]
    assert addresses_in(table_of(addresses)).tolist() == [9, 1 << 32, 5 << 32 | 7]
    assert addresses_in(table_of([3, -4, 3])).tolist() == [-4, 3], "damaged tables may contain negative addresses"


def test_segments_of_a_table_match_its_addresses() -> None:
    assert segments_of(table_of([5 << 32 | 7, 0, 1 << 32 | 9, 5 << 32 | 8])) == {1, 5}
