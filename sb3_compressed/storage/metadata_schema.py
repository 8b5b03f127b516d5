"""Schemas of all JSON in the folder of a buffer, and limits for the sizes that it declares.

A folder may be untrusted, and checksums detect accidental damage only. So all JSON is parsed by
:func:`~sb3_compressed.storage.json_schema.load_json` and validated here before it is used: types, ranges, lengths, and
declared sizes against the bytes on the disk. Text is never evaluated, and dtypes are looked up in a list
(:mod:`sb3_compressed.codecs.config`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sb3_compressed.codecs.config import abbreviate, dtype_from_text
from sb3_compressed.errors import CorruptStorage
from sb3_compressed.storage.files import nbytes_on_disk
from sb3_compressed.storage.json_schema import check, parse
from sb3_compressed.storage.spaces import SIZE, parse_scalar, parse_space, space_nbytes

__all__ = [
    "CODECS",
    "COMMIT_SCHEMA",
    "MAX_ARRAYS_NBYTES",
    "MAX_SPACE_NBYTES",
    "METADATA",
    "NBYTES_PER_BYTE_ON_DISK",
    "SAMPLER",
    "check_arrays_nbytes",
    "check_buffer",
    "check_space_nbytes",
    "check_values",
]


#: The most axes of an array.
MAX_AXES = 32
#: An address in a log: the number of a segment, at most eight digits, and an offset of 32 bits.
ADDRESS = range(1, 10**8 << 32)
#: The addresses of the codecs in use.
CODECS = {str: ADDRESS}
#: A commit contains only what has changed.
COMMIT_SCHEMA = {"values?": dict, "codecs?": CODECS}
#: The metadata of a buffer. Its arguments are validated where a buffer is constructed from them.
METADATA = {
    "class": str,
    "streams": {str: {"codec": str, "stored as": dtype_from_text}},
    "observation_space": parse_space,
    "action_space": parse_space,
    "arguments": dict,
}


def parse_layout(data: object) -> object:
    """Return the axis of the frames, their number, and whether the newest is the first; ``None`` for no layout.

    :raises ValueError: if it is something else
    """
    return None if data is None else parse((range(-1, MAX_AXES), range(2, 2**31 + 1), range(2)), data)


STREAM = {
    "layout": parse_layout,
    "detects": bool,
    "training": {"interval": SIZE, "usual_nbytes": float},
}


def parse_sampler_value(data: object) -> bool | int | float | str | None:
    """Return a plain value of the state of a sampler.

    :raises ValueError: if it is something else, or an integer of more than 64 bits
    """
    value: bool | int | float | str | None = parse_scalar(data)
    if isinstance(value, np.dtype) or (type(value) is int and not -(1 << 63) <= value < 1 << 64):
        raise ValueError(f"{abbreviate(data)} is not a number of 64 bits, text or null")
    return value


#: The value "sampler" of a buffer.
SAMPLER = {"step": range(-(1 << 63), 1 << 63), "state": {str: parse_sampler_value}}


def check_values(values: Any, rows: int, what: str) -> None:
    """Raise if the values of a buffer are invalid.

    :param rows: rows of its ring
    :param what: as for :func:`~sb3_compressed.storage.json_schema.check`
    :raises CorruptStorage: with the field
    """
    check({"pos": range(max(rows, 1)), "full": bool, "streams": {str: STREAM}}, values, what)


# -- size limits ------------------------------------------------------------------------------------------------------

#: The size of arrays that every folder may declare, about that of ten million transitions of images. Memory is
#: allocated only where something is written to them.
MAX_ARRAYS_NBYTES = 512 << 20
#: The size of an item of a space that every folder may declare: a stack of four full-HD frames.
MAX_SPACE_NBYTES = 32 << 20
#: Further bytes that a folder may declare for each byte that it occupies on the disk. Arrays of real transitions take
#: less than ten times their size on the disk, since each written slot has its own address.
NBYTES_PER_BYTE_ON_DISK = 100


def check_arrays_nbytes(row_nbytes: Iterable[tuple[int, int]], path: Path, rows: int = 0) -> None:
    """Raise if the arrays that a file declares are too large for the size of its folder on the disk.

    :param row_nbytes: the number of rows of each array, and the bytes of a row
    :param path: the file
    :param rows: the number of rows that the caller requests, which are exempt
    :raises CorruptStorage: with both sizes and what to do
    """
    declared = sum(nbytes * (max(n_rows - rows, 0) or min(n_rows, 1)) for n_rows, nbytes in row_nbytes)
    _check_nbytes(declared, MAX_ARRAYS_NBYTES, path.parent, f"{path} declares arrays", "its buffer_size")


def check_space_nbytes(data: Any, folder: Path, name: str) -> None:
    """Raise if the items of a space are too large for the size of the folder on the disk.

    :param data: a valid space
    :param name: the name of the space
    :raises CorruptStorage: with both sizes and what to do
    """
    _check_nbytes(space_nbytes(data), MAX_SPACE_NBYTES, folder, f"{folder}: {name} has items", name)


def _check_nbytes(declared: int, limit: int, folder: Path, what: str, argument: str) -> None:
    if declared <= limit:
        return
    on_disk = nbytes_on_disk(folder)
    if declared > limit + NBYTES_PER_BYTE_ON_DISK * on_disk:
        raise CorruptStorage(
            f"{what} of {declared} bytes, but its folder takes {on_disk} bytes on the disk; if that is correct because "
            f"the buffer is new and large, pass {argument}"
        )


def check_buffer(
    metadata: Any, shapes: Mapping[str, tuple[int, ...]], folder: Path, given: Collection[str] = ()
) -> None:
    """Raise if the metadata of a buffer is invalid, or declares more than its folder can contain.

    :param metadata: the metadata of the buffer
    :param shapes: the shapes of its arrays
    :param given: names of constructor arguments that the caller passes, which are not checked
    :raises CorruptStorage: with the field
    """
    what = f"{folder}: invalid metadata of the buffer"
    check(METADATA, metadata, what)
    for name in {"observation_space", "action_space"}.difference(given):
        check_space_nbytes(metadata[name], folder, name)
    rows, n_envs = (*shapes.get("actions", ()), 0, 0)[:2]
    size, envs = metadata["arguments"].get("buffer_size"), metadata["arguments"].get("n_envs", 1)
    # Otherwise a small folder could request a buffer of any size.
    if type(size) is not int or type(envs) is not int or envs < 1 or (max(size // envs, 1), envs) != (rows, n_envs):
        raise CorruptStorage(
            f"{what}: buffer_size is {abbreviate(size)} and n_envs {abbreviate(envs)}, but its arrays have {rows} rows "
            f"of {n_envs} environments"
        )
