"""Logs for the tests of storage: small ones, the records in them, and what other processes do to a folder."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

from sb3_compressed.storage.log import SEALED, Log
from sb3_compressed.storage.segment import Segment

Told = list[tuple[int, bytes]]

#: The kind of records that a segment which is no snapshot begins with.
DESCRIPTION = 9


def told_by(segment: Segment) -> Told:
    return [(record.kind, record.content.tobytes()) for record in segment.records()]


def read_chain(log: Log) -> list[tuple[int, Told]]:
    """Open a log by its newest snapshot and read what follows; return the number and the records of each segment."""
    chain, told = log.open_chain(), []
    for segment, after in zip_longest(chain, chain[1:]):
        limit = None if after is None else after.previous_end
        records = [(record.kind, record.content.tobytes()) for record in segment.records(limit=limit)]
        told.append((segment.number, records))
    return told


def opened(folder: Path, *, writable: bool = False) -> Log:
    """Open a log; all that its state is made of is read, so that it can be written behind."""
    log = Log.open(folder, writable=writable)
    log.describe = describe
    try:
        read_chain(log)
    except BaseException:
        log.close()
        raise
    return log


def describe() -> tuple[int, bytes]:
    return DESCRIPTION, b"description"


def read_state(folder: Path) -> Told:
    """Return the records of a snapshot and all that follows, but for descriptions."""
    log = Log.open(folder)
    try:
        return [record for _, told in read_chain(log) for record in told if record[0] != DESCRIPTION]
    finally:
        log.close()


def told_in(folder: Path, number: int) -> Told:
    """Return the records of a segment, read from its file."""
    segment = Segment(folder / f"{number:08}.log")
    try:
        return told_by(segment)
    finally:
        segment.close()


def new_log(folder: Path, n_snapshots: int = 1) -> Log:
    """Return a log of snapshots, with a segment of one record behind each."""
    log = Log.create(folder)
    log.describe = describe
    for number in range(n_snapshots):
        log.write_snapshot([(1, b"snapshot %d" % number)])
        log.segment_to_write().append(2, b"content %d" % number)
    return log


def state_of(number: int) -> Told:
    return [(1, b"snapshot %d" % number), (2, b"content %d" % number)]


def told_of(number: int, *, is_last: bool = False) -> Told:
    """Return the records of a segment of such a log."""
    snapshot, content = state_of(number // 2)
    told = [describe(), content] if number % 2 else [snapshot]
    return told if is_last else [*told, (SEALED, b"")]


APPENDED: Told = [(2, b"of another"), (3, b"of another")]


def append(folder: Path) -> None:
    log = opened(folder, writable=True)
    for record in APPENDED:
        log.segment_to_write().append(*record)
    log.close()


def write_snapshot(folder: Path) -> None:
    log = opened(folder, writable=True)
    log.write_snapshot([(1, b"of another")])
    log.close()


def replace_the_files(folder: Path) -> None:
    for path in folder.glob("*.log"):
        path.unlink()
    new_log(folder).close()


def go_back(folder: Path) -> None:
    """As who copies a backup over it."""
    (folder / "00000001.log").unlink()


def delete(folder: Path) -> None:
    for path in folder.glob("*.log"):
        path.unlink()
