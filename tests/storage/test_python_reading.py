"""Without kernels, folders are read as with them: the same records, slots and problems, whatever the bytes are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from programs import fresh_outcome

from sb3_compressed.arrays.slot_store import Slot
from sb3_compressed.common.probes import FORCE_FALLBACKS
from sb3_compressed.storage import log_slot_kernels, python_reading, record_kernels
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.log_slot_store import LogSlotStore
from sb3_compressed.storage.record_format import (
    DAMAGED_PAYLOAD,
    DAMAGED_SLOT,
    HEADER_NBYTES,
    INVALID_SLOT,
    NO_SEGMENT,
    TOO_MANY_PAYLOADS,
)
from sb3_compressed.storage.segment import Segment
from storage.logs import begin_segment
from storage.segments import CONTENTS, write_segment
from storage.slot_logs import HANDLES, new_log

pytestmark = pytest.mark.skipif(FORCE_FALLBACKS, reason="fallbacks read everything with kernels")

RELAXED = examples(150)


def records_in(data: NDArray[np.uint8], segment_id: int, at_most: int) -> list[list[int]]:
    """Return the records that both implementations find."""
    ours, theirs = np.full((2, at_most, 3), -1, np.int64)
    n_found = python_reading.find_records(data, segment_id, ours)
    assert n_found == record_kernels.find_records(data, np.uint64(segment_id), theirs)
    np.testing.assert_array_equal(ours, theirs)
    found: list[list[int]] = ours[:n_found].tolist()
    return found


@pytest.mark.parametrize("has_room", [False, True])
def test_records_are_found_up_to_the_first_damaged_bit(has_room: bool, tmp_path: Path) -> None:
    written = write_segment(tmp_path / "segment", CONTENTS)
    segment = Segment(tmp_path / "segment")
    data, segment_id = np.concatenate([segment.bytes[segment.start :], np.zeros(40 * has_room, np.uint8)]), segment.id
    segment.close()
    found = records_in(data, segment_id, 100)
    assert [(kind, data[begin : begin + nbytes].tobytes()) for kind, begin, nbytes in found] == written
    assert records_in(data, segment_id, 2) == found[:2]
    assert records_in(data, segment_id ^ 1, 100) == [], "its ID is part of all checksums"
    ends = [begin + nbytes + 1 for _, begin, nbytes in found]
    for bit in range(8 * ends[-1]):
        damaged = data.copy()
        damaged[bit // 8] ^= 1 << bit % 8
        n_whole = sum(end <= bit // 8 for end in ends)
        assert records_in(damaged, segment_id, 100) == found[:n_whole]
    for n_bytes in range(ends[-1]):
        assert len(records_in(data[:n_bytes].copy(), segment_id, 100)) == sum(end <= n_bytes for end in ends)


@RELAXED
@given(data=st.binary(max_size=3 * HEADER_NBYTES), segment_id=st.integers(0, 2**64 - 1))
def test_other_bytes_are_no_records(data: bytes, segment_id: int) -> None:
    records_in(np.frombuffer(data, np.uint8), segment_id, 10)


# -- slots ---------------------------------------------------------------------------------------------------

SLOTS: list[Slot] = [
    None,
    b"a whole item",
    b"",
    (b"first", b"second", b"third"),
    (HANDLES[0], b"whole, trained"),
    (HANDLES[0], b"1st", b"2nd", b"3rd"),
    (HANDLES[0], b"old", b"older", HANDLES[1], b"new"),
    (HANDLES[2], b""),
]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = new_log(tmp_path)
    yield made
    made.close()


def located(
    addresses: NDArray[np.int64], n_frames: int, segments: NDArray[np.int64], n_places: int
) -> tuple[int, list[Any]]:
    """Return what both implementations return, and the valid parts of their outputs."""
    outcomes: list[tuple[int, list[Any]]] = []
    for function in (python_reading.locate_stored, log_slot_kernels.locate_stored):
        offsets, problem = np.zeros(len(addresses) + 1, np.int64), np.zeros(2, np.int64)
        places, codecs = np.zeros((n_places, 3), np.int64), np.zeros(max(n_places, 1), np.int64)
        result = function(addresses, n_frames, segments, codecs, offsets, places, problem)
        if result >= 0:
            outcomes.append((result, [codecs[:result].tolist(), offsets.tolist(), places[: offsets[-1]].tolist()]))
        else:
            outcomes.append((result, [] if result == TOO_MANY_PAYLOADS else problem.tolist()))
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def table_of(log: Log) -> NDArray[np.int64]:
    """Return the table of a log's segments for the kernel."""
    return LogSlotStore(log).reader._map_segments()[1]


def test_slots_of_all_kinds_are_located(log: Log) -> None:
    stored = LogSlotStore(log)
    addresses = stored.write(SLOTS)
    begin_segment(log, 10_000)
    addresses = np.concatenate([addresses, stored.write(SLOTS[3:])[::-1], addresses[:3]])
    segments = table_of(log)
    n_codecs, (_, offsets, places) = located(addresses, 0, segments, 100)
    assert n_codecs == 1 + 3 + 1 + 3, "codecs of each segment are others, and none is one more"
    assert offsets[-1] == len(places) == sum(map(len, places)) // 3
    assert located(addresses, 3, segments, 100)[0] == n_codecs
    assert located(addresses, 2, segments, 100)[0] == INVALID_SLOT
    assert located(addresses, 0, segments, len(places) - 1)[0] == TOO_MANY_PAYLOADS
    assert located(addresses[:0], 0, segments, 0) == (0, [[], [0], []])
    assert located(addresses, 0, segments[:-1], 100)[0] == NO_SEGMENT


def test_every_flipped_bit_is_the_same_problem(log: Log, tmp_path: Path) -> None:
    stored = LogSlotStore(log)
    addresses = stored.write(SLOTS)
    segments = table_of(log)
    [row] = [row for row in segments if row[3] == 1]
    path = tmp_path / "00000001.log"
    data = np.frombuffer(path.read_bytes(), np.uint8).copy()
    row[0] = data.ctypes.data
    results = set()
    for position in range(int(addresses[addresses > 0].min() & 0xFFFFFFFF) - 40, log.last.end):
        for bit in (0, 5, 7):
            data[position] ^= 1 << bit
            results.add(located(addresses, 0, segments, 100)[0])
            data[position] ^= 1 << bit
    assert {DAMAGED_SLOT, DAMAGED_PAYLOAD} <= results


@RELAXED
@given(offsets=st.lists(st.integers(0, 2**20), max_size=5), content=st.binary(max_size=200), n_frames=st.integers(0, 4))
def test_addresses_of_anything_else_are_the_same_problem(offsets: list[int], content: bytes, n_frames: int) -> None:
    data = np.frombuffer(content or b"0", np.uint8)
    segments = np.array([[data.ctypes.data, len(data), -5, 3]])
    addresses = np.array([3 << 32 | offset % (len(data) + 2) for offset in offsets], np.int64)
    assert located(addresses, n_frames, segments, 20)[0] <= 0


# -- how much is little --------------------------------------------------------------------------------------

READS = """
import sys
from pathlib import Path
from sb3_compressed.storage import python_reading
from sb3_compressed.storage.segment import Segment
python_reading.MAX_PARTS = int(sys.argv[2])
for _ in range(2):
    segment = Segment(Path(sys.argv[1]))
    print(len([*segment.records()]), "numba" in sys.modules)
    segment.close()
"""


@pytest.mark.parametrize(
    ("at_most", "numba"), [(10**6, ["False", "False"]), (0, ["True", "True"]), (60, ["False", "True"])]
)
def test_kernels_are_imported_where_much_is_read(at_most: int, numba: list[str], tmp_path: Path) -> None:
    write_segment(tmp_path / "segment", [bytes(200)] * 50)
    done = fresh_outcome(READS, tmp_path / "segment", at_most)
    assert done.stdout.split() == ["50", numba[0], "50", numba[1]], done.stderr
