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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from sb3_compressed.errors import CorruptStorage
from sb3_compressed.storage.json_schema import load_json, parse
from sb3_compressed.storage.metadata_schema import COMMIT_SCHEMA

__all__ = [
    "apply_patches",
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


def apply_patches(
    content: NDArray[np.uint8],
    arrays: Sequence[NDArray[Any]],
    ring: Sequence[int],
    covered: Sequence[NDArray[np.bool_]] | None = None,
) -> int | None:
    """Apply patches to arrays.

    :param ring: the numbers of the arrays that have a row for each step
    :param covered: a mask of rows for each array, set where rows are written; ``None`` if it is not needed
    :return: the last step among the patches, ``None`` if there is none
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
        if len(part) < nbytes or encoding > ZEROS or (number != RING and number >= len(arrays)):
            raise _invalid(nbytes, number, first)
        if number != RING:
            rows = _write(arrays[number], number, encoding, first, part)
            if covered is not None:
                covered[number][rows] = True
            continue
        step, n_rows = first, min((len(arrays[each]) for each in ring), default=0)
        sizes = [arrays[each][:1].nbytes for each in ring]
        if not n_rows or step > MAX_STEP or len(part) != sum(sizes) or encoding != STORED:
            raise CorruptStorage(f"invalid patch of {len(part)} bytes for step {step}")
        row, begin = step % n_rows, 0
        for each, size in zip(ring, sizes, strict=True):
            _write(arrays[each], each, STORED, row, part[begin : begin + size])
            begin += size
            if covered is not None:
                covered[each][row] = True
    return step


def _write(array: NDArray[Any], number: int, encoding: int, first: int, data: bytes) -> slice:
    """Write a patch to its array, and return the rows that it contains.

    :raises CorruptStorage: if it is invalid
    """
    if first > len(array):
        raise _invalid(len(data), number, first)
    target = array[first:]
    if encoding == ZEROS:
        n_rows = COUNT.unpack(data)[0] if len(data) == COUNT.size else len(array) + 1
        if n_rows > len(target):
            raise _invalid(len(data), number, first)
        if not is_zero(target[:n_rows]):  # writing zeros would allocate untouched pages
            target[:n_rows] = 0
        return slice(first, first + n_rows)
    if encoding == COMPRESSED:
        try:
            if not 0 <= zstandard.frame_content_size(data) <= target.nbytes:
                raise zstandard.ZstdError("it is larger than the array")
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=target.nbytes)
        except zstandard.ZstdError as error:
            raise CorruptStorage(f"a patch of array {number} from row {first} on: {error}") from error
    if len(data) > target.nbytes or len(data) % max(array[:1].nbytes, 1):
        raise _invalid(len(data), number, first)
    if not data:
        return slice(0, 0)
    rows = np.frombuffer(data, array.dtype).reshape(-1, *array.shape[1:])
    target[: len(rows)] = rows
    return slice(first, first + len(rows))


def _invalid(nbytes: int, number: int, first: int) -> CorruptStorage:
    return CorruptStorage(f"invalid patch of {nbytes} bytes for array {number} from row {first} on")
