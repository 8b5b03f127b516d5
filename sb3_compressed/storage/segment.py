r"""One segment of a log: a file that only ever grows, made of records with checksums.

A segment begins with a header, written twice so that one damaged copy costs nothing: ``b"SB3CMPR\n"``, the version of
the format and the segment's number (both uint32), the log's identity and the segment's own random id (both uint64), the
id of the segment before it (uint64), where that one ended (uint32), flags (uint32; 1 for a snapshot) and the XXH64 of
these (uint64). Records follow one after the other, each of

- a header of 16 bytes: the checksum of the content (uint64), how many bytes it has (uint32), the kind of the record
  (uint8), and the lowest 24 bits of the XXH64 of these 13 bytes;
- the content, whose checksum is an XXH64 with kind and number of bytes as its seed;
- the byte 255.

Numbers are little-endian. Every seed is XORed with the segment's id, so a record of one segment never passes for one of
another: two copies of a folder that were both written to cannot be mixed up. Only the log object that began a segment
appends to it, so of two files with one id, one is the beginning of the other.

The file may be longer than what was written to it, and is zero there. So where the process that writes was killed is
told apart from damage: a record cut short has nothing but zeros from some byte on, and therefore lacks its last byte; a
bit that flipped later does not look like that.

Version 1, which is still read, has a header of 32 bytes without id, previous segment and flags; its id counts as 0, and
each of its segments begins with a snapshot.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import threading
import weakref
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.byte_kernels import INT, WORD
from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.jit import BYTES, INT_ROWS, READ_BYTES, byte_at, kernel, word_at
from sb3_compressed.storage.checksum import checksum, put_low_bytes, xxh64
from sb3_compressed.storage.files import create_regular_file, open_regular_file, write_all

__all__ = ["FORMAT_VERSION", "Record", "Segment", "record_nbytes"]

MAGIC = b"SB3CMPR\n"
FORMAT_VERSION = 2
HEADER = struct.Struct("<8sIIQQQIIQ")
HEADER_V1 = struct.Struct("<8sIIQQ")
IS_SNAPSHOT = 1
RECORD = struct.Struct("<QIB3s")
RECORD_NBYTES = RECORD.size
RECORD_CHECKED = RECORD_NBYTES - 3
LAST = b"\xff"
NO_HEADER = bytes(RECORD_NBYTES)
#: Offsets have 32 bits.
MAX_NBYTES = (1 << 32) - 1
TAIL = 4096
MIN_GROWTH = 1 << 20


class Record(NamedTuple):
    """A record of a segment.

    :ivar kind: what its content is, 1 to 255
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


def record_nbytes(content_nbytes: int) -> int:
    """Return the bytes that a record takes."""
    return RECORD_NBYTES + content_nbytes + len(LAST)


class Header(NamedTuple):
    """What a segment's header tells.

    :ivar number: its place in the log
    :ivar identity: the log's
    :ivar id: the segment's own, 0 in version 1
    :ivar previous_id: the id of the segment before it, 0 if there is none
    :ivar previous_end: where that one ends
    :ivar is_snapshot: whether the state can be read from here on, without the segments before
    :ivar start: where the first record begins
    """

    number: int
    identity: int
    id: int
    previous_id: int
    previous_end: int
    is_snapshot: bool
    start: int


def new_id() -> int:
    """Return a random id for a segment; 0 is that of version 1."""
    return secrets.randbelow((1 << 64) - 1) + 1


def read_header(file: FileIO, path: Path) -> tuple[Header, bool]:
    """Return a segment's header, and whether one of its two copies is damaged.

    :raises CorruptStorage: if both are, or the file is no segment of a known version
    """
    data = file.read(2 * HEADER.size)
    copies = [data[: HEADER.size], data[HEADER.size :]]
    whole = [copy for copy in copies if len(copy) == HEADER.size and _is_whole(copy)]
    if not whole:
        return _read_header_v1(data[: HEADER_V1.size], path), False
    _, version, number, identity, own, previous, end, flags, _ = HEADER.unpack(whole[0])
    if version != FORMAT_VERSION:
        raise CorruptStorage(f"{path} has version {version} of the format, known here are 1 and {FORMAT_VERSION}")
    header = Header(number, identity, own, previous, end, bool(flags & IS_SNAPSHOT), 2 * HEADER.size)
    return header, whole != copies


def _read_header_v1(data: bytes, path: Path) -> Header:
    if len(data) < HEADER_V1.size or not data.startswith(MAGIC):
        raise CorruptStorage(f"{path} does not begin as a file of this package")
    _, version, number, identity, _ = HEADER_V1.unpack(data)
    if version == 1 and _is_whole(data):
        return Header(number, identity, 0, 0, 0, True, HEADER_V1.size)
    if version > FORMAT_VERSION:
        raise CorruptStorage(f"{path} has version {version} of the format, known here are 1 and {FORMAT_VERSION}")
    raise CorruptStorage(f"{path} is damaged at byte 0, in its header")


def _is_whole(header: bytes) -> bool:
    return header.startswith(MAGIC) and checksum(header[:-8]) == int.from_bytes(header[-8:], "little")


class Segment:
    """A file of records, mapped into memory for reading.

    :param path: the file
    :param writable: whether records may be appended
    :raises CorruptStorage: if the file is no segment, or its header is damaged or of another version
    """

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        self.path = path
        self.is_writable = writable
        self._file = open_regular_file(path, "r+b" if writable else "rb")
        self._close = weakref.finalize(self, self._file.close)  # where nobody closes it
        try:
            header, self.damaged_header = read_header(self._file, path)
            self._map()
        except BaseException:
            self.close()
            raise
        self.number, self.identity, self.id, self.previous_id, self.previous_end, self.is_snapshot, self.start = header
        self._is_dirty = self._has_room = False
        #: Where the next record begins; :meth:`records` finds it out.
        self.end = self.start

    @classmethod
    def create(
        cls, path: Path, number: int, identity: int, *, previous: Segment | None = None, is_snapshot: bool = False
    ) -> Segment:
        """Create a file and return it, open for writing.

        :param number: its place among the log's segments
        :param identity: the log's, the same in all of its segments
        :param previous: the segment that this one follows, which ends where it is read or written up to
        :param is_snapshot: whether its records hold a whole state
        """
        before, end = (0, 0) if previous is None else (previous.id, previous.end)
        flags = IS_SNAPSHOT if is_snapshot else 0
        fields = HEADER.pack(MAGIC, FORMAT_VERSION, number, identity, new_id(), before, end, flags, 0)[:-8]
        with create_regular_file(path) as file:
            write_all(file, 2 * (fields + checksum(fields).to_bytes(8, "little")))
        return cls(path, writable=True)

    def _map(self) -> None:
        if (nbytes := self._file_nbytes()) > MAX_NBYTES:  # all of it would be looked at, hole or not
            raise CorruptStorage(f"{self.path} has {nbytes} bytes, and files of this package at most {MAX_NBYTES}")
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._mapped: NDArray[np.uint8] = np.frombuffer(mapped, dtype=np.uint8)
        #: Its bytes, read-only, as far as the file is sure to have them: touching what is mapped behind that is fatal.
        self.bytes = self._mapped

    @property
    def n_names(self) -> int:
        """How many folders the file is in."""
        return os.fstat(self._file.fileno()).st_nlink

    def is_another_at_its_path(self) -> bool:
        """Return whether there is another file of its name by now."""
        try:
            return not os.path.samestat(os.fstat(self._file.fileno()), os.lstat(self.path))
        except FileNotFoundError:
            return False

    @property
    def room(self) -> int:
        """Bytes that further records may take."""
        return len(self.bytes) - self.end

    def make_room(self, nbytes: int) -> None:
        """Have room for further records. What was read before stays where it is as long as somebody refers to it."""
        if self.end + nbytes > MAX_NBYTES:
            raise StorageError(f"{self.path} cannot have more than {MAX_NBYTES} bytes")
        if self.room < nbytes:
            self._has_room = True
            self._file.truncate(self.end + nbytes)  # the disk holds only what is written
            self._map()

    def append(self, kind: int, content: bytes | bytearray) -> int:
        """Write a record and return the offset of its content. It outlives the process, not yet a power cut.

        :raises OSError: if the disk does not take it; there is then no such record
        :raises StorageError: if the segment would become too large for its offsets
        """
        offset = self.next_offset
        self._append(self._packed(kind, content))
        return offset

    def append_many(self, records: Iterable[tuple[int, bytes]]) -> None:
        """Write records, of which kinds and contents are given, many at a time."""
        data = bytearray()
        for kind, content in records:
            data += self._packed(kind, content)
            if len(data) > CHUNK:
                self._append(data)
                data = bytearray()
        if data:
            self._append(data)

    def _packed(self, kind: int, content: bytes | bytearray) -> bytearray:
        data = bytearray().join((NO_HEADER, content, LAST))
        put_header(np.frombuffer(data, dtype=np.uint8), kind, np.uint64(self.id))
        return data

    def _append(self, data: bytearray) -> None:
        nbytes = len(data)
        if nbytes > self.room:
            try:
                self.make_room(max(nbytes, min(MIN_GROWTH, MAX_NBYTES - self.end)))
            except OSError:  # there may be room for this
                self.make_room(nbytes)
        self.settle()
        self._is_dirty = True
        try:
            self._write(self.end, memoryview(data))
        except OSError:
            self.truncate_tail()
            raise
        self.end += nbytes
        self._is_dirty = False

    def settle(self) -> None:
        """If an interrupt came into the last record, keep it if it is whole, since others may have read it."""
        if not self._is_dirty:
            return
        try:
            record = self._whole_record(self.end, is_growing=True)
        except CorruptStorage:
            record = None
        if record is None:
            self.truncate_tail()
        else:
            self.end = record.end
        self._is_dirty = False

    def tail(self) -> bytes:
        """Return the last bytes before the end, by which it is known whether somebody else wrote other ones."""
        return self._read(max(0, self.end - TAIL), min(TAIL, self.end))

    @property
    def next_offset(self) -> int:
        """Where the content of the next record will be."""
        return self.end + RECORD_NBYTES

    def record_at(self, offset: int, kind: int) -> NDArray[np.uint8]:
        """Return the content of a record of which it is known where its content begins.

        :raises CorruptStorage: if there is no such record
        """
        start = offset - RECORD_NBYTES
        record = self._whole_record(start) if start >= self.start else None
        if record is None or record.kind != kind:
            raise CorruptStorage(f"{self.path} has no record of kind {kind} at byte {offset}")
        return record.content

    def _write(self, offset: int, data: memoryview) -> None:
        written = 0
        while written < len(data):  # a disk that is nearly full takes a part
            written += write_at(self._file, data[written:], offset + written)

    def records(
        self, start: int | None = None, *, is_growing: bool = False, limit: int | None = None
    ) -> Iterator[Record]:
        """Yield the records from an offset on, and know where the end is after the last one.

        :param start: where to begin; ``None`` for the first record
        :param is_growing: whether another process may be writing the next one just now
        :param limit: where the last record ends, if that is known
        :raises CorruptStorage: at a record that is damaged, or if there is none that ends at the limit
        """
        self.end = self.start if start is None else start
        chunk_nbytes = MIN_CHUNK
        while limit is None or self.end < limit:
            chunk_nbytes = min(4 * chunk_nbytes, CHUNK)
            for record in self._records_of_chunk(
                chunk_nbytes if limit is None else min(chunk_nbytes, limit - self.end)
            ):
                self.end = record.end
                yield record
            if limit is not None and self.end >= limit:
                break
            # What remains is a large record, the end, or damage.
            following = self._next_record(TRIES if is_growing else 1)
            if following is None:
                break
            self.end = following.end
            yield following
        if limit is not None and self.end != limit:
            raise CorruptStorage(f"{self.path} ends at byte {self.end}, where {limit} bytes are expected")
        if not self.is_writable:
            if self.end > len(self._mapped):
                self._map()
            self.bytes = self._mapped[: self.end]  # a writer that ends makes the file as short as that

    def _records_of_chunk(self, nbytes: int) -> Iterator[Record]:
        """Yield the whole records among the next bytes, in a fraction of the time that one after the other takes."""
        start = self.end
        data = np.frombuffer(self._read(start, nbytes), np.uint8)
        found = np.empty((len(data) // RECORD_NBYTES, 3), np.int64)
        n_found = find_records(data, np.uint64(self.id), found)
        for kind, offset, content_nbytes in found[:n_found].tolist():
            yield Record(kind, start + offset, data[offset : offset + content_nbytes])

    def damages(self, limit: int | None = None) -> Iterator[str]:
        """Yield what is wrong with each damaged part, and know where the end is."""
        if self.damaged_header:
            yield f"{self.path} is damaged in one of the two copies of its header"
        for part in self.undamaged_records(limit):
            if isinstance(part, CorruptStorage):
                yield str(part)

    def undamaged_records(
        self, limit: int | None = None, *, start: int | None = None
    ) -> Iterator[Record | CorruptStorage]:
        """Yield all records that are whole, and the error in the place of each part that is not.

        :param start: where to begin; ``None`` for the first record
        :param limit: where the last record ends, if that is known
        """
        self.end = self.start if start is None else start
        while True:
            try:
                yield from self.records(self.end, limit=limit)
                return
            except CorruptStorage as error:  # rare
                yield error
            following = self._next_whole_record(self.end + 1, limit)
            if following is None:
                return
            self.end = following

    def _next_whole_record(self, start: int, limit: int | None) -> int | None:
        """Return the offset of the first whole record from a byte on, behind damage."""
        size = min(len(self._mapped), os.fstat(self._file.fileno()).st_size)
        data = self._mapped[start : size if limit is None else min(size, limit)]
        at = find_record(data, np.uint64(self.id))
        return None if at < 0 else start + int(at)

    def _next_record(self, n_tries: int) -> Record | None:
        """Return the record at the end so far, ``None`` if there is none or it was cut short."""
        while True:
            n_tries -= 1
            try:
                return self._whole_record(self.end, is_growing=n_tries > 0)
            except CorruptStorage:
                if not n_tries:
                    raise

    def _header_check(self, header: bytes) -> bytes:
        """Return the bytes by which damage to a record's header is seen."""
        return checksum(header[:RECORD_CHECKED], RECORD_CHECKED ^ self.id).to_bytes(8, "little")[:3]

    def _whole_record(self, start: int, *, is_growing: bool = False) -> Record | None:
        """Return the record that begins at an offset, ``None`` if there is none or it was cut short.

        The file is read, not what is mapped: a writer that ends makes it shorter, and touching what was mapped behind
        its end is fatal.
        """
        offset = start + RECORD_NBYTES
        header = self._read(start, RECORD_NBYTES)
        if len(header) < RECORD_NBYTES or header[:RECORD_CHECKED] + self._header_check(header) != header:
            if any(header) if is_growing else self.is_anything_behind(offset):
                raise CorruptStorage(f"{self.path} is damaged at byte {start}")
            return None
        expected, nbytes, kind, _ = RECORD.unpack(header)
        last = self._read(offset + nbytes, 1)  # first: what a header claims need not be there, nor fit into memory
        content = self._read(offset, nbytes) if last else b""
        if not any(last):
            if not is_growing and self.is_anything_behind(offset + nbytes):
                raise CorruptStorage(f"{self.path} is damaged at byte {offset + nbytes}")
            return None
        if last != LAST or checksum(content, (kind << 32 | nbytes) ^ self.id) != expected:
            raise CorruptStorage(f"{self.path} is damaged somewhere in the {nbytes} bytes from byte {offset} on")
        return Record(kind, offset, np.frombuffer(content, dtype=np.uint8))

    def _read(self, offset: int, nbytes: int) -> bytes:
        if self._file.closed:
            return self.bytes[offset : offset + nbytes].tobytes()
        return read_at(self._file, nbytes, offset)

    def _file_nbytes(self) -> int:
        return len(self.bytes) if self._file.closed else os.fstat(self._file.fileno()).st_size

    def is_anything_behind(self, offset: int) -> bool:
        """Return whether the file is not zero from an offset on."""
        while chunk := self._read(offset, CHUNK):
            if chunk.strip(b"\0"):
                return True
            offset += len(chunk)
        return False

    def truncate_tail(self) -> None:
        """Cut off what is behind the end: a record that was cut short, or what a repair gives up."""
        self._shorten()
        self._is_dirty = False

    def truncate(self, end: int) -> None:
        """Cut off records from an offset on."""
        self.end = end
        self.truncate_tail()

    def shrink_to_fit(self) -> None:
        """Make the file as long as what was written to it, if room was made in it."""
        if self._has_room:
            self._shorten()

    def _shorten(self) -> None:
        self._file.truncate(self.end)
        self.bytes = self._mapped[: self.end]
        self._has_room = False

    def seal(self) -> None:
        """Close the file, as long as what was written to it."""
        self.shrink_to_fit()
        self.close()

    def flush(self) -> None:
        """Return when all that was written is on the disk, as far as the operating system knows."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let go of the file. What was read from it stays readable as long as somebody refers to it."""
        self._close()


CHUNK = 1 << 20  # bytes that are read at a time
MIN_CHUNK = 1 << 12  # the first time, since there is often little
#: How often a record is looked at that another process may be writing just now, before it is taken for damaged.
TRIES = 1000


if hasattr(os, "pread"):  # which other threads do not disturb

    def read_at(file: FileIO, nbytes: int, offset: int) -> bytes:
        """Read bytes from an offset on."""
        return os.pread(file.fileno(), nbytes, offset)

    def write_at(file: FileIO, data: memoryview, offset: int) -> int:
        """Write bytes from an offset on, and return how many."""
        return os.pwrite(file.fileno(), data, offset)

else:  # Windows
    _place = threading.Lock()

    def read_at(file: FileIO, nbytes: int, offset: int) -> bytes:
        """Read bytes from an offset on."""
        with _place:
            file.seek(offset)
            return file.read(nbytes)

    def write_at(file: FileIO, data: memoryview, offset: int) -> int:
        """Write bytes from an offset on, and return how many."""
        with _place:
            file.seek(offset)
            return file.write(data)


@kernel(types.void, BYTES, INT, types.uint64)
def put_header(record: NDArray[np.uint8], kind: int, segment_id: np.uint64) -> None:
    """Write the header of a record, whose other bytes are there."""
    start = record.ctypes.data
    nbytes = record.size - RECORD_NBYTES - 1  # of the content
    put_low_bytes(start, xxh64(start + RECORD_NBYTES, nbytes, np.uint64(kind << 32 | nbytes) ^ segment_id), 8)
    put_low_bytes(start + 8, np.uint64(nbytes), 4)
    put_low_bytes(start + 12, np.uint64(kind), 1)
    put_low_bytes(start + 13, xxh64(start, RECORD_CHECKED, np.uint64(RECORD_CHECKED) ^ segment_id), 3)


@kernel(INT, INT, types.uint64)
def header_nbytes(record: int, segment_id: np.uint64) -> int:
    """Return how many bytes the content of a record at an address has, -1 if its header of 16 bytes is none."""
    fields = word_at(record + WORD)
    check = xxh64(record, RECORD_CHECKED, np.uint64(RECORD_CHECKED) ^ segment_id) & np.uint64(0xFFFFFF)
    return np.int64(fields & np.uint64(0xFFFFFFFF)) if fields >> np.uint64(40) == check else -1  # type: ignore[return-value]


@kernel(types.boolean, INT, INT, types.uint64)
def is_whole_record(record: int, nbytes: int, segment_id: np.uint64) -> bool:
    """Return whether a record, of which all bytes are there, has the content that its header tells of."""
    kind_and_nbytes = word_at(record + WORD) & np.uint64(0xFFFFFFFFFF)
    found = xxh64(record + RECORD_NBYTES, nbytes, kind_and_nbytes ^ segment_id)
    return byte_at(record + RECORD_NBYTES + nbytes) == 255 and found == word_at(record)


@kernel(INT, READ_BYTES, types.uint64, INT_ROWS)
def find_records(data: NDArray[np.uint8], segment_id: np.uint64, found: NDArray[np.int64]) -> int:
    """Find the whole records that follow one after the other from the first byte on.

    :param found: is given the kind of each, where its content begins, and how many bytes that has, ``(at most, 3)``
    :return: how many there are
    """
    base, at, n_found = data.ctypes.data, 0, 0
    while n_found < len(found) and at + RECORD_NBYTES <= data.size:
        nbytes = header_nbytes(base + at, segment_id)
        if nbytes < 0 or at + RECORD_NBYTES + nbytes + 1 > data.size:
            break
        if not is_whole_record(base + at, nbytes, segment_id):
            break
        found[n_found, 0] = np.int64((word_at(base + at + WORD) >> np.uint64(32)) & np.uint64(255))
        found[n_found, 1], found[n_found, 2] = at + RECORD_NBYTES, nbytes
        n_found += 1
        at += RECORD_NBYTES + nbytes + 1
    return n_found


@kernel(INT, READ_BYTES, types.uint64)
def find_record(data: NDArray[np.uint8], segment_id: np.uint64) -> int:
    """Return the first byte at which a whole record begins, whatever lies before it; -1 if there is none."""
    base = data.ctypes.data
    for at in range(data.size - RECORD_NBYTES):
        nbytes = header_nbytes(base + at, segment_id)
        is_inside = nbytes >= 0 and at + RECORD_NBYTES + nbytes + 1 <= data.size
        if is_inside and is_whole_record(base + at, nbytes, segment_id):
            return at
    return -1
