"""Helpers for logs: small logs, their records, and changes by other processes."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.record_kinds import COMMIT
from storage.segments import Records, records_of


def read_chain(log: Log) -> list[tuple[int, Records]]:
    """Read the newest snapshot and the segments after it; return the number and the records of each."""
    chain, result = log.open_chain(), []
    for segment, after in zip_longest(chain, chain[1:]):
        limit = None if after is None else after.previous_end
        result.append((segment.number, records_of(segment, limit=limit)))
    return result


def opened(folder: Path, *, writable: bool = False) -> Log:
    """Open a log and read its state, so that it can be appended to."""
    log = Log.open(folder, FolderLock(folder) if writable else None)
    try:
        read_chain(log)
    except BaseException:
        log.close()
        raise
    return log


def read_state(folder: Path) -> Records:
    """Return the records of the newest snapshot and the segments after it, in one list."""
    log = Log.open(folder)
    try:
        return [record for _, records in read_chain(log) for record in records]
    finally:
        log.close()


def new_log(folder: Path, n_snapshots: int = 1) -> Log:
    """Return a log of snapshots, each followed by a segment with one record."""
    log = Log.create(folder)
    for number in range(n_snapshots):
        log.begin_segment([(1, b"snapshot %d" % number)])
        log.segment_to_write().append(2, b"content %d" % number)
    return log


def state_of(number: int) -> Records:
    return [(1, b"snapshot %d" % number), (2, b"content %d" % number)]


def expected_records(number: int) -> Records:
    """Return the records of a segment of :func:`new_log`."""
    snapshot, content = state_of(number // 2)
    return [content] if number % 2 else [snapshot]


APPENDED: Records = [(2, b"of another"), (COMMIT, b"of another")]


def append(folder: Path) -> None:
    log = opened(folder, writable=True)
    for record in APPENDED:
        log.segment_to_write().append(*record)
    log.close()


def write_snapshot(folder: Path) -> None:
    log = opened(folder, writable=True)
    log.begin_segment([(1, b"of another")])
    log.close()


def restore_older_files(folder: Path) -> None:
    """As a backup that is copied over the folder."""
    (folder / "00000001.log").unlink()


def delete(folder: Path) -> None:
    for path in folder.glob("*.log"):
        path.unlink()


def replace_files(folder: Path) -> None:
    delete(folder)
    new_log(folder).close()
