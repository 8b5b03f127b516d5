"""A log in a folder: numbered segments, of which some are snapshots.

A *snapshot* holds a whole state. The segments behind it hold what was written since, so a log is opened by reading the
newest snapshot and what follows it, and a snapshot is deleted when the next one is there. Other segments are kept as
long as their owner refers to what is in them. A snapshot gets its name when it is on the disk: there is no moment
without a whole state.

Each segment names the one before it and where that ended, and snapshots list the ids of the segments that their state
refers to. Whoever opens a log for writing begins a segment of its own and changes no other one. So a copy of a folder
(``cp -r``, hard links) may go its own way, and files of two such copies that are mixed up later are told apart.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterable
from io import FileIO
from itertools import pairwise
from pathlib import Path

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage.files import (
    create_regular_file,
    flush_path,
    make_folder_durably,
    open_regular_file,
    write_all,
)
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.segment import Record, Segment

__all__ = ["SEALED", "Log", "holds_log", "place_in_log", "segment_numbers", "segment_path"]

#: A kind of record, the last one of a segment after which there is another.
SEALED = 6
NAME = re.compile(r"([0-9]{8})\.log")
UNFINISHED = "unfinished"
CHUNK = 1 << 20  # bytes that are copied at a time


class Log:
    """The segments of a folder, open for reading or, by one process at a time, for writing.

    Use :meth:`create` or :meth:`open`.

    :param folder: the folder
    :param lock: the right to write to it, ``None`` for reading
    """

    def __init__(self, folder: Path, lock: FolderLock | None) -> None:
        self.folder = folder.absolute()  # wherever the process goes
        #: Those that are open, by number.
        self.segments: dict[int, Segment] = {}
        #: The ids of those that the state refers to or that follow its snapshot, by number.
        self.ids: dict[int, int] = {}
        #: Makes the first record of a segment that is no snapshot: what has to be known to read it.
        self.describe: Callable[[], tuple[int, bytes]] | None = None
        self._last: Segment | None = None
        #: The one that this log began and may append to.
        self._own: Segment | None = None
        #: The newest snapshot, by its number.
        self._snapshot = -1
        self._retired: dict[int, Segment] = {}
        #: The one that is being begun, which is the last one as soon as it has its name.
        self._begun: Segment | None = None
        #: The end of the last one when others were let write, by which it is known again.
        self._left: bytes | None = None
        self._lock = lock
        self._identity = secrets.randbits(64)
        self._pid = os.getpid()
        #: Numbers of segments that may not outlive a power cut yet.
        self._unsynced: set[int] = set()
        self._next = 0
        #: Bytes that the next segment has room for from the start.
        self.room = 0
        #: Segments of the log in whose place this one comes.
        self._replaced: Iterable[int] = ()

    @classmethod
    def create(cls, folder: Path, *, overwrite: bool = False, advice: str = "") -> Log:
        """Return a log without segments; :meth:`write_snapshot` makes the first one, and replaces what there was.

        :param advice: what a user can do where there is one already
        :raises StorageError: if the folder holds a log already, or something else
        """
        make_folder_durably(folder)
        _refuse_strangers(folder)
        log = cls(folder, FolderLock(folder))
        existing = segment_numbers(folder)
        if existing and not overwrite:
            log.close()
            raise StorageError(f"{folder} holds a buffer already; {advice}")
        log._next, log._replaced = max(existing, default=-1) + 1, existing
        return log

    @classmethod
    def open(cls, folder: Path, *, writable: bool = False) -> Log:
        """Open the log of a folder, of which no segment is open yet; see :meth:`open_chain`.

        :raises StorageError: if there is none, or another process writes to it
        """
        if not folder.is_dir():
            raise StorageError(f"there is no folder {folder}")
        if not segment_numbers(folder):
            raise StorageError(f"{folder} holds no buffer")
        log = cls(folder, FolderLock(folder) if writable else None)
        log._next = max(segment_numbers(folder)) + 1
        return log

    def open_chain(self) -> list[Segment]:
        """Open the newest snapshot and the segments that follow it, the last one to go on from.

        :raises CorruptStorage: if there is none, or one of them is damaged or missing
        """
        for other in [*self.segments]:
            self.segments.pop(other).close()
        self._own, self.ids = None, {}
        chain: list[Segment] = []
        try:
            for number in segment_numbers(self.folder)[::-1]:
                if chain and number < chain[0].number - 1:
                    raise CorruptStorage(f"{self._path(chain[0].number - 1)} is missing")
                chain.insert(0, self.open_segment(number))
                if chain[0].is_snapshot:
                    break
            else:
                raise CorruptStorage(f"{self.folder} has no snapshot")
            for before, after in pairwise(chain):
                self.check_follows(before, after)
        except BaseException:
            for segment in chain:
                segment.close()
            raise
        self.start_from(chain)
        return chain

    def start_from(self, chain: list[Segment]) -> None:
        """Take a snapshot and what follows it for the state's."""
        self._identity = chain[0].identity
        self.segments = {segment.number: segment for segment in chain}
        self.ids.update({segment.number: segment.id for segment in chain})
        self._snapshot, self._last = chain[0].number, chain[-1]
        self._unsynced = {segment.number for segment in chain if not segment.is_snapshot}  # of whoever was killed

    def check_follows(self, before: Segment, after: Segment) -> None:
        """Raise if a segment is not the one that was begun behind another.

        :raises CorruptStorage: with both
        """
        if after.number != before.number + 1:
            raise CorruptStorage(f"{self._path(before.number + 1)} is missing")
        if after.identity != before.identity:
            raise CorruptStorage(f"{after.path} does not belong here, it is of another buffer")
        if after.previous_id != before.id:
            raise CorruptStorage(
                f"{after.path} does not follow {before.path}: they are of two copies of one buffer that were both "
                "written to"
            )

    def numbers(self) -> list[int]:
        """Return the numbers of the segments that there are, sorted."""
        return segment_numbers(self.folder)

    def clean_up(self) -> None:
        """Delete what a crash left unfinished, and what comes after the last segment."""
        self._check_writable()
        last = self.last
        for path in self.folder.glob(f"*.{UNFINISHED}"):
            path.unlink()
        for number in segment_numbers(self.folder):
            if number > last.number:
                self._path(number).unlink()
        self._next = last.number + 1

    def skip_to(self, number: int) -> None:
        """Begin the next segment with this number."""
        self._next = number

    @property
    def last(self) -> Segment:
        """The last segment, for whoever reads."""
        assert self._last is not None
        return self._last

    def segment_to_write(self) -> Segment:
        """Return the segment to append to, for the one thread that writes; it is begun if need be.

        :raises StorageError: if it is open for reading only, or in a process that was forked from the one that writes
        :raises OSError: if the disk does not take another segment
        """
        self._check_writable()
        if self._begun is not None:
            self._settle()
        if self._own is None or self._own is not self._last:
            self.begin_segment()
        own = self._own
        assert own is not None
        own.settle()
        return own

    @property
    def is_writable(self) -> bool:
        """Whether this process may write to it."""
        return self._lock is not None and self._lock.is_ours

    def segment(self, number: int) -> Segment:
        """Return a segment, and open it first if need be.

        :raises CorruptStorage: if it is not there, or damaged, or not the one that the state refers to
        """
        found = self.segments.get(number) or self._retired.get(number)
        if found is None:
            found = self.open_segment(number)
            found.close()  # what is mapped needs no open file, only what still grows
            if found.identity != self._identity:
                raise CorruptStorage(f"{found.path} does not belong here, it is of another buffer")
            if found.id != self.ids.get(number, 0):
                raise CorruptStorage(
                    f"{found.path} does not belong here, it is of a copy of this buffer that was written to as well"
                )
            self.segments[number] = found
        return found

    def open_segment(self, number: int) -> Segment:
        """Open a file of the folder.

        :raises CorruptStorage: if it is not there, or is not the one of its number
        """
        path = self._path(number)
        try:
            segment = Segment(path)
        except FileNotFoundError:
            raise CorruptStorage(f"{path} is missing") from None
        if segment.number != number:
            segment.close()
            raise CorruptStorage(f"{path} does not belong here, it is number {segment.number} of its buffer")
        return segment

    def following(self) -> Segment | None:
        """Return the segment that was begun behind the last one, which is read to its end first; ``None`` if none was.

        :raises CorruptStorage: if it is damaged, or cannot be read any more because there is a newer snapshot
        """
        number = self.last.number + 1
        if not self._path(number).exists():
            return None
        following = self.open_segment(number)
        try:
            self.check_follows(self.last, following)
        except BaseException:
            following.close()
            raise
        return following

    def advance(self, segment: Segment) -> None:
        """Go on with a segment that :meth:`following` returned."""
        before = self.last
        self.ids[segment.number] = segment.id
        self.segments[segment.number] = self._last = segment
        before.close()

    def is_replaced(self) -> bool:
        """Return whether the folder holds other files by now than those that were opened."""
        return self.last.is_another_at_its_path() or max(segment_numbers(self.folder), default=-1) < self.last.number

    def adopt(self, other: Log) -> None:
        """Go on with the segments that another log has open, which is of the same folder and of no use then."""
        last = self.last  # of which not all need have been read
        kept = {
            number: segment
            for number, segment in self.segments.items()
            if segment is not last and other.ids.get(number) == segment.id
        }
        for number in [number for number in self.segments if number not in kept]:
            self.segments.pop(number).close()
        self.segments = {**kept, **other.segments}
        self.ids, self._snapshot, self._last = other.ids, other._snapshot, other._last

    @property
    def identity(self) -> int:
        """A number that all segments of a log, and of its copies, have in common."""
        return self._identity

    def begin_segment(self, room: int | None = None) -> None:
        """Begin a segment to append to.

        :param room: the bytes that it is to have room for from the start, here and in those that come later
        :raises StorageError: as :meth:`segment_to_write`
        :raises OSError: if the disk does not take it; the log goes on with the segment before
        """
        self.room = self.room if room is None else room
        description = () if self.describe is None else (self.describe(),)
        self._begin(description, is_snapshot=False, room=self.room)

    def write_snapshot(self, snapshot: Iterable[tuple[int, bytes]], *, previous: Segment | None = None) -> None:
        """Write a segment from which on the whole state can be read.

        :param snapshot: kinds and contents of its records
        :param previous: the segment of another log that it follows, if it is the first one of a copy
        :raises StorageError: as :meth:`segment_to_write`
        :raises OSError: if the disk does not take it; the log goes on with the segment before
        """
        self._begin(snapshot, is_snapshot=True, previous=previous)
        for other in self._replaced:
            self._path(other).unlink(missing_ok=True)
        self._replaced = ()

    def _begin(
        self,
        records: Iterable[tuple[int, bytes]],
        *,
        is_snapshot: bool,
        room: int = 0,
        previous: Segment | None = None,
    ) -> None:
        self._check_writable()
        self.check_lock()
        self._settle()
        path = self._path(self._next)
        unfinished = path.with_suffix(f".{UNFINISHED}")
        unfinished.unlink(missing_ok=True)
        before = self._last
        segment = Segment.create(
            unfinished, self._next, self._identity, previous=before or previous, is_snapshot=is_snapshot
        )
        try:
            segment.append_many(records)
            if room:
                segment.make_room(room)
            if is_snapshot:  # what it takes the place of is deleted
                self._sync()
                segment.flush()
            self._begun = segment
            unfinished.rename(path)
        finally:
            if self._begun is None:
                segment.close()
                unfinished.unlink(missing_ok=True)
            self._settle()
        with contextlib.suppress(OSError):  # there is nothing in it that the new one does not tell
            if is_snapshot:
                flush_path(self.folder)
            if before is not None:
                self._seal(before)

    def _seal(self, segment: Segment) -> None:
        """Record in a segment that another one follows, so that it is noticed if that is deleted."""
        if not segment.is_writable:
            again = Segment(segment.path, writable=True)
            again.end = segment.end
            segment.close()
            segment = again
        if segment.n_names == 1:  # else a copy shares the file, and goes its own way
            segment.truncate_tail()  # of a process that was killed
            segment.append(SEALED, b"")
        if segment.number in self._unsynced:
            segment.flush()
            self._unsynced.discard(segment.number)
        segment.seal()

    def _settle(self) -> None:
        """Write to what the folder says is the last segment, whatever interrupted its beginning."""
        begun = self._begun
        if begun is not None:
            path = self._path(begun.number)
            if path.exists():
                begun.path = path
                self._next = begun.number + 1
                self.ids[begun.number] = begun.id
                self.segments[begun.number] = self._last = begun
                if begun.is_snapshot:
                    self._snapshot = begun.number
                else:
                    self._own = begun
                    self._unsynced.add(begun.number)
            else:
                path.with_suffix(f".{UNFINISHED}").unlink(missing_ok=True)
            self._begun = None

    def copy_to(self, folder: Path, numbers: Iterable[int], snapshot: Iterable[tuple[int, bytes]]) -> None:
        """Make a log in a new folder that shares some segments with this one, and has another one behind them.

        :param snapshot: as for :meth:`write_snapshot`
        :raises StorageError: if the folder is not empty
        :raises OSError: if the disk does not take it
        """
        numbers = [*numbers]
        copy = Log.create(folder, advice="name an empty or a new folder")
        try:
            for number in numbers:
                source, target = self._path(number), copy._path(number)
                with open_regular_file(source) as whole:
                    try:
                        target.hardlink_to(source)
                    except OSError:  # another disk, or a file system without links
                        with create_regular_file(target) as part:
                            copy_bytes(whole, part, os.fstat(whole.fileno()).st_size)
            copy._next, copy._identity = self._next, self._identity
            # What comes later to the last segment, which may be shared, is of no concern there.
            copy.write_snapshot(snapshot, previous=self.last)
        except BaseException:
            for number in numbers:
                copy._path(number).unlink(missing_ok=True)
            raise
        finally:
            copy.close()

    def keep(self, numbers: Iterable[int]) -> None:
        """Delete all segments but some, the newest snapshot and what follows it. Who reads them meanwhile can go on."""
        self._check_writable()
        live = {*numbers}
        # One generation longer than the tables refer to them: other threads may be about to read.
        self._retired = {
            number: self.segments.pop(number)
            for number in [*self.segments]
            if number not in live and number < self._snapshot
        }
        self._unsynced.difference_update(self._retired)
        for number in segment_numbers(self.folder):
            if number not in live and number < self._snapshot:
                self._path(number).unlink(missing_ok=True)
        self.ids = {number: own for number, own in self.ids.items() if number in live or number >= self._snapshot}

    def nbytes(self, numbers: Iterable[int]) -> int:
        """Return how many bytes some segments have."""
        sizes = 0
        for number in numbers:
            with contextlib.suppress(OSError):
                sizes += self._path(number).stat().st_size
        return sizes

    def close_others(self, numbers: Iterable[int]) -> None:
        """Close all segments but some and the last one, which others may have deleted."""
        kept = {*numbers, self.last.number}
        for number in [number for number in self.segments if number not in kept]:
            self.segments.pop(number).close()

    def flush(self) -> None:
        """Return when all that was written outlives a power cut."""
        self._check_writable()
        self._settle()
        self.last.settle()
        self._sync()
        self.check_lock()

    def _sync(self) -> None:
        """Return when all segments that were written to, here or by whoever was killed, outlive a power cut."""
        for number in sorted(self._unsynced):
            if number in self.segments:
                self.segments[number].flush()
                continue
            segment = self.open_segment(number)  # of whoever was killed, and closed since
            try:
                segment.flush()
            finally:
                segment.close()
        with contextlib.suppress(OSError):  # where folders cannot be opened
            flush_path(self.folder)
        own = self._own
        self._unsynced = set() if own is None or own is not self._last else {own.number}

    def release(self) -> None:
        """Let others write to the folder, and go on reading."""
        if self._lock is None:
            return
        try:
            if self.is_writable and self._last is not None:
                self._settle()
                last = self.last
                last.settle()
                last.shrink_to_fit()
                self._left = last.tail()
        finally:
            self._lock.release()
            self._lock = None

    def acquire(self, committing: int) -> None:
        """Write to the folder again, if nobody else did meanwhile.

        :param committing: the kind of the records by which it is known that somebody did
        :raises StorageError: if somebody did, or does
        """
        if self._lock is not None:
            return
        changed = f"{self.folder} was written to by another buffer meanwhile; overwrite=True replaces that"
        if not holds_log(self.folder):
            raise StorageError(f"{self.folder} is gone; overwrite=True begins it anew")
        self._lock = FolderLock(self.folder)
        try:
            last = self.last
            if segment_numbers(self.folder)[-1:] != [last.number]:
                raise StorageError(changed)
            if os.getpid() != self._pid:  # the process that this one was forked from goes on with that one
                self._own, self._pid = None, os.getpid()
            is_own = last is self._own
            again = Segment(self._path(last.number), writable=is_own)
            again.end = last.end
            is_committed_to = any(
                isinstance(part, Record) and part.kind == committing for part in again.undamaged_records(start=last.end)
            )
            again.end = last.end
            if again.id != last.id or is_committed_to or (self._left is not None and again.tail() != self._left):
                again.close()
                raise StorageError(changed)
            self.segments[last.number] = self._last = again
            if is_own:
                self._own = again
                again.truncate_tail()  # of a process that was killed
            self._next = last.number + 1
        except BaseException:
            self._lock.release()
            self._lock = None
            raise

    def close(self) -> None:
        """Let go of the folder. Segments that are open can still be read."""
        self.release()
        for segment in self.segments.values():
            segment.close()

    def check_lock(self) -> None:
        """Raise if somebody deleted the lock file and another process may write; see :meth:`FolderLock.check`."""
        if self._lock is not None:
            self._lock.check()

    def _check_writable(self) -> None:
        if self._lock is None:
            raise StorageError(f"{self.folder} is open for reading only")
        if not self._lock.is_ours:
            raise StorageError(f"{self.folder} is closed, or was opened by the process that this one was forked from")

    def _path(self, number: int) -> Path:
        return segment_path(self.folder, number)


def copy_bytes(source: FileIO, target: FileIO, nbytes: int) -> None:
    """Copy the first bytes of a file, and return when they are on the disk."""
    while nbytes > 0 and (chunk := source.read(min(nbytes, CHUNK))):
        write_all(target, chunk)
        nbytes -= len(chunk)
    os.fsync(target.fileno())


def holds_log(folder: Path) -> bool:
    """Return whether there is a log in a folder."""
    return folder.is_dir() and bool(segment_numbers(folder))


def place_in_log(folder: Path) -> tuple[int, ...] | None:
    """Return what tells whether a folder was written to: which log it holds, its last segment and the end of that."""
    if not holds_log(folder):
        return None
    path = segment_path(folder, segment_numbers(folder)[-1])
    try:
        segment = Segment(path)
    except (OSError, CorruptStorage):
        return None
    return segment.identity, segment.number, segment.id, path.lstat().st_size


def segment_path(folder: Path, number: int) -> Path:
    """Return where the segment of a number is."""
    return folder / f"{number:08}.log"


def segment_numbers(folder: Path) -> list[int]:
    """Return the numbers of the segments in a folder, sorted."""
    return sorted(int(match[1]) for match in map(NAME.fullmatch, os.listdir(folder)) if match)


def _refuse_strangers(folder: Path) -> None:
    """Raise if there are files in a folder that this package did not put there."""
    ours = re.compile(rf"lock|[0-9]{{8}}\.(log|{UNFINISHED})")
    strangers = sorted(name for name in os.listdir(folder) if not ours.fullmatch(name))
    if strangers:
        raise StorageError(f"{folder} holds other files, as {strangers[0]}; name an empty or a new folder")
