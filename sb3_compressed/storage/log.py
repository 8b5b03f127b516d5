"""A log in a folder: numbered segments, of which the last one tells the whole state.

A segment begins with a *snapshot*, records that tell all that has to be known of the segments before it; so a log is
opened by reading its last segment. Earlier ones are kept as long as its owner refers to what is in them. A new segment
gets its name when its snapshot is on the disk, and until then there is the one before it: there is no moment without a
whole state.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterable
from io import FileIO
from pathlib import Path

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage.files import (
    create_regular_file,
    flush_folder,
    make_folder_durably,
    open_regular_file,
    write_all,
)
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.segment import Segment

__all__ = ["SEALED", "Log", "holds_log", "place_in_log"]

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
        self._last: Segment | None = None
        self._retired: dict[int, Segment] = {}
        #: The one that is being begun, which is the last one as soon as it has its name.
        self._begun: Segment | None = None
        #: The end of the last one when others were let write, by which it is known again.
        self._left: bytes | None = None
        self._lock = lock
        self._identity = secrets.randbits(64)
        self._next = 0
        #: Segments of the log in whose place this one comes.
        self._replaced: Iterable[int] = ()

    @classmethod
    def create(cls, folder: Path, *, overwrite: bool = False, advice: str = "") -> Log:
        """Return a log without segments; :meth:`start_segment` makes the first one, and replaces what there was.

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
        """Open the log of a folder, of which no segment is open yet; see :meth:`open_last`.

        :raises StorageError: if there is none, or another process writes to it
        """
        if not folder.is_dir():
            raise StorageError(f"there is no folder {folder}")
        if not segment_numbers(folder):
            raise StorageError(f"{folder} holds no buffer")
        log = cls(folder, FolderLock(folder) if writable else None)
        log._next = max(segment_numbers(folder)) + 1
        return log

    def open_last(self, number: int) -> Segment:
        """Open a segment as the last one, and if the log is open for writing, to write to it.

        :raises CorruptStorage: if its header is damaged
        """
        for other in [*self.segments]:
            self.segments.pop(other).close()
        last = self._open_segment(number, writable=self._lock is not None)
        self.segments[number] = self._last = last
        self._identity = last.identity
        return last

    def numbers(self) -> list[int]:
        """Return the numbers of the segments that there are, sorted."""
        return segment_numbers(self.folder)

    def clean_up(self, *, repair: bool = False) -> None:
        """Delete what a crash left unfinished, and what comes after the last segment.

        :param repair: whether some of what was committed to the last one is given up
        """
        last = self.segment_to_write()
        for path in self.folder.glob(f"*.{UNFINISHED}"):
            path.unlink()
        for number in segment_numbers(self.folder):
            if number > last.number:
                self._path(number).unlink()
        self._next = last.number + 1
        self._give_up_the_rest(repair=repair)

    def _give_up_the_rest(self, *, repair: bool) -> None:
        """Let the last segment end where it was read up to.

        A folder that was copied from this one, or the other way round, goes on with the same file. To what a repair
        gives up, those who follow may refer. They keep the file as it is, and this folder gets one of its own.
        """
        last = self.last
        if last.n_names == 1 and not (repair and last.is_anything_behind(last.end)):
            last.forget_the_rest()
            return
        unfinished = last.path.with_suffix(f".{UNFINISHED}")
        with open_regular_file(last.path) as source, create_regular_file(unfinished) as target:
            copy_bytes(source, target, last.end)
        unfinished.replace(last.path)
        own = Segment(last.path, writable=True)
        own.end = last.end
        self.segments[last.number] = self._last = own
        last.close()

    @property
    def last(self) -> Segment:
        """The last segment, for whoever reads."""
        assert self._last is not None
        return self._last

    def segment_to_write(self) -> Segment:
        """Return the last segment, for the one thread that writes: it knows whether another one was begun.

        :raises StorageError: if it is open for reading only, or in a process that was forked from the one that writes
        """
        self._check_writable()
        if self._begun is not None:
            self._settle()
        last = self.last
        last.settle()
        return last

    @property
    def is_writable(self) -> bool:
        """Whether this process may write to it."""
        return self._lock is not None and self._lock.is_ours

    def segment(self, number: int) -> Segment:
        """Return a segment, and open it first if need be.

        :raises CorruptStorage: if it is not there, or damaged
        """
        found = self.segments.get(number) or self._retired.get(number)
        if found is None:
            found = self._open_segment(number)
            found.close()  # what is mapped needs no open file, only what still grows
            if found.identity != self._identity:
                raise CorruptStorage(f"{found.path} does not belong here, it is of another buffer")
            self.segments[number] = found
        return found

    def _open_segment(self, number: int, *, writable: bool = False) -> Segment:
        path = self._path(number)
        try:
            segment = Segment(path, writable=writable)
        except FileNotFoundError:
            raise CorruptStorage(f"{path} is missing") from None
        if segment.number != number:
            segment.close()
            raise CorruptStorage(f"{path} does not belong here, it is number {segment.number} of its buffer")
        return segment

    def newest(self) -> Segment:
        """Return the last segment that there is by now.

        :raises StorageError: if it is one of another log, in the place of this one
        """
        last = self.last
        while (
            number := max(segment_numbers(self.folder), default=last.number)
        ) != last.number or last.is_another_at_its_path():
            try:
                for _ in last.records(last.end, is_growing=True):
                    pass  # what was written to it before the next one was begun
                newest = self._open_segment(number)
            except CorruptStorage:
                if number == max(segment_numbers(self.folder), default=number):
                    raise
                continue  # it has been deleted meanwhile
            if newest.identity != self._identity:
                newest.close()
                raise StorageError(f"{self.folder} holds another buffer by now; open it anew")
            self.segments[number] = self._last = newest
            last.close()
            break
        return self.last

    def start_segment(self, snapshot: Iterable[tuple[int, bytes]], capacity: int) -> None:
        """Begin the next segment, if no other process can have begun one.

        :param snapshot: kinds and contents of the records that it begins with
        :param capacity: the bytes that it is to have room for besides them
        :raises StorageError: as :meth:`segment_to_write`
        :raises OSError: if the disk does not take it; the log goes on with the segment before
        """
        self._check_writable()
        self.check_lock()
        self._settle()
        number = self._next
        path = self._path(number)
        unfinished = path.with_suffix(f".{UNFINISHED}")
        segment = Segment.create(unfinished, number, self._identity)
        before = self._last
        try:
            for kind, content in snapshot:
                segment.append(kind, content)
            segment.make_room(capacity)
            if before is not None:
                before.flush()
            segment.flush()
            self._begun = segment
            unfinished.rename(path)
        finally:
            if self._begun is None:
                segment.close()
                unfinished.unlink(missing_ok=True)
            self._settle()
        for other in self._replaced:
            self._path(other).unlink(missing_ok=True)
        self._replaced = ()
        with contextlib.suppress(OSError):  # there is nothing in it that the new one does not tell
            flush_folder(self.folder)
            if before is not None:
                before.append(SEALED, b"")  # whoever deletes the new one is found out
                before.seal()

    def _settle(self) -> None:
        """Write to what the folder says is the last segment, whatever interrupted its beginning."""
        begun = self._begun
        if begun is not None:
            path = self._path(begun.number)
            if path.exists():
                begun.path = path
                self._next = begun.number + 1
                self.segments[begun.number] = self._last = begun
            else:
                path.with_suffix(f".{UNFINISHED}").unlink(missing_ok=True)
            self._begun = None

    def copy_to(self, folder: Path, numbers: Iterable[int], snapshot: Iterable[tuple[int, bytes]]) -> None:
        """Make a log in a new folder that shares some segments with this one, and has another one behind them.

        :param snapshot: as for :meth:`start_segment`
        :raises StorageError: if the folder is not empty
        :raises OSError: if the disk does not take it
        """
        copy = Log.create(folder)
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
            copy.start_segment(snapshot, 0)
        finally:
            copy.close()

    def keep(self, numbers: Iterable[int]) -> None:
        """Delete all segments but some and the last one. Who reads them meanwhile can go on."""
        self.segment_to_write()
        kept = {*numbers, self.last.number}
        # One generation longer than the tables refer to them: other threads may be about to read.
        self._retired = {number: self.segments.pop(number) for number in [*self.segments] if number not in kept}
        for number in segment_numbers(self.folder):
            if number not in kept:
                self._path(number).unlink(missing_ok=True)

    def let_go_of_others(self, numbers: Iterable[int]) -> None:
        """Close all segments but some and the last one, which others may have deleted."""
        kept = {*numbers, self.last.number}
        for number in [number for number in self.segments if number not in kept]:
            self.segments.pop(number).close()

    def flush(self) -> None:
        """Return when all that was written outlives a power cut."""
        self.segment_to_write().flush()
        self.check_lock()

    def release(self) -> None:
        """Let others write to the folder, and go on reading."""
        if self._lock is None:
            return
        try:
            if self.is_writable and self._last is not None:
                last = self.segment_to_write()
                last.give_back_room()
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
            again = Segment(self._path(last.number), writable=True)
            is_committed_to = _is_committed_to(again, last.end, committing)
            again.end = last.end
            # Somebody may have given up what is damaged and gone on from there.
            is_as_left = self._left is None or again.tail() == self._left
            if again.identity != self._identity or is_committed_to or not is_as_left:
                again.close()
                raise StorageError(changed)
            self.segments[last.number] = self._last = again
            self._next = last.number + 1
            again.forget_the_rest()  # of a process that was killed
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
        return self.folder / f"{number:08}.log"


def copy_bytes(source: FileIO, target: FileIO, nbytes: int) -> None:
    """Copy the first bytes of a file, and return when they are on the disk."""
    while nbytes > 0 and (chunk := source.read(min(nbytes, CHUNK))):
        write_all(target, chunk)
        nbytes -= len(chunk)
    os.fsync(target.fileno())


def _is_committed_to(segment: Segment, start: int, committing: int) -> bool:
    """Tell whether there is a record of a kind behind an offset."""
    try:
        return any(record.kind == committing for record in segment.records(start))
    except CorruptStorage:
        return False  # cut short


def holds_log(folder: Path) -> bool:
    """Tell whether there is a log in a folder."""
    return folder.is_dir() and bool(segment_numbers(folder))


def place_in_log(folder: Path) -> tuple[int, ...] | None:
    """Return what tells whether a folder was written to: which log it holds, its last segment and the end of that."""
    if not holds_log(folder):
        return None
    path = folder / f"{segment_numbers(folder)[-1]:08}.log"
    try:
        segment = Segment(path)
    except (OSError, CorruptStorage):
        return None
    return segment.identity, segment.number, path.lstat().st_size


def segment_numbers(folder: Path) -> list[int]:
    """Return the numbers of the segments in a folder, sorted."""
    return sorted(int(match[1]) for match in map(NAME.fullmatch, os.listdir(folder)) if match)


def _refuse_strangers(folder: Path) -> None:
    """Raise if there are files in a folder that this package did not put there."""
    ours = re.compile(rf"lock|[0-9]{{8}}\.(log|{UNFINISHED})")
    strangers = sorted(name for name in os.listdir(folder) if not ours.fullmatch(name))
    if strangers:
        raise StorageError(f"{folder} holds other files, as {strangers[0]}; name an empty or a new folder")
