"""The records of a commit: patches of named arrays, and some values.

A *patch* is the new content of some rows of an array: the array's number (uint16), the encoding of its bytes (uint16: 0
as they are, 1 compressed by Zstandard, 2 all zero), the number of bytes that follow (uint32), the first row (uint64),
and the bytes of the rows, or the number of zero rows (uint64). The number 65535 stands for one row of every array of
the ring, in order. Instead of the first row, such a patch has the number of a step: higher than that of any earlier
step, and congruent to the row modulo the number of rows. The value ``pos`` is then the following row. A ``PATCHES``
record is a sequence of patches. A ``COMMIT`` record is the number of bytes of the values (uint32), the changed values
as a JSON object (empty if none changed), and patches; it commits itself and all patches before it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from sb3_compressed.errors import CorruptStorage
from sb3_compressed.storage.json_schema import load_json, parse
from sb3_compressed.storage.metadata_schema import COMMIT_SCHEMA

__all__ = [
    "PatchApplier",
    "commit_record",
    "pack_patch",
    "pack_ring_row",
    "rows_of_chunk",
    "snapshot_patches",
    "split_commit",
]

#: The array number of a patch of one row of every array of the ring.
RING = 0xFFFF
#: Encodings of the bytes of a patch.
STORED, COMPRESSED, ZEROS = 0, 1, 2
PATCH = struct.Struct("<HHIQ")
SIZE = struct.Struct("<I")
COUNT = struct.Struct("<Q")
#: Patches of more bytes than this are compressed, if that makes them smaller.
MIN_COMPRESSED_PATCH_NBYTES = 1024
#: Bytes of a patch in a snapshot; damage to a patch affects that many.
CHUNK_NBYTES = 1 << 13
#: Minimum number of patches of an array in a snapshot, if it has as many rows.
MIN_CHUNKS = 32
#: The highest number of a step.
MAX_STEP = (1 << 63) - 1
#: Rows of the ring that are collected before they are written to the arrays at once.
MAX_COLLECTED = 1 << 12


def pack_patch(number: int, array: Any, first: int, last: int) -> bytes:
    """Return a patch of the rows ``first:last`` of an array."""
    data: bytes = array[first:last].tobytes()
    is_compressed = len(data) > MIN_COMPRESSED_PATCH_NBYTES
    if is_compressed:
        smaller = zstandard.ZstdCompressor(level=1).compress(data)
        is_compressed = len(smaller) < len(data)
        data = smaller if is_compressed else data
    return PATCH.pack(number, is_compressed, len(data), first) + data


def pack_ring_row(arrays: Iterable[Any], row: int, step: int) -> bytes:
    """Return a patch of one row of every array of the ring.

    :param step: the number of the step that wrote it
    """
    data = b"".join([array[row].tobytes() for array in arrays])
    return PATCH.pack(RING, STORED, len(data), step) + data


def pack_zeros(number: int, first: int, last: int) -> bytes:
    """Return a patch that sets the rows ``first:last`` of an array to zero."""
    return PATCH.pack(number, ZEROS, COUNT.size, first) + COUNT.pack(last - first)


def snapshot_patches(number: int, array: Any) -> Iterator[bytes]:
    """Yield patches that together contain every row of an array once."""
    rows = rows_of_chunk(array)
    zeros = 0  # start of the zero rows that are not in a patch yet
    for first in range(0, len(array), rows):
        last = min(first + rows, len(array))
        if is_zero(array[first:last]):
            continue
        if zeros < first:
            yield pack_zeros(number, zeros, first)
        yield pack_patch(number, array, first, last)
        zeros = last
    if zeros < len(array):
        yield pack_zeros(number, zeros, len(array))


def is_zero(array: Any) -> bool:
    """Return whether all bytes of an array are zero; those of -0.0 are not."""
    return not np.ascontiguousarray(array).reshape(-1).view(np.uint8).any()


def rows_of_chunk(array: Any) -> int:
    """Return the number of rows in a patch of a snapshot, which are lost together if it is damaged."""
    row_nbytes: int = math.prod(array.shape[1:]) * array.dtype.itemsize
    return max(1, min(CHUNK_NBYTES // max(1, row_nbytes), -(-len(array) // MIN_CHUNKS)))


def commit_record(values: Mapping[str, Any], patches: Iterable[bytes] = ()) -> bytes:
    """Return the content of a ``COMMIT`` record."""
    data = json.dumps(values, allow_nan=False).encode() if values else b""
    return b"".join([SIZE.pack(len(data)), data, *patches])


def split_commit(content: NDArray[np.uint8]) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    """Return the values of a ``COMMIT`` record and its patches.

    :raises CorruptStorage: if it is invalid
    """
    try:
        (nbytes,) = SIZE.unpack(content[: SIZE.size].tobytes())
        if SIZE.size + nbytes > len(content):
            raise ValueError("it is truncated")
        data = content[SIZE.size : SIZE.size + nbytes].tobytes()
        values = parse(COMMIT_SCHEMA, load_json(data)) if data else {}
    except (struct.error, ValueError) as error:
        raise CorruptStorage(f"invalid commit: {error}") from error
    return values, content[SIZE.size + nbytes :]


class PatchApplier:
    """Applies patches to arrays, in the order in which they were committed.

    :param arrays: the arrays, by number
    :param ring: the numbers of the arrays that have a row for each step
    :param covered: a mask of rows for each array, set where rows are written; ``None`` if it is not needed
    """

    def __init__(
        self, arrays: list[NDArray[Any]], ring: Iterable[int], covered: list[NDArray[np.bool_]] | None = None
    ) -> None:
        self._arrays, self._covered = arrays, covered
        self._ring_numbers = [*ring]
        self._ring = [arrays[number] for number in self._ring_numbers]
        self._row_nbytes = sum(array[:1].nbytes for array in self._ring)
        self._n_rows = min((len(array) for array in self._ring), default=0)
        # Collected rows of the ring: writing them one by one would take most of the time.
        self._rows: list[int] = []
        self._data: list[bytes] = []

    def apply(self, content: NDArray[np.uint8]) -> int | None:
        """Apply patches; those of single rows of the ring are collected until :meth:`finish`.

        :return: the last step among them, ``None`` if there is none
        :raises CorruptStorage: if a patch is invalid
        """
        position, step = 0, None
        data = content.tobytes()
        while position < len(data):
            if position + PATCH.size > len(data):
                raise CorruptStorage("a patch is truncated")
            number, encoding, nbytes, first = PATCH.unpack_from(data, position)
            position += PATCH.size
            part = data[position : position + nbytes]
            position += nbytes
            if len(part) < nbytes or encoding > ZEROS:
                raise _invalid(nbytes, number, first)
            if number == RING:
                step = self._collect(first, part, encoding)
            else:
                self._write(number, encoding, first, part)
        return step

    def _collect(self, step: int, data: bytes, encoding: int) -> int:
        if not self._n_rows or step > MAX_STEP or len(data) != self._row_nbytes or encoding != STORED:
            raise CorruptStorage(f"invalid patch of {len(data)} bytes for step {step}")
        self._rows.append(step % self._n_rows)
        self._data.append(data)
        if len(self._rows) == MAX_COLLECTED:
            self.finish()
        return step

    def finish(self) -> None:
        """Write the collected rows to the arrays."""
        if not self._rows:
            return
        # The last patch of a row counts.
        rows, newest = np.unique(np.array(self._rows[::-1]), return_index=True)
        content = np.frombuffer(b"".join(self._data[::-1]), np.uint8).reshape(len(self._rows), -1)[newest]
        begin = 0
        for number, array in zip(self._ring_numbers, self._ring, strict=True):
            nbytes = array[:1].nbytes
            part = np.ascontiguousarray(content[:, begin : begin + nbytes])
            if nbytes:
                array[rows] = part.reshape(-1).view(array.dtype).reshape(len(rows), *array.shape[1:])
            begin += nbytes
            self._mark_covered(number, rows)
        self._rows, self._data = [], []

    def _write(self, number: int, encoding: int, first: int, data: bytes) -> None:
        self.finish()
        if number >= len(self._arrays) or first > len(self._arrays[number]):
            raise _invalid(len(data), number, first)
        array = self._arrays[number]
        target = array[first:]
        if encoding == ZEROS:
            n_rows = COUNT.unpack(data)[0] if len(data) == COUNT.size else len(array) + 1
            if n_rows > len(target):
                raise _invalid(len(data), number, first)
            if not is_zero(target[:n_rows]):  # writing zeros would allocate untouched pages
                target[:n_rows] = 0
            self._mark_covered(number, slice(first, first + n_rows))
            return
        if encoding == COMPRESSED:
            try:
                if not 0 <= zstandard.frame_content_size(data) <= target.nbytes:
                    raise zstandard.ZstdError("it is larger than the array")
                data = zstandard.ZstdDecompressor().decompress(data, max_output_size=target.nbytes)
            except zstandard.ZstdError as error:
                raise CorruptStorage(f"a patch of array {number} from row {first} on: {error}") from error
        if len(data) > target.nbytes or len(data) % max(array[:1].nbytes, 1):
            raise _invalid(len(data), number, first)
        if data:
            rows = np.frombuffer(data, array.dtype).reshape(-1, *array.shape[1:])
            target[: len(rows)] = rows
            self._mark_covered(number, slice(first, first + len(rows)))

    def _mark_covered(self, number: int, rows: Any) -> None:
        if self._covered is not None:
            self._covered[number][rows] = True


def _invalid(nbytes: int, number: int, first: int) -> CorruptStorage:
    return CorruptStorage(f"invalid patch of {nbytes} bytes for array {number} from row {first} on")
