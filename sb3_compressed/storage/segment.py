r"""One segment of a log: a file that only ever grows, of records with checksums.

A segment begins with a header of 32 bytes: ``b"SB3CMPR\n"``, the version of the format and the segment's number (both
uint32), the log's identity (uint64) and the XXH64 of these (uint64). Records follow one after the other, each of

- a header of 16 bytes: the checksum of the content (uint64), how many bytes it has (uint32), the kind of the record
  (uint8), and the lowest 24 bits of the XXH64 of these 13 bytes;
- the content, whose checksum is an XXH64 with kind and number of bytes as its seed;
- the byte 255.

Numbers are little-endian. The file may be longer than what was written to it, and is zero there. So where the process
that writes was killed is told apart from damage: a record cut short has nothing but zeros from some byte on, and
therefore lacks its last byte; a bit that flipped later does not look like that.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import weakref
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from sb3_compressed.byte_kernels import INT
from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.jit import BYTES, kernel
from sb3_compressed.storage.checksum import checksum, put_low_bytes, xxh64
from sb3_compressed.storage.files import create_regular_file, open_regular_file, write_all

__all__ = ["FORMAT_VERSION", "Record", "Segment", "record_nbytes"]

MAGIC = b"SB3CMPR\n"
FORMAT_VERSION = 1
HEADER = struct.Struct("<8sIIQQ")
CHECKED = HEADER.size - 8  # bytes of the header before its checksum
RECORD = struct.Struct("<QIB3s")
RECORD_NBYTES = RECORD.size
RECORD_CHECKED = RECORD_NBYTES - 3
LAST = b"\xff"
NO_HEADER = bytes(RECORD_NBYTES)
#: Offsets have 32 bits.
MAX_NBYTES = (1 << 32) - 1
TAIL = 4096
MIN_GROWTH = 16 << 20


class Record(NamedTuple):
    """A record of a segment.

    :ivar kind: what its content is, 1 to 255
    :ivar offset: where its content begins in the segment
    :ivar content: the bytes, read-only
    """

    kind: int
    offset: int
    content: NDArray[np.uint8]


def record_nbytes(content_nbytes: int) -> int:
    """Return the bytes that a record takes."""
    return RECORD_NBYTES + content_nbytes + len(LAST)


class Segment:
    """A file of records, mapped into memory for reading.

    :param path: the file
    :param writable: whether records may be appended
    :raises CorruptStorage: if the file is no segment, or its header is damaged or of another version
    """

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        self.path = path
        self._is_writable = writable
        self._file = open_regular_file(path, "r+b" if writable else "rb")
        self._close = weakref.finalize(self, self._file.close)  # where nobody closes it
        try:
            self.number, self.identity = self._read_header()
            self._map()
        except BaseException:
            self.close()
            raise
        self._is_dirty = self._has_room = False
        #: Where the next record begins; :meth:`records` finds it out.
        self.end = HEADER.size

    @classmethod
    def create(cls, path: Path, number: int, identity: int) -> Segment:
        """Make a file and return it, open for writing.

        :param number: its place among the log's segments
        :param identity: the log's, the same in all of its segments
        """
        start = HEADER.pack(MAGIC, FORMAT_VERSION, number, identity, 0)[:CHECKED]
        with create_regular_file(path) as file:
            write_all(file, start + checksum(start).to_bytes(8, "little"))
        return cls(path, writable=True)

    def _map(self) -> None:
        if (nbytes := self._file_nbytes()) > MAX_NBYTES:  # all of it would be looked at, hole or not
            raise CorruptStorage(f"{self.path} has {nbytes} bytes, and files of this package at most {MAX_NBYTES}")
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._mapped: NDArray[np.uint8] = np.frombuffer(mapped, dtype=np.uint8)
        #: Its bytes, read-only, as far as the file is sure to have them: touching what is mapped behind that is fatal.
        self.bytes = self._mapped

    def _read_header(self) -> tuple[int, int]:
        header = self._file.read(HEADER.size)
        if len(header) < HEADER.size or not header.startswith(MAGIC):
            raise CorruptStorage(f"{self.path} does not begin as a file of this package")
        _, version, number, identity, expected = HEADER.unpack(header)
        if checksum(header[:CHECKED]) != expected:
            raise CorruptStorage(f"{self.path} is damaged at byte 0, in its header")
        if version != FORMAT_VERSION:
            raise CorruptStorage(f"{self.path} has version {version} of the format, known here is {FORMAT_VERSION}")
        return number, identity

    @property
    def n_names(self) -> int:
        """How many folders the file is in."""
        return os.fstat(self._file.fileno()).st_nlink

    def is_another_at_its_path(self) -> bool:
        """Tell whether there is another file of its name by now."""
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
        if record_nbytes(len(content)) > self.room:
            self.make_room(max(record_nbytes(len(content)), min(MIN_GROWTH, MAX_NBYTES - self.end)))
        data = bytearray().join((NO_HEADER, content, LAST))
        put_header(np.frombuffer(data, dtype=np.uint8), kind)
        self.settle()
        self._is_dirty = True
        try:
            self._write(self.end, memoryview(data))
        except OSError:
            self.forget_the_rest()
            raise
        offset = self.end + RECORD_NBYTES
        self.end += len(data)
        self._is_dirty = False
        return offset

    def settle(self) -> None:
        """If an interrupt came into the last record, keep it if it is whole, since others may have read it."""
        if not self._is_dirty:
            return
        try:
            record = self._whole_record(self.end, is_growing=True)
        except CorruptStorage:
            record = None
        if record is None:
            self.forget_the_rest()
        else:
            self.end = record.offset + len(record.content) + len(LAST)
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
        record = self._whole_record(start) if start >= HEADER.size else None
        if record is None or record.kind != kind:
            raise CorruptStorage(f"{self.path} has no record of kind {kind} at byte {offset}")
        return record.content

    def _write(self, offset: int, data: memoryview) -> None:
        written = 0
        while written < len(data):  # a disk that is nearly full takes a part
            written += write_at(self._file, data[written:], offset + written)

    def records(self, start: int = HEADER.size, *, is_growing: bool = False) -> Iterator[Record]:
        """Yield the records from an offset on, and know where the end is after the last one.

        :param is_growing: whether another process may be writing the next one just now
        :raises CorruptStorage: at a record that is damaged
        """
        self.end = start
        while (record := self._next_record(TRIES if is_growing else 1)) is not None:
            self.end = record.offset + len(record.content) + len(LAST)
            yield record
        if not self._is_writable:
            if self.end > len(self._mapped):
                self._map()
            self.bytes = self._mapped[: self.end]  # a writer that ends makes the file as short as that

    def damages(self) -> Iterator[str]:
        """Yield what is wrong with each record that is damaged, as far as headers tell where the next one is."""
        self.end = HEADER.size
        while True:
            try:
                record = self._whole_record(self.end)
            except CorruptStorage as error:  # noqa: PERF203  # rare
                yield str(error)
                header = self._read(self.end, RECORD_NBYTES)
                if header[:RECORD_CHECKED] + header_check(header[:RECORD_CHECKED]) != header:
                    return
                self.end += record_nbytes(RECORD.unpack(header)[1])
            else:
                if record is None:
                    return
                self.end += record_nbytes(len(record.content))

    def _next_record(self, n_tries: int) -> Record | None:
        """Return the record at the end so far, ``None`` if there is none or it was cut short."""
        while True:
            n_tries -= 1
            try:
                return self._whole_record(self.end, is_growing=n_tries > 0)
            except CorruptStorage:
                if not n_tries:
                    raise

    def _whole_record(self, start: int, *, is_growing: bool = False) -> Record | None:
        """Return the record that begins at an offset, ``None`` if there is none or it was cut short.

        The file is read, not what is mapped: a writer that ends makes it shorter, and touching what was mapped behind
        its end is fatal.
        """
        offset = start + RECORD_NBYTES
        header = self._read(start, RECORD_NBYTES)
        if len(header) < RECORD_NBYTES or header[:RECORD_CHECKED] + header_check(header[:RECORD_CHECKED]) != header:
            if any(header) if is_growing else self.is_anything_behind(offset):
                raise CorruptStorage(f"{self.path} is damaged at byte {start}")
            return None
        expected, nbytes, kind, _ = RECORD.unpack(header)
        # What is claimed to be longer than the file is not read, since that would take memory for all of it.
        content = self._read(offset, nbytes) if nbytes <= CHUNK or offset + nbytes <= self._file_nbytes() else b""
        last = self._read(offset + nbytes, 1)
        if not any(last):
            if not is_growing and self.is_anything_behind(offset + nbytes):
                raise CorruptStorage(f"{self.path} is damaged at byte {offset + nbytes}")
            return None
        if last != LAST or checksum(content, seed_of(kind, nbytes)) != expected:
            raise CorruptStorage(f"{self.path} is damaged somewhere in the {nbytes} bytes from byte {offset} on")
        return Record(kind, offset, np.frombuffer(content, dtype=np.uint8))

    def _read(self, offset: int, nbytes: int) -> bytes:
        if self._file.closed:
            return self.bytes[offset : offset + nbytes].tobytes()
        return read_at(self._file, nbytes, offset)

    def _file_nbytes(self) -> int:
        return len(self.bytes) if self._file.closed else os.fstat(self._file.fileno()).st_size

    def is_anything_behind(self, offset: int) -> bool:
        """Tell whether the file is not zero from an offset on."""
        while chunk := self._read(offset, CHUNK):
            if chunk.strip(b"\0"):
                return True
            offset += len(chunk)
        return False

    def forget_the_rest(self) -> None:
        """Cut off what is behind the end: a record that was cut short, or what a repair gives up."""
        self._shorten()
        self._is_dirty = False

    def give_back_room(self) -> None:
        """Make the file as long as what was written to it, if room was made in it."""
        if self._has_room:
            self._shorten()

    def _shorten(self) -> None:
        self._file.truncate(self.end)
        self.bytes = self._mapped[: self.end]
        self._has_room = False

    def seal(self) -> None:
        """Close the file, as long as what was written to it, when all of it is on the disk."""
        self.give_back_room()
        self.flush()
        self.close()

    def flush(self) -> None:
        """Return when all that was written is on the disk, as far as the operating system knows."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let go of the file. What was read from it stays readable as long as somebody refers to it."""
        self._close()


CHUNK = 1 << 20  # bytes that are looked at at a time
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


def header_check(start: bytes) -> bytes:
    """Return the bytes by which damage to a record's header is seen."""
    return checksum(start, RECORD_CHECKED).to_bytes(8, "little")[:3]


@kernel(types.void, BYTES, INT)
def put_header(record: NDArray[np.uint8], kind: int) -> None:
    """Write the header of a record, whose other bytes are there."""
    start = record.ctypes.data
    nbytes = record.size - RECORD_NBYTES - 1  # of the content
    put_low_bytes(start, xxh64(start + RECORD_NBYTES, nbytes, np.uint64(kind << 32 | nbytes)), 8)
    put_low_bytes(start + 8, np.uint64(nbytes), 4)
    put_low_bytes(start + 12, np.uint64(kind), 1)
    put_low_bytes(start + 13, xxh64(start, RECORD_CHECKED, np.uint64(RECORD_CHECKED)), 3)


def seed_of(kind: int, nbytes: int) -> int:
    """Return the seed of the checksum of a record's content."""
    return kind << 32 | nbytes
