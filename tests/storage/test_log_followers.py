"""Readers of a log with a writer: they advance from segment to segment and can read deleted ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import start

from sb3_compressed.errors import CorruptStorage
from sb3_compressed.storage import segment as segment_module
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.record_kinds import SEALED
from storage.folders import names
from storage.logs import (
    DESCRIPTION,
    describe,
    expected_records,
    new_log,
    opened,
    read_chain,
    read_state,
    records_of,
    state_of,
)


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep files short, so that tests read them quickly."""
    monkeypatch.setattr(segment_module, "MIN_GROWTH", 10_000)


def test_reader_of_deleted_segments_can_continue(tmp_path: Path) -> None:
    log = new_log(tmp_path, 3)
    reader = opened(tmp_path)
    reader.ids = {**log.ids}
    views = [reader.segment(number).bytes for number in (0, 3)]
    log.drop_segments([])
    for number in (0, 3):
        assert records_of(reader.segment(number)) == expected_records(number)
    with pytest.raises(CorruptStorage, match=r"00000001\.log is missing"):
        reader.segment(1)
    log.write_snapshot([(1, b"next")])
    log.drop_segments([])
    assert names(tmp_path) == ["00000006.log"]
    assert records_of(reader.segment(3)) == expected_records(3)
    assert read_chain(reader) == [(6, [(1, b"next")])]
    assert reader.last.number == 6
    reader.close()
    log.close()
    assert [b"snapshot 0" in views[0].tobytes(), b"content 1" in views[1].tobytes()] == [True, True]


def test_reader_closes_segments_it_no_longer_needs(tmp_path: Path) -> None:
    log = new_log(tmp_path, 3)
    reader = opened(tmp_path)
    reader.ids = {**log.ids}
    for number in range(6):
        reader.segment(number)
    reader.close_segments(keep=[2, 3])
    assert sorted(reader.segments) == [2, 3, 5]
    assert records_of(reader.segment(2)) == expected_records(2)
    reader.close()
    log.close()


def test_switch_to_uses_the_state_of_the_other_log(tmp_path: Path) -> None:
    log = new_log(tmp_path, 2)
    ours = opened(tmp_path)
    before = [*ours.segments.values()]
    log.write_snapshot([(1, b"next")])
    log.drop_segments([])
    log.segment_to_write().append(3, b"more")
    theirs = opened(tmp_path)
    ours.switch_to(theirs)
    assert (ours.last, ours.segments, ours.ids) == (theirs.last, theirs.segments, theirs.ids)
    assert not {*map(id, before)} & {*map(id, ours.segments.values())}
    assert sorted(ours.segments) == [4, 5]
    assert records_of(ours.last) == [describe(), (3, b"more")]
    ours.close()
    log.close()


WRITE_SEGMENTS = """
import sys
from pathlib import Path
from storage.logs import describe
from sb3_compressed.storage.log import Log

log = Log.create(Path(sys.argv[1]))
log.first_record = describe
for number in range(int(sys.argv[2])):
    log.write_snapshot([(1, b"snapshot %d" % number)])
    log.segment_to_write().append(2, b"content %d" % number)
    log.drop_segments([])
    if not number:
        print("ready", flush=True)
log.close()
"""


def test_log_is_readable_at_any_time(fast_path: Path) -> None:
    with start(WRITE_SEGMENTS, fast_path, 300) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        log, found = Log.open(fast_path), list[int]()
        while writer.poll() is None:
            before = log.numbers()
            try:
                chain = log.open_chain()
                records = [
                    (record.kind, record.content.tobytes())
                    for segment in chain
                    for record in segment.records(is_growing=True)
                    if record.kind not in (SEALED, DESCRIPTION)
                ]
            except CorruptStorage:
                assert log.numbers() != before, "only segments that were deleted meanwhile may be missing"
                continue
            number = int(records[0][1].split()[1])
            assert records == state_of(number)[: len(records)] != []
            found.append(number)
    assert writer.returncode == 0
    assert read_state(fast_path) == state_of(299)
    log.close()
    assert found == sorted(found)
    assert len({*found}) > 2
