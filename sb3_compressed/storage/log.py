"""``Log``: numbered segments in a folder, some of which are snapshots.

A *snapshot* contains a complete state, except observations; the other segments contain observations and later changes
of the state. So a log is opened by reading the newest snapshot and the segments that follow, and a snapshot is deleted
when the next one is complete. Other segments are kept while the state refers to them. A snapshot gets its final name
when it is on the disk, so the folder always contains a complete state.

Each segment stores the id of the one before it and where that ended, and snapshots list the ids of the segments that
their state refers to. A process that opens a log for writing begins a segment of its own and changes no other one. So a
copy of a folder (``cp -r``, hard links) can be written to independently, and files of two such copies that are mixed up
later are detected.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from sb3_compressed.arrays.segment_log import Claim
from sb3_compressed.arrays.slot_format import CHECKSUM_NBYTES
from sb3_compressed.arrays.slot_log import SlotLog
from sb3_compressed.codecs import Codec
from sb3_compressed.codecs.registry import codec_from_config
from sb3_compressed.common.interrupts import deferred_interrupts
from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage.files import UNFINISHED, flush_path, link_or_copy, make_folder_durably
from sb3_compressed.storage.json_schema import load_json
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.log_files import LogPosition, ends_at, has_log, require_log, segment_numbers, segment_path
from sb3_compressed.storage.record_kinds import CODEC, SLOTS
from sb3_compressed.storage.segment import Segment

__all__ = ["Log"]

#: Size beyond which a new segment begins even within a change, since offsets have 32 bits.
MAX_SEGMENT_NBYTES = 2 << 30
#: Why the files of a folder do not fit together.
OF_ANOTHER = "it belongs to another buffer, or to a copy of this one that was changed independently"


class Log(SlotLog):
    """The segments of a folder, open for reading or, by one process at a time, for writing.

    Use :meth:`create` or :meth:`open`.

    :param folder: the folder
    :param lock: write access to it, ``None`` for reading only
    """

    checksum_nbytes = CHECKSUM_NBYTES
    is_in_memory = False
    segments: dict[int, Segment]

    def __init__(self, folder: Path, lock: FolderLock | None) -> None:
        super().__init__()
        self.folder = folder.absolute()  # the working directory may change
        #: The open segments, by number.
        self.segments = {}
        #: The ids of the segments that the state refers to or that follow its snapshot, by number.
        self.ids: dict[int, int] = {}
        self._last: Segment | None = None
        #: The number of the newest snapshot.
        self._snapshot = -1
        #: The number of the next segment.
        self.next_number = 0
        self._lock = lock
        #: A random number that all segments of a log, and of its copies, have in common.
        self.identity = secrets.randbits(64)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"cannot pickle or copy the log of {self.folder}, which is locked: pickle or copy the buffer")

    # -- opening ---------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path, *, overwrite: bool = False, lock: FolderLock | None = None) -> Log:
        """Return a log without segments; its first snapshot replaces the state of an existing log.

        :param overwrite: whether there may be an existing log
        :param lock: a lock of the folder, which the caller releases after errors; it is acquired
        :raises StorageError: if the folder contains a log already, or other files
        """
        make_folder_durably(folder)
        foreign = sorted(
            name for name in os.listdir(folder) if not re.fullmatch(rf"lock|[0-9]{{8}}\.(log|{UNFINISHED})", name)
        )
        if foreign:
            raise StorageError(f"{folder} contains other files, such as {foreign[0]}; pass an empty or a new folder")
        lock = FolderLock(folder) if lock is None else lock
        try:
            log = cls(folder, lock.acquire())
            existing = segment_numbers(folder)
            if existing and not overwrite:
                raise StorageError(
                    f"{folder} already contains a buffer; pass another folder, storage_mode='resume' or 'overwrite' to "
                    "a new buffer, or overwrite=True when you save one"
                )
            log.next_number = max(existing, default=-1) + 1
        except BaseException:
            lock.release()
            raise
        return log

    @classmethod
    def open(cls, folder: Path, lock: FolderLock | None = None) -> Log:
        """Open the log of a folder; no segment is open before :meth:`open_chain`.

        :param lock: a lock of the folder, to write to it, which the caller releases after errors; it is acquired
        :raises StorageError: if there is none, or another process writes to it
        """
        require_log(folder)
        log = cls(folder, lock.acquire() if lock is not None else None)
        log.next_number = max(segment_numbers(folder)) + 1
        return log

    def open_chain(self, problems: list[str] | None = None) -> list[Segment]:
        """Open the newest snapshot and the segments that follow it.

        :param problems: receives a description of each segment that is damaged or missing, after which the others are
            not used; ``None`` to raise an error
        :raises CorruptStorage: if there is no snapshot, or one of the segments is damaged or missing
        """
        for number in [*self.segments]:
            self.segments.pop(number).close()
        self.ids = {}
        chain: list[Segment] = []  # the newest first

        def report(error: CorruptStorage | OSError) -> None:
            if problems is None:
                raise error
            problems.append(str(error))
            while chain:
                chain.pop().close()

        try:
            for number in reversed(segment_numbers(self.folder)):
                try:
                    segment = self.open_segment(number)
                except (CorruptStorage, OSError) as error:  # rare
                    report(error)
                    continue
                if chain and (problem := self._problem_between(segment, chain[-1])):
                    report(CorruptStorage(problem))
                chain.append(segment)
                if segment.is_snapshot:
                    break
            else:
                raise CorruptStorage("; ".join([f"{self.folder} has no snapshot", *(problems or ())]))
        except BaseException:
            for segment in chain:
                segment.close()
            raise
        chain.reverse()
        self.set_chain(chain)
        return chain

    def set_chain(self, chain: list[Segment]) -> None:
        """Use a snapshot and the segments that follow it as the state."""
        self.identity = chain[0].identity
        self.segments = {segment.number: segment for segment in chain}
        self.ids.update({segment.number: segment.id for segment in chain})
        self._snapshot, self._last = chain[0].number, chain[-1]

    def _problem_between(self, before: Segment, after: Segment) -> str | None:
        """Return why a segment does not follow another, ``None`` if it does."""
        if after.number > before.number + 1:
            return f"{segment_path(self.folder, after.number - 1)} is missing"
        if after.previous_id != before.id:
            return f"{after.path} does not follow {before.path}: {OF_ANOTHER}"
        return None

    def clean_up(self) -> None:
        """Delete unfinished segments that a crash left, unless another program has opened them on Windows."""
        self._check_writable()
        for path in self.folder.glob(f"*.{UNFINISHED}"):
            with contextlib.suppress(PermissionError):
                path.unlink()

    # -- segments --------------------------------------------------------------------------------------------

    @property
    def last(self) -> Segment:  # type: ignore[override]
        """The last segment, for reading."""
        assert self._last is not None
        return self._last

    def segment(self, number: int) -> Segment:
        """Return a segment, which is opened if necessary.

        :raises CorruptStorage: if it is missing, damaged, or not the one that the state refers to
        """
        segment = self.segments.get(number)
        if segment is None:
            segment = self.open_segment(number)
            segment.close_file()  # it does not grow, so its mapping is enough
            if segment.id != self.ids.get(number, 0):
                raise CorruptStorage(f"{segment.path} is not the file of this state: {OF_ANOTHER}")
            self.segments[number] = segment
        return segment

    def open_segment(self, number: int) -> Segment:
        """Open a file of the folder.

        :raises CorruptStorage: if it is missing, damaged, or has another number
        """
        path = segment_path(self.folder, number)
        try:
            segment = Segment(path)
        except FileNotFoundError:
            raise CorruptStorage(f"{path} is missing") from None
        if segment.number != number:
            segment.close()
            raise CorruptStorage(f"{path} has the wrong name: it is segment {segment.number} of its buffer")
        return segment

    def switch_to(self, other: Log) -> None:
        """Take over the state and segments of another log of the same folder, which must not be used any more."""
        for segment in self.segments.values():
            segment.close()
        self.segments, self.ids, self._snapshot, self._last = other.segments, other.ids, other._snapshot, other._last

    def close_segments(self, keep: Collection[int]) -> None:
        """Close all segments except some and the last one, so that the disk can free deleted ones."""
        for number in [number for number in self.segments if number not in keep and number != self.last.number]:
            self.segments.pop(number).close()

    def name(self, number: int) -> str:
        """Return the path of a segment, for messages."""
        return str(segment_path(self.folder, number))

    def codec_at(self, number: int, offset: int) -> Codec:
        """Return the codec at the offset of a segment.

        :raises CorruptStorage: if there is none
        """
        segment = self.segment(number)
        try:
            return codec_from_config(load_json(segment.record_at(offset, CODEC).tobytes()))
        except CorruptStorage:
            raise
        except ValueError as error:  # as CodecError
            raise CorruptStorage(f"{segment.path}, the codec at byte {offset}: {error}") from error

    # -- writing ---------------------------------------------------------------------------------------------

    def claim(self, nbytes: int) -> Claim:
        """Return memory for slots and payloads that :meth:`append_claimed` writes; see :meth:`.SegmentLog.claim`."""
        segment = self.segment_to_write()
        return Claim(segment, segment.next_offset, np.empty(nbytes, np.uint8))

    def append_claimed(self, claim: Claim, nbytes: int, copy_nbytes: int = 0) -> None:
        """Append slots and payloads to the last segment; see :meth:`.SegmentLog.append_claimed`.

        :raises StorageError: if something else was appended since they were claimed, as by a handler of a signal
        """
        if not nbytes:
            return
        if claim[:2] != (self.last, self.last.next_offset):
            raise StorageError(f"{self.folder} was written to by a handler of a signal; nothing of this call was")
        self.last.append(SLOTS, claim.room[:nbytes].tobytes())

    def append_codec(self, codec: Codec) -> int:
        """Append a codec to the last segment, and return its offset."""
        return self.last.append(CODEC, json.dumps(codec.get_config()).encode())

    @property
    def is_writable(self) -> bool:
        """Whether this process may write to the folder."""
        return self._lock is not None and self._lock.is_owned

    def segment_to_write(self) -> Segment:
        """Return the segment to append to, which is begun if necessary. Only one thread may write.

        :raises StorageError: if the log is open for reading only, or was opened before a fork
        :raises OSError: if the disk has no room for another segment
        """
        self._check_writable()
        if not self._owns_last:
            self.begin_segment()
        return self.last

    @property
    def _owns_last(self) -> bool:
        """Whether this log began the last segment to append to it."""
        return self._last is not None and self._last.is_writable and not self._last.is_snapshot

    def begin_segment(
        self, snapshot: Iterable[tuple[int, bytes]] | None = None, *, previous: Segment | None = None
    ) -> None:
        """Begin a segment to append to, or write one that contains the complete state.

        :param snapshot: kinds and contents of the records of the state
        :param previous: the segment of another log that it follows, if it is the first one of a copy
        :raises StorageError: as :meth:`segment_to_write`
        :raises OSError: if the disk is full; the log continues with the segment before
        """
        self._check_writable().ensure_held()
        is_snapshot = snapshot is not None
        number, before, newest = self.next_number, self._last, self._snapshot
        path = segment_path(self.folder, number)
        unfinished = path.with_suffix(f".{UNFINISHED}")
        unfinished.unlink(missing_ok=True)
        segment: Segment | None = None
        try:
            with deferred_interrupts():  # which would leave the file open
                segment = Segment.create(
                    unfinished, number, self.identity, previous=before or previous, is_snapshot=is_snapshot
                )
            for kind, content in snapshot or ():
                segment.append(kind, content)
            segment.truncate_tail()
            if is_snapshot:  # the segments that it replaces are deleted
                self._sync()
                segment.flush()
                self._snapshot = number
            segment.close()  # Windows does not rename open files
            segment.path, self.next_number = path, number + 1
            self.ids[number] = segment.id
            self.segments[number] = self._last = segment
            unfinished.rename(path)
        except BaseException:  # Ctrl-C, too, which may come after the renaming
            if not path.exists():
                self.next_number, self._last, self._snapshot = number, before, newest
                self.ids.pop(number, None)
                self.segments.pop(number, None)
                if segment is not None:
                    segment.close()
                unfinished.unlink(missing_ok=True)
            raise
        with contextlib.suppress(OSError):  # the new segment is complete without this
            if is_snapshot:
                flush_path(self.folder)
            if before is not None:
                before.flush()
                before.truncate_tail()
        if before is not None:
            before.close_file()

    def begin_segment_if_full(self) -> None:
        """Begin another segment within a change if the last one is too large; old segments are kept."""
        if self.last.end > MAX_SEGMENT_NBYTES:
            self.drop_cached(self.segments)
            self.begin_segment()

    def drop_segments(self, keep: Collection[int]) -> None:
        """Delete all segments except some, the newest snapshot and what follows it.

        Those that readers have mapped stay readable. What cannot be deleted now is deleted after a later snapshot: all
        while slots are copied, and on Windows files that are open.
        """
        self._check_writable()
        if self.keeps_slots:
            return
        for number in {*self.segments, *self.ids, *segment_numbers(self.folder)}:
            if number not in keep and number < self._snapshot:
                if number in self.segments:
                    self.segments.pop(number).close()
                self.ids.pop(number, None)
                with contextlib.suppress(PermissionError):
                    segment_path(self.folder, number).unlink(missing_ok=True)

    def copy_to(self, folder: Path, numbers: Iterable[int], snapshot: Iterable[tuple[int, bytes]]) -> None:
        """Create a log in a new folder that shares some segments with this one, followed by a snapshot.

        :param snapshot: as for :meth:`begin_segment`
        :raises StorageError: if the folder is not empty
        :raises OSError: if the disk is full
        """
        numbers = [*numbers]
        copy = Log.create(folder)
        try:
            for number in numbers:
                link_or_copy(segment_path(self.folder, number), segment_path(folder, number))
            copy.next_number, copy.identity = self.next_number, self.identity
            # The snapshot stores where the last segment, which may be shared, ends for the copy.
            copy.begin_segment(snapshot, previous=self.last)
        except BaseException:
            for number in numbers:
                with contextlib.suppress(PermissionError):  # Windows deletes no link to a file that is open
                    segment_path(folder, number).unlink(missing_ok=True)
            raise
        finally:
            copy.close()

    def flush(self) -> None:
        """Sync everything to the disk."""
        lock = self._check_writable()
        self._sync()
        lock.ensure_held()

    def _sync(self) -> None:
        """Sync the segments after the newest snapshot, which this process or one that was killed wrote to."""
        # Without a last segment, the files in the folder are those that the first snapshot replaces.
        for number in segment_numbers(self.folder) if self._last is not None else ():
            if number == self.last.number:
                self.last.flush()
            elif number > self._snapshot:
                flush_path(segment_path(self.folder, number))
        with contextlib.suppress(OSError):  # some systems cannot open folders
            flush_path(self.folder)

    # -- write access ----------------------------------------------------------------------------------------

    @property
    def position(self) -> LogPosition:
        """Where the log ends, as far as it was read or written."""
        return LogPosition(self.last.number, self.last.id, self.last.end)

    def acquire(self, lock: FolderLock) -> None:
        """Get write access again, if no other process committed anything since :meth:`close`.

        A last segment that this log began is appended to.

        :param lock: as for :meth:`open`
        :raises StorageError: if another process did, or writes to the folder now
        """
        if self._lock is not None:
            return
        if not has_log(self.folder):
            raise StorageError(f"{self.folder} was deleted; overwrite=True creates it again")
        lock.acquire()
        if not ends_at(self.folder, self.position):
            raise StorageError(f"{self.folder} was written to by another buffer since; overwrite=True replaces it")
        if self._owns_last:
            self.last.open()
            self.last.truncate_tail()  # an interrupt may have left a partial record
            self.segments[self.last.number] = self.last
        self.next_number = self.last.number + 1
        self._lock = lock

    def close(self) -> None:
        """Release write access, and close and unmap all files. Segments that are read are mapped again."""
        try:
            if self.is_writable and self._last is not None:
                self.last.truncate_tail()
        finally:
            for segment in self.segments.values():
                segment.close()
            self.segments = {}
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def _check_writable(self) -> FolderLock:
        if self._lock is None:
            raise StorageError(f"{self.folder} is open for reading only")
        if not self._lock.is_owned:
            raise StorageError(f"{self.folder} is closed, or was opened before this process was forked")
        return self._lock
