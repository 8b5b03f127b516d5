r"""``Segment``: one file of a log, an append-only sequence of records with checksums.

A segment begins with a header (``segment_header.py``). Records follow, each of

- a header of 16 bytes: the checksum of the content (uint64), its number of bytes (uint32), the kind of the record
  (uint8), and the lowest 24 bits of the XXH64 of these 13 bytes;
- the content; the seed of its XXH64 is made of the kind and the number of bytes;
- the byte 255.

Numbers are little-endian. Every seed is XORed with the segment's id, so a record of one segment is never valid in
another: the files of two copies of a folder that were both written to cannot be mixed up. Only the log object that
began a segment appends records to it. So of two files with the same id, the commits of one are a prefix of those of the
other.

The file may be longer than its records, and is zero there: it grows in large steps, and Windows does not truncate what
a process has mapped. This distinguishes a crash of the writing process from damage: a truncated record has only zeros
from some byte on and so lacks its last byte; a record with a flipped bit does not look like that.
"""

from __future__ import annotations

import mmap
import os
import struct
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.kernels.checksum import checksum
from sb3_compressed.storage.files import (
    create_regular_file,
    flush_path,
    is_at_path,
    open_regular_file,
    read_at,
    write_at,
)
from sb3_compressed.storage.segment_header import HEADERS_NBYTES, new_header, read_header

__all__ = ["Record", "Segment"]

#: The header of a record: checksum of the content, its number of bytes, kind, checksum of these.
RECORD_HEADER = struct.Struct("<QIB3s")
HEADER_NBYTES = RECORD_HEADER.size
#: The bytes of the header that its own checksum covers.
HEADER_CHECKED_NBYTES = HEADER_NBYTES - 3
#: The last byte of every record.
LAST = b"\xff"
#: Offsets have 32 bits.
MAX_NBYTES = (1 << 32) - 1
MIN_GROWTH = 1 << 20
BLOCK_NBYTES = 1 << 20  # bytes that are read at a time
#: How often a record that another process may be writing is read before it counts as damaged.
TRIES = 1000


class Record(NamedTuple):
    """A record of a segment.

    :ivar kind: the kind of its content, 1 to 255
    :ivar offset: where its content begins in the segment
    :ivar content: the bytes, read-only
    """

    kind: int
    offset: int
    content: NDArray[np.uint8]

    @property
    def end(self) -> int:
        """Where the next record begins."""
        return self.offset + len(self.content) + len(LAST)


class Segment:
    """A file of records, mapped into memory for reading.

    Windows neither deletes nor renames files that are open or mapped, so :meth:`close` ends both.

    :param path: the file
    :param writable: whether records may be appended
    :raises CorruptStorage: if the file is not a segment, or its header is damaged or of another version
    """

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        self.path = path
        self.is_writable = writable
        self._open_file()
        try:
            header = read_header(self._file, path)
            self._map()
        except BaseException:
            self.close_file()
            raise
        self.number, self.identity, self.id, self.previous_id, self.previous_end, self.is_snapshot = header
        #: Where the next record begins, as far as :meth:`records` has read.
        self.end = HEADERS_NBYTES
        #: Where the last write ends; after :attr:`end` if an interrupt may have left a partial record there.
        self._written_end = HEADERS_NBYTES

    @classmethod
    def create(
        cls, path: Path, number: int, identity: int, *, previous: Segment | None = None, is_snapshot: bool = False
    ) -> Segment:
        """Create a file and return it, open for writing.

        :param number: the number of the segment in its log
        :param identity: that of the log, the same in all its segments
        :param previous: the segment before this one, read or written up to its end
        :param is_snapshot: whether its records contain a complete state
        """
        previous_id, previous_end = (0, 0) if previous is None else (previous.id, previous.end)
        with create_regular_file(path) as file:
            header = new_header(number, identity, previous_id, previous_end, is_snapshot=is_snapshot)
            write_at(file, memoryview(header), 0)
        return cls(path, writable=True)

    def _open_file(self) -> None:
        self._file = open_regular_file(self.path, "r+b" if self.is_writable else "rb")
        self._close_file = weakref.finalize(self, self._file.close)

    def open(self) -> None:
        """Open and map the file again after :meth:`close`."""
        self._open_file()
        self._map()

    def _map(self) -> None:
        nbytes = os.fstat(self._file.fileno()).st_size
        if nbytes > MAX_NBYTES:  # a sparse file could make a reader scan any number of bytes
            raise CorruptStorage(f"{self.path} has {nbytes} bytes, more than the maximum of {MAX_NBYTES}")
        #: The bytes of the file, read-only. They end where a writer may truncate it: reading mapped memory beyond the
        #: end of the file crashes the process.
        self.bytes: NDArray[np.uint8] = np.frombuffer(
            mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8
        )

    def is_replaced(self) -> bool:
        """Return whether there is another file at its path now, or none."""
        return not is_at_path(self._file, self.path)

    # -- writing ---------------------------------------------------------------------------------------------

    def _extend(self, nbytes: int) -> None:
        """Extend the file for further records. References to its old mapping stay valid.

        :param nbytes: the bytes of the next record
        :raises OSError: if the disk is full
        :raises StorageError: if offsets would exceed 32 bits
        """
        if self.end + nbytes > MAX_NBYTES:
            raise StorageError(f"{self.path} cannot have more than {MAX_NBYTES} bytes")
        # It is mapped again each time, so it doubles. It is sparse: only written pages take space on the disk.
        growth = max(nbytes, MIN_GROWTH, self.end)
        try:
            self._file.truncate(min(self.end + growth, MAX_NBYTES))
        except OSError:  # the disk may have room for this record only
            self._file.truncate(self.end + nbytes)
        self._map()

    def append(self, kind: int, content: bytes | bytearray) -> int:
        """Write a record and return the offset of its content. It survives a crash of the process, not a power cut.

        :raises OSError: if the disk is full; the record is removed
        :raises StorageError: if offsets would exceed 32 bits
        """
        nbytes = len(content)
        header = RECORD_HEADER.pack(checksum(content, (kind << 32 | nbytes) ^ self.id), nbytes, kind, b"")
        checked = header[:HEADER_CHECKED_NBYTES]
        data = b"".join((checked, self._header_checksum(checked), content, LAST))
        offset = self.next_offset
        if self._file.closed:
            self.open()
        if self._written_end > self.end:
            self.truncate_tail()
        if self.end + len(data) > len(self.bytes):
            self._extend(len(data))
        self._written_end = self.end + len(data)
        try:
            write_at(self._file, memoryview(data), self.end)
        except OSError:
            self.truncate_tail()
            raise
        self.end += len(data)
        return offset

    def truncate_tail(self) -> None:
        """Remove what follows the end, a partial record or zeros, if this is open for writing.

        While another process, or an array, refers to the mapping on Windows, zeros stay there.
        """
        if not self.is_writable or self._file.closed:
            return
        self._unmap()  # Windows does not truncate what is mapped
        try:
            try:
                self._file.truncate(self.end)
            except OSError:
                write_at(self._file, memoryview(bytes(max(self._written_end - self.end, 0))), self.end)
            self._written_end = self.end
        finally:
            self._map()

    def flush(self) -> None:
        """Sync the file to the disk."""
        if self.is_writable and not self._file.closed:
            os.fsync(self._file.fileno())
        else:
            flush_path(self.path)

    def close_file(self) -> None:
        """Close the file, but not its mapping, which is enough to read a segment that does not grow."""
        self._close_file()

    def close(self) -> None:
        """Close the file and its mapping, which stays while arrays refer to it. The next append opens them again."""
        self.close_file()
        self._unmap()

    def _unmap(self) -> None:
        self.bytes = np.empty(0, np.uint8)

    # -- reading ---------------------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """Where the content of the next record will be."""
        return self.end + HEADER_NBYTES

    def record_at(self, offset: int, kind: int) -> NDArray[np.uint8]:
        """Return the content of a record that begins at an offset.

        :raises CorruptStorage: if there is no such record
        """
        start = offset - HEADER_NBYTES
        record = self._record_at(start) if start >= HEADERS_NBYTES else None
        if record is None or record.kind != kind:
            raise CorruptStorage(f"{self.path} has no record of kind {kind} at byte {offset}")
        return record.content

    def is_record_end(self, offset: int) -> bool:
        """Return whether a record may end at an offset; false if the file is shorter, or was not written that far."""
        return offset == HEADERS_NBYTES or self._read(offset - 1, 1) == LAST

    def records(
        self,
        start: int | None = None,
        *,
        is_growing: bool = False,
        limit: int | None = None,
        problems: list[str] | None = None,
    ) -> Iterator[Record]:
        """Yield the records from an offset on, and set :attr:`end` after each.

        :param start: where to begin; ``None`` for the first record
        :param is_growing: whether another process may be writing the next record
        :param limit: where the last record ends, if known
        :param problems: receives a description of each damaged part, which is skipped; ``None`` to raise an error there
        :raises CorruptStorage: at a damaged record, or if no record ends at the limit
        """
        self.end = HEADERS_NBYTES if start is None else start
        while True:
            try:
                yield from self._records(limit, is_growing=is_growing)
                return
            except CorruptStorage as error:
                if problems is None:
                    raise
                problems.append(str(error))
            data = self._read(self.end + 1, BLOCK_NBYTES)
            places = range(len(data) - HEADER_NBYTES + 1)
            skipped = next((at for at in places if self._is_header(data[at : at + HEADER_NBYTES])), None)
            if skipped is None:
                return
            self.end += 1 + skipped

    def _records(self, limit: int | None, *, is_growing: bool) -> Iterator[Record]:
        """Yield the records from :attr:`end` on, and raise at a damaged one."""
        while limit is None or self.end < limit:
            record = self._next_record(TRIES if is_growing else 1)
            if record is None:
                break
            self.end = record.end
            yield record
        if limit is not None and self.end != limit:
            raise CorruptStorage(f"{self.path} ends at byte {self.end}, but must have {limit} bytes")
        if not self.is_writable:
            if self.end > len(self.bytes):
                self._map()
            self.bytes = self.bytes[: self.end]  # a writer truncates the file here when it ends

    def _next_record(self, n_tries: int) -> Record | None:
        """Return the record at the end so far, ``None`` if there is none or it is truncated."""
        while True:
            n_tries -= 1
            try:
                return self._record_at(self.end, is_growing=n_tries > 0)
            except CorruptStorage:
                if not n_tries:
                    raise

    def _record_at(self, start: int, *, is_growing: bool = False) -> Record | None:
        """Return the record that begins at an offset, ``None`` if there is none or it is truncated.

        This reads the file, not the mapped memory: the writer truncates the file when it ends, and reading mapped
        memory beyond the end of the file crashes the process.
        """
        offset = start + HEADER_NBYTES
        header = self._read(start, HEADER_NBYTES)
        if len(header) < HEADER_NBYTES or not self._is_header(header):
            if any(header) if is_growing else self._has_data_from(offset):
                raise CorruptStorage(f"{self.path} is damaged at byte {start}")
            return None
        expected, nbytes, kind, _ = RECORD_HEADER.unpack(header)
        last = self._read(offset + nbytes, 1)  # first: a forged size may exceed the file and the memory
        content = self._read(offset, nbytes) if last else b""
        if not any(last):
            if not is_growing and self._has_data_from(offset + nbytes):
                raise CorruptStorage(f"{self.path} is damaged at byte {offset + nbytes}")
            return None
        if last != LAST or checksum(content, (kind << 32 | nbytes) ^ self.id) != expected:
            raise CorruptStorage(f"{self.path} is damaged somewhere in the {nbytes} bytes from byte {offset} on")
        return Record(kind, offset, np.frombuffer(content, dtype=np.uint8))

    def _header_checksum(self, checked: bytes) -> bytes:
        return checksum(checked, HEADER_CHECKED_NBYTES ^ self.id).to_bytes(8, "little")[:3]

    def _is_header(self, header: bytes) -> bool:
        return self._header_checksum(header[:HEADER_CHECKED_NBYTES]) == header[HEADER_CHECKED_NBYTES:]

    def _read(self, offset: int, nbytes: int) -> bytes:
        if self._file.closed:
            return self.bytes[offset : offset + nbytes].tobytes()
        return read_at(self._file, nbytes, offset)

    def _has_data_from(self, offset: int) -> bool:
        """Return whether any byte from an offset on is not zero."""
        while block := self._read(offset, BLOCK_NBYTES):
            if block.strip(b"\0"):
                return True
            offset += len(block)
        return False
