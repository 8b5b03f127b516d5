"""The state of a buffer as a set of named arrays and some values, and as records of what changed in it.

A *patch* is the new content of some rows of an array: the array's number (uint16), 1 if its bytes are compressed by
Zstandard, else 0 (uint16), how many bytes follow (uint32), the first row (uint64), the bytes of the rows. A ``PATCHES``
record is patches one after the other. A ``COMMIT`` record is the number of bytes of the values (uint32), the values as
a JSON object, and patches; with it, it and all patches before it count. Its values are those that changed.
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
from sb3_compressed.storage.schema import COMMIT as COMMIT_SCHEMA
from sb3_compressed.storage.schema import check, load_json

__all__ = [
    "COMMIT",
    "PATCHES",
    "apply_patches",
    "commit_record",
    "pack_patch",
    "patches_of",
    "rows_of_chunk",
    "split_commit",
]

#: Kinds of records.
PATCHES, COMMIT = 4, 5
PATCH = struct.Struct("<HHIQ")
SIZE = struct.Struct("<I")
#: Patches of more bytes than this are compressed, if it helps.
MIN_COMPRESSED_NBYTES = 1024
#: Bytes of one patch when a whole array is told.
CHUNK_NBYTES = 1 << 20


def pack_patch(number: int, array: Any, first: int, last: int) -> bytes:
    """Return a patch of the rows from ``first`` up to ``last`` of an array."""
    data: bytes = array[first:last].tobytes()
    is_compressed = len(data) > MIN_COMPRESSED_NBYTES
    if is_compressed:
        smaller = zstandard.ZstdCompressor(level=1).compress(data)
        is_compressed = len(smaller) < len(data)
        data = smaller if is_compressed else data
    return PATCH.pack(number, is_compressed, len(data), first) + data


def patches_of(number: int, array: Any) -> Iterator[bytes]:
    """Yield patches that tell a whole array, but for what is zero."""
    rows = rows_of_chunk(array)
    for first in range(0, len(array), rows):
        last = min(first + rows, len(array))
        if array[first:last].tobytes().strip(b"\0"):
            yield pack_patch(number, array, first, last)


def rows_of_chunk(array: Any) -> int:
    """Return how many rows are told at once."""
    row_nbytes: int = math.prod(array.shape[1:]) * array.dtype.itemsize
    return max(1, CHUNK_NBYTES // max(1, row_nbytes))


def commit_record(values: Mapping[str, Any], patches: Iterable[bytes] = ()) -> bytes:
    """Return the content of a ``COMMIT`` record."""
    data = json.dumps(values, allow_nan=False).encode()
    return b"".join([SIZE.pack(len(data)), data, *patches])


def split_commit(content: NDArray[np.uint8]) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    """Return the values of a ``COMMIT`` record and its patches.

    :raises CorruptStorage: if it is none
    """
    try:
        (nbytes,) = SIZE.unpack(content[: SIZE.size].tobytes())
        if SIZE.size + nbytes > len(content):
            raise ValueError("it is cut short")
        values = load_json(content[SIZE.size : SIZE.size + nbytes].tobytes())
    except (struct.error, ValueError) as error:
        raise CorruptStorage(f"a commit makes no sense: {error}") from error
    check(COMMIT_SCHEMA, values, "a commit makes no sense")
    return values, content[SIZE.size + nbytes :]


def apply_patches(content: NDArray[np.uint8], arrays: list[NDArray[Any]]) -> None:
    """Write patches to the rows of the arrays that they are of.

    :raises CorruptStorage: if one does not fit
    """
    position = 0
    while position < len(content):
        header = content[position : position + PATCH.size].tobytes()
        if len(header) < PATCH.size:
            raise CorruptStorage("a patch is cut short")
        number, is_compressed, nbytes, first = PATCH.unpack(header)
        position += PATCH.size
        data = content[position : position + nbytes].tobytes()
        position += nbytes
        if len(data) < nbytes or number >= len(arrays) or is_compressed > 1 or first > len(arrays[number]):
            raise CorruptStorage(f"a patch of {nbytes} bytes from row {first} of array {number} on makes no sense")
        array = arrays[number]
        target = array[first:]
        if is_compressed:
            try:
                if not 0 <= zstandard.frame_content_size(data) <= target.nbytes:
                    raise zstandard.ZstdError("it is larger than the array")
                data = zstandard.ZstdDecompressor().decompress(data, max_output_size=target.nbytes)
            except zstandard.ZstdError as error:
                raise CorruptStorage(f"a patch from row {first} of array {number} on: {error}") from error
        row_nbytes = array[:1].nbytes
        if len(data) > target.nbytes or len(data) % max(row_nbytes, 1):
            raise CorruptStorage(f"a patch of {len(data)} bytes from row {first} of array {number} on does not fit")
        if data:
            rows = np.frombuffer(data, array.dtype).reshape(-1, *array.shape[1:])
            target[: len(rows)] = rows
