"""Schemas of all JSON in the folder of a buffer, and limits for the sizes that it declares.

A folder may be untrusted, and checksums detect accidental damage only. So all JSON is parsed by
:func:`~sb3_compressed.storage.json_schema.load_json` and validated here before it is used: types, ranges, lengths, and
declared sizes against the bytes on the disk. Text is never evaluated, and dtypes are looked up in a list
(:mod:`sb3_compressed.codecs.config`).
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from sb3_compressed.codecs.config import dtype_from_text
from sb3_compressed.errors import CorruptStorage
from sb3_compressed.storage import json_schema as js
from sb3_compressed.storage.files import nbytes_on_disk
from sb3_compressed.storage.json_schema import Schema, SchemaError, brief, check

__all__ = [
    "ARGUMENT",
    "COMMIT_SCHEMA",
    "MANIFEST_SCHEMA",
    "MAX_ARRAYS_NBYTES",
    "MAX_SPACE_NBYTES",
    "METADATA",
    "NBYTES_PER_BYTE_ON_DISK",
    "SPACE",
    "check_arrays_nbytes",
    "check_buffer",
    "check_space_nbytes",
    "check_values",
    "space_nbytes",
]

# -- spaces -----------------------------------------------------------------------------------------------------------


def array(value: Any, path: str) -> None:
    """Accept an array in base64, or a single element that fills the array."""
    js.record({"shape": js.list_of(js.integer(0), high=32), "dtype": js.dtype, "content": js.text})(value, path)
    try:
        nbytes = len(base64.b64decode(value["content"], validate=True))
    except (binascii.Error, ValueError) as error:
        raise js.mismatch(value["content"], f"{path}.content", "base64") from error
    itemsize = dtype_from_text(value["dtype"]).itemsize
    if nbytes not in (itemsize, math.prod(value["shape"]) * itemsize):
        raise SchemaError(f"{js.name_of(path)}.content has {nbytes} bytes, which do not fit the shape {value['shape']}")


def box(value: Any, path: str) -> None:
    """Accept the bounds of a Box, both of the same shape and dtype."""
    js.record({"low": array, "high": array})(value, path)
    kinds = [(value[bound]["shape"], value[bound]["dtype"]) for bound in ("low", "high")]
    if kinds[0] != kinds[1]:
        raise SchemaError(f"{js.name_of(path)} has bounds of different shapes or dtypes: {brief(kinds)}")


def dict_space(value: Any, path: str) -> None:
    """Accept the subspaces of a Dict space, each with a distinct key."""
    js.record({"spaces": js.list_of(js.tuple_of(js.text, space))})(value, path)
    keys = [key for key, _ in value["spaces"]]
    if len({*keys}) < len(keys):
        raise SchemaError(f"{js.name_of(path)} has a duplicate key: {brief(keys)}")


def space(value: Any, path: str) -> None:
    """Accept a space as :func:`sb3_compressed.storage.spaces.space_to_data` writes it."""
    js.record({"space": js.one_of(*SPACES)})(value, path)
    SPACES[value["space"]](value, path)


SPACES: dict[str, Schema] = {
    "Box": box,
    "Discrete": js.record({"n": js.integer(1), "start": js.integer(), "dtype": js.dtype}),
    "MultiDiscrete": js.record({"nvec": array, "start": array, "dtype": js.dtype}),
    "MultiBinary": js.record({"n": js.either(js.list_of(js.integer(1), 1, 32), js.integer(1))}),
    "Dict": dict_space,
}
SPACE: Schema = space


def space_nbytes(value: Any) -> int:
    """Return the bytes of one item of a space that matches :data:`SPACE`; its bounds take at least as many."""
    kind = value["space"]
    if kind == "Dict":
        return sum(space_nbytes(part) for _, part in value["spaces"])
    if kind == "Discrete":
        return 8
    if kind == "MultiBinary":
        return math.prod(value["n"]) if isinstance(value["n"], list) else int(value["n"])
    bounds = value["low" if kind == "Box" else "nvec"]
    return int(math.prod(bounds["shape"])) * dtype_from_text(bounds["dtype"]).itemsize


# -- arguments and metadata of a buffer -------------------------------------------------------------------------------

#: A codec; its fields are validated against those of its class (:mod:`sb3_compressed.codecs.config`).
CODEC = js.record({"name": js.text, "fields": js.mapping_of(js.anything)})


def argument(value: Any, path: str) -> None:
    """Accept an argument as :func:`sb3_compressed.storage.spaces.argument_to_data` writes it."""
    if type(value) is not dict:
        if value is not None and type(value) not in (bool, int, str):
            js.number(value, path)
        return
    if len(value) != 1 or next(iter(value)) not in ARGUMENTS:
        raise js.mismatch(value, path, f"an object with one of the keys {', '.join(ARGUMENTS)}")
    [(kind, content)] = value.items()
    ARGUMENTS[kind](content, f"{path}.{kind}")


ARGUMENTS: dict[str, Schema] = {
    "codec": CODEC,
    "mapping": js.mapping_of(argument),
    "dtype": js.dtype,
    "float": js.one_of("inf", "-inf", "nan"),
}
ARGUMENT: Schema = argument

#: An address in a log: the number of a segment, at most eight digits, and an offset of 32 bits.
ADDRESS = js.integer(1, (10**8 << 32) - 1)
#: Shape, dtype, whether its elements are addresses and, since version 2, whether it has a row for each step.
ARRAY_SPEC = (js.list_of(js.integer(0), 1, 32), js.dtype, js.boolean)


def array_spec(value: Any, path: str) -> None:
    """Accept the specification of an array of either version."""
    is_version_2 = type(value) is list and len(value) == len(ARRAY_SPEC) + 1
    js.tuple_of(*ARRAY_SPEC, *[js.boolean] * is_version_2)(value, path)


def segment_ids(value: Any, path: str) -> None:
    """Accept an object that maps numbers of segments to their ids, 16 hexadecimal digits."""
    js.mapping_of(js.text)(value, path)
    for key, each in value.items():
        if not re.fullmatch(r"[0-9]{1,8}", key) or not re.fullmatch(r"[0-9a-f]{16}", each):
            raise js.mismatch({key: each}, path, "the number of a segment and 16 hexadecimal digits")


#: The first record of a segment. The content of "about" is validated separately (:data:`METADATA`).
MANIFEST_SCHEMA = js.record(
    {"about": js.mapping_of(js.anything), "arrays": js.mapping_of(array_spec)},
    {
        "segments": segment_ids,
        "values": js.mapping_of(js.anything),
        "codecs": js.mapping_of(ADDRESS),
        "step": js.integer(-1, (1 << 63) - 1),
        "epoch": js.integer(0, (1 << 63) - 1),
    },
)
COMMIT_SCHEMA = js.record({}, {"values": js.mapping_of(js.anything), "codecs": js.mapping_of(ADDRESS)})

METADATA = js.record(
    {
        "class": js.text,
        "streams": js.mapping_of(js.record({"codec": js.text, "stored as": js.dtype})),
        "observation_space": SPACE,
        "action_space": SPACE,
        "arguments": js.mapping_of(ARGUMENT),
    }
)

STREAM = js.record(
    {},
    {
        "layout": js.either(js.null, js.tuple_of(js.one_of(0, -1), js.integer(2, 2**31))),
        "searches": js.boolean,
        "lessons": js.record({"interval": js.integer(0), "learned_nbytes": js.number}),
    },
)


def check_values(values: Any, rows: int, what: str) -> None:
    """Raise if the values of a buffer are invalid.

    :param rows: rows of its ring
    :param what: as for :func:`~sb3_compressed.storage.json_schema.check`
    :raises CorruptStorage: with the field
    """
    schema = js.record({"pos": js.integer(0, max(rows, 1) - 1), "full": js.boolean}, {"streams": js.mapping_of(STREAM)})
    check(schema, values, what)


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
    if declared <= MAX_ARRAYS_NBYTES:
        return
    on_disk = nbytes_on_disk(path.parent)
    if declared > MAX_ARRAYS_NBYTES + NBYTES_PER_BYTE_ON_DISK * on_disk:
        raise CorruptStorage(
            f"{path} declares arrays of {declared} bytes, but its folder takes {on_disk} bytes on the disk; if that is "
            "correct because the buffer is new and large, pass its buffer_size"
        )


def check_space_nbytes(data: Any, folder: Path, name: str) -> None:
    """Raise if the items of a space are too large for the size of the folder on the disk.

    :param data: a space that matches :data:`SPACE`
    :param name: the name of the space
    :raises CorruptStorage: with both sizes and what to do
    """
    declared = space_nbytes(data)
    if declared > MAX_SPACE_NBYTES:
        on_disk = nbytes_on_disk(folder)
        if declared > MAX_SPACE_NBYTES + NBYTES_PER_BYTE_ON_DISK * on_disk:
            raise CorruptStorage(
                f"{folder}: {name} has items of {declared} bytes, but the folder takes {on_disk} bytes on the disk; if "
                f"that is correct because the buffer is new, pass {name}"
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
            f"{what}: buffer_size is {brief(size)} and n_envs {brief(envs)}, but its arrays have {rows} rows of "
            f"{n_envs} environments"
        )
