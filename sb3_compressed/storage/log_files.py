"""The files of a log in a folder: their names, and where the log ends."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from sb3_compressed.errors import StorageError
from sb3_compressed.kernels.checksum import checksum
from sb3_compressed.storage.files import UNFINISHED, open_regular_file
from sb3_compressed.storage.record_kinds import COMMIT
from sb3_compressed.storage.segment import Segment

__all__ = [
    "LogPosition",
    "ends_at",
    "has_log",
    "newest_segment_digest",
    "require_log",
    "segment_numbers",
    "segment_path",
    "unfinished_segments",
]

SEGMENT_NAME = re.compile(r"([0-9]{8})\.log")


def has_log(folder: Path) -> bool:
    """Return whether a folder contains a log."""
    return folder.is_dir() and bool(segment_numbers(folder))


def require_log(folder: Path) -> None:
    """Raise if a folder contains no log.

    :raises StorageError: if it does not exist or contains none
    """
    if not folder.is_dir():
        raise StorageError(f"there is no folder {folder}")
    if not segment_numbers(folder):
        if has_log(buffer := folder / "buffer"):  # of BufferCheckpointCallback
            raise StorageError(f"{folder} is a checkpoint of a model and its buffer: load that from {buffer}")
        raise StorageError(f"{folder} contains no buffer")


class LogPosition(NamedTuple):
    """A position in a log: the number and the random id of a segment, and an offset in it."""

    number: int
    id: int
    offset: int


def ends_at(folder: Path, position: LogPosition) -> bool:
    """Return whether the log of a folder has no other segments and commits than those up to a position.

    :raises OSError: if it cannot be read
    """
    if not has_log(folder) or segment_numbers(folder)[-1] != position.number:
        return False
    try:
        segment = Segment(segment_path(folder, position.number))
    except (FileNotFoundError, StorageError):
        return False
    try:
        has_commit = any(record.kind == COMMIT for record in segment.records(position.offset, problems=[]))
        return segment.id == position.id and not has_commit and segment.is_record_end(position.offset)
    finally:
        segment.close()


def newest_segment_digest(folder: Path) -> str | None:
    """Return the checksum of the last file of a folder's log, 16 hexadecimal digits; ``None`` if there is no log.

    The last file of a copy, see :meth:`Log.copy_to`, is a snapshot: it contains the state and the ids of all files that
    the state refers to, whose records have checksums of their own. So this identifies the state.
    """
    if not has_log(folder):
        return None
    with open_regular_file(segment_path(folder, segment_numbers(folder)[-1])) as file:
        return f"{checksum(file.readall()):016x}"


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of the segment with a number."""
    return folder / f"{number:08}.log"


def segment_numbers(folder: Path) -> list[int]:
    """Return the numbers of the segments in a folder, sorted."""
    return sorted(int(match[1]) for match in map(SEGMENT_NAME.fullmatch, os.listdir(folder)) if match)


def unfinished_segments(folder: Path) -> list[str]:
    """Return the names of the segments that an interrupted process left, or that a process is writing now, sorted."""
    return sorted(path.name for path in folder.glob(f"*.{UNFINISHED}"))
