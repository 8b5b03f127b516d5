"""The one schema of all metadata in a folder: what JSON may say where, and how large what it declares may be.

A folder may come from a stranger, and checksums protect against flipped bits only. So JSON is read by :func:`load_json`
and checked here before anything is made of it: types, ranges, lengths, and sizes against the bytes on the disk. Text is
never evaluated, and dtypes are looked up in a list (:mod:`sb3_compressed.storage.dtypes`). Keys that are not in a
schema are ignored, so that later versions can add some.

A schema is a function that raises for a value that does not fit it; small ones are put together to larger ones.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from sb3_compressed.errors import CorruptStorage
from sb3_compressed.storage.dtypes import dtype_from_text
from sb3_compressed.storage.files import nbytes_on_disk

__all__ = [
    "ABOUT",
    "ARGUMENT",
    "COMMIT",
    "MANIFEST",
    "MAX_ARRAYS_NBYTES",
    "MAX_SPACE_NBYTES",
    "NBYTES_PER_BYTE_ON_DISK",
    "SPACE",
    "Schema",
    "check",
    "check_arrays_nbytes",
    "check_buffer",
    "check_space_nbytes",
    "check_values",
    "load_json",
    "space_nbytes",
]

Schema = Callable[[Any, str], None]
"""Raises :class:`Misfit` if a value, of which the path in the metadata is given, is not as it has to be."""

#: Lists and objects inside each other. Nothing that is written has ten, but for Dict spaces in Dict spaces.
MAX_DEPTH = 64
MAX_INT = 2**63 - 1
MAX_FLOAT = sys.float_info.max


class Misfit(ValueError):
    """A value does not fit its schema; the message says where it is and what it has to be."""


def check(schema: Schema, value: Any, what: str) -> None:
    """Raise if a value does not fit a schema.

    :param what: what the value is, with the folder or file: the message begins with it
    :raises CorruptStorage: naming the field, what it has to be and what it is
    """
    try:
        schema(value, "")
    except (Misfit, RecursionError) as error:
        raise CorruptStorage(f"{what}: {error}") from error


def load_json(data: bytes) -> Any:
    """Return what JSON says.

    :raises ValueError: if it is no JSON, or has numbers that are infinite or none, a key twice, text that is no
        Unicode, or too much inside each other
    """
    try:
        text = data.decode("utf-8")
        value = DECODER.decode(text)
        if text.count("[") + text.count("{") > MAX_DEPTH:
            _check_depth(value)
        if "\\ud" in text.lower():  # half of a character that takes two
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError(DEEP) from None
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number that can be meant")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key is there twice: {brief([key for key, _ in pairs])}")
    return found


#: One, since json.loads would make one for each commit.
DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_object)
DEEP = f"more than {MAX_DEPTH} lists and objects are inside each other"


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
    if any(isinstance(each, dict | list) for each in level):
        raise ValueError(DEEP)


def brief(value: Any) -> str:
    """Return a value for a message, cut where it is long."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # ValueError: an int of more digits than Python prints
        return f"a {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:100]}..."


def refuse(value: Any, path: str, expected: str) -> Misfit:
    """Return the error for a value."""
    return Misfit(f"{path.lstrip('.') or 'all of it'} must be {expected}, got {brief(value)}")


# -- small schemas ----------------------------------------------------------------------------------------------------


def integer(low: int = -MAX_INT - 1, high: int = MAX_INT) -> Schema:
    """Take integers in a range, both ends included; not booleans."""

    def fits(value: Any, path: str) -> None:
        if type(value) is not int or not low <= value <= high:
            raise refuse(value, path, f"an integer from {low} to {high}")

    return fits


def number(value: Any, path: str) -> None:
    """Take finite numbers; not booleans."""
    if type(value) not in (int, float) or not abs(value) <= MAX_FLOAT:
        raise refuse(value, path, "a finite number")


def boolean(value: Any, path: str) -> None:
    """Take true and false."""
    if type(value) is not bool:
        raise refuse(value, path, "true or false")


def text(value: Any, path: str) -> None:
    """Take text."""
    if type(value) is not str:
        raise refuse(value, path, "text")


def anything(value: Any, path: str) -> None:
    """Take whatever JSON can say."""


def one_of(*values: Any) -> Schema:
    """Take one of some values, of the same type."""

    def fits(value: Any, path: str) -> None:
        if not any(type(value) is type(each) and value == each for each in values):
            raise refuse(value, path, f"one of {', '.join(map(repr, values))}")

    return fits


def dtype(value: Any, path: str) -> None:
    """Take the name of a dtype of numbers."""
    try:
        dtype_from_text(value)
    except ValueError as error:
        raise refuse(value, path, "a dtype of numbers") from error


def list_of(item: Schema, low: int = 0, high: int = MAX_INT) -> Schema:
    """Take lists of some length whose items fit a schema."""

    def fits(value: Any, path: str) -> None:
        if type(value) is not list or not low <= len(value) <= high:
            raise refuse(value, path, f"a list of {low} to {high} items" if high < MAX_INT else "a list")
        for index, each in enumerate(value):
            item(each, f"{path}[{index}]")

    return fits


def tuple_of(*items: Schema) -> Schema:
    """Take lists with an item for each schema."""

    def fits(value: Any, path: str) -> None:
        if type(value) is not list or len(value) != len(items):
            raise refuse(value, path, f"a list of {len(items)} items")
        for index, (each, item) in enumerate(zip(value, items, strict=True)):
            item(each, f"{path}[{index}]")

    return fits


def mapping_of(item: Schema) -> Schema:
    """Take objects with any keys whose values fit a schema."""

    def fits(value: Any, path: str) -> None:
        if type(value) is not dict:
            raise refuse(value, path, "an object")
        for key, each in value.items():
            item(each, f"{path}.{brief(key)[1:-1]}")

    return fits


def record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """Take objects with a value for each of some keys."""

    def fits(value: Any, path: str) -> None:
        if type(value) is not dict:
            raise refuse(value, path, "an object")
        for name, schema in required.items():
            if name not in value:
                raise Misfit(f"{path.lstrip('.') or 'all of it'} lacks {name!r}")
            schema(value[name], f"{path}.{name}")
        for name, schema in (optional or {}).items():
            if name in value:
                schema(value[name], f"{path}.{name}")

    return fits


def either(*schemas: Schema) -> Schema:
    """Take values that fit one of some schemas; the message is that of the last one."""

    def fits(value: Any, path: str) -> None:
        for schema in schemas[:-1]:
            try:
                schema(value, path)
                return
            except Misfit:  # noqa: PERF203  # there are two or three
                pass
        schemas[-1](value, path)

    return fits


def null(value: Any, path: str) -> None:
    """Take null."""
    if value is not None:
        raise refuse(value, path, "null")


# -- spaces -----------------------------------------------------------------------------------------------------------


def array(value: Any, path: str) -> None:
    """Take an array, or one element that stands for all of them, in base64."""
    record({"shape": list_of(integer(0), high=32), "dtype": dtype, "content": text})(value, path)
    try:
        nbytes = len(base64.b64decode(value["content"], validate=True))
    except (binascii.Error, ValueError) as error:
        raise refuse(value["content"], f"{path}.content", "base64") from error
    itemsize = dtype_from_text(value["dtype"]).itemsize
    if nbytes not in (itemsize, math.prod(value["shape"]) * itemsize):
        raise Misfit(f"{path.lstrip('.')}.content has {nbytes} bytes, which are no array of shape {value['shape']}")


def box(value: Any, path: str) -> None:
    """Take the bounds of a Box, of one shape and dtype."""
    record({"low": array, "high": array})(value, path)
    kinds = [(value[bound]["shape"], value[bound]["dtype"]) for bound in ("low", "high")]
    if kinds[0] != kinds[1]:
        raise Misfit(f"{path.lstrip('.') or 'all of it'} has bounds of different shapes or dtypes: {brief(kinds)}")


def dict_space(value: Any, path: str) -> None:
    """Take the parts of a Dict space, with a key each."""
    record({"spaces": list_of(tuple_of(text, space))})(value, path)
    keys = [key for key, _ in value["spaces"]]
    if len({*keys}) < len(keys):
        raise Misfit(f"{path.lstrip('.') or 'all of it'} has a key twice: {brief(keys)}")


def space(value: Any, path: str) -> None:
    """Take a space as :func:`sb3_compressed.storage.spaces.data_of_space` writes it."""
    record({"space": one_of(*SPACES)})(value, path)
    SPACES[value["space"]](value, path)


SPACES: dict[str, Schema] = {
    "Box": box,
    "Discrete": record({"n": integer(1), "start": integer(), "dtype": dtype}),
    "MultiDiscrete": record({"nvec": array, "start": array, "dtype": dtype}),
    "MultiBinary": record({"n": either(list_of(integer(1), 1, 32), integer(1))}),
    "Dict": dict_space,
}
SPACE: Schema = space


def space_nbytes(value: Any) -> int:
    """Return the bytes that an item of a space takes, which fits :data:`SPACE`; its bounds take as many and more."""
    kind = value["space"]
    if kind == "Dict":
        return sum(space_nbytes(part) for _, part in value["spaces"])
    if kind == "Discrete":
        return 8
    if kind == "MultiBinary":
        return math.prod(value["n"]) if isinstance(value["n"], list) else int(value["n"])
    bounds = value["low" if kind == "Box" else "nvec"]
    return int(math.prod(bounds["shape"])) * dtype_from_text(bounds["dtype"]).itemsize


# -- arguments, and what a buffer says of itself ----------------------------------------------------------------------

#: A codec; its fields are checked against those of its class (:mod:`sb3_compressed.codecs.config`).
CODEC = record({"name": text, "fields": mapping_of(anything)})


def argument(value: Any, path: str) -> None:
    """Take an argument as :func:`sb3_compressed.storage.spaces.data_of_argument` writes it."""
    if type(value) is not dict:
        if value is not None and type(value) not in (bool, int, str):
            number(value, path)
        return
    if len(value) != 1 or next(iter(value)) not in ARGUMENTS:
        raise refuse(value, path, f"an object with one of the keys {', '.join(ARGUMENTS)}")
    [(kind, content)] = value.items()
    ARGUMENTS[kind](content, f"{path}.{kind}")


ARGUMENTS: dict[str, Schema] = {
    "codec": CODEC,
    "mapping": mapping_of(argument),
    "dtype": dtype,
    "float": one_of("inf", "-inf", "nan"),
}
ARGUMENT: Schema = argument

#: A place in a log: the segment's number, of eight digits in its name, and an offset of 32 bits.
ADDRESS = integer(1, (10**8 << 32) - 1)
#: Shape, dtype, whether its elements are addresses, and since version 2 whether it has a row for each step.
ARRAY_PLAN = (list_of(integer(0), 1, 32), dtype, boolean)


def array_plan(value: Any, path: str) -> None:
    """Take the plan of an array of either version."""
    is_short = type(value) is not list or len(value) != len(ARRAY_PLAN) + 1
    tuple_of(*ARRAY_PLAN if is_short else (*ARRAY_PLAN, boolean))(value, path)


def segment_ids(value: Any, path: str) -> None:
    """Take an object from the numbers of segments to their ids, 16 hexadecimal digits."""
    mapping_of(text)(value, path)
    for key, each in value.items():
        if not re.fullmatch(r"[0-9]{1,8}", key) or not re.fullmatch(r"[0-9a-f]{16}", each):
            raise refuse({key: each}, path, "the number of a segment and 16 hexadecimal digits")


#: What a segment says of its store first; what it is about is checked by who knows that.
MANIFEST = record(
    {
        "about": mapping_of(anything),
        "arrays": mapping_of(array_plan),
    },
    {
        "segments": segment_ids,
        "values": mapping_of(anything),
        "codecs": mapping_of(ADDRESS),
        "step": integer(-1, (1 << 63) - 1),
        "epoch": integer(0, (1 << 63) - 1),
    },
)
COMMIT = record({}, {"values": mapping_of(anything), "codecs": mapping_of(ADDRESS)})

ABOUT = record(
    {
        "class": text,
        "streams": mapping_of(record({"codec": text, "stored as": dtype})),
        "observation_space": SPACE,
        "action_space": SPACE,
        "arguments": mapping_of(ARGUMENT),
    }
)

STREAM = record(
    {},
    {
        "layout": either(null, tuple_of(one_of(0, -1), integer(2, 2**31))),
        "searches": boolean,
        "lessons": record({"interval": integer(0), "learned_nbytes": number}),
    },
)


def check_values(values: Any, rows: int, what: str) -> None:
    """Raise if the values of a buffer make no sense.

    :param rows: rows of its ring
    :param what: as for :func:`check`
    :raises CorruptStorage: naming the field
    """
    schema = record(
        {"pos": integer(0, max(rows, 1) - 1), "full": boolean},
        {"streams": mapping_of(STREAM)},
    )
    check(schema, values, what)


# -- sizes ------------------------------------------------------------------------------------------------------------

#: A folder may declare arrays of this size whatever is in it: those of ten million transitions of images, about. They
#: take memory where something is written to them.
MAX_ARRAYS_NBYTES = 512 << 20
#: An item of a space may have this size whatever is in the folder: a stack of four frames in full HD.
MAX_SPACE_NBYTES = 32 << 20
#: What a folder may declare besides for each byte that it takes on the disk. Arrays of real transitions take less
#: than ten times their room on the disk: every slot that is written has an address of its own.
NBYTES_PER_BYTE_ON_DISK = 100


def check_arrays_nbytes(row_nbytes: Iterable[tuple[int, int]], path: Path, rows: int = 0) -> None:
    """Raise if the arrays that a file declares are too large for what its folder takes on the disk.

    :param row_nbytes: rows of each array, and the bytes of a row
    :param path: the file
    :param rows: rows that the caller asks for itself, and so has memory for
    :raises CorruptStorage: with both sizes and what to do
    """
    declared = sum(nbytes * (max(n_rows - rows, 0) or min(n_rows, 1)) for n_rows, nbytes in row_nbytes)
    if declared <= MAX_ARRAYS_NBYTES:
        return
    on_disk = nbytes_on_disk(path.parent)
    if declared > MAX_ARRAYS_NBYTES + NBYTES_PER_BYTE_ON_DISK * on_disk:
        raise CorruptStorage(
            f"{path} declares arrays of {declared} bytes, and its folder takes {on_disk} bytes on the disk; if that is "
            "right, since the buffer is new and large, pass its buffer_size"
        )


def check_space_nbytes(data: Any, folder: Path, name: str) -> None:
    """Raise if the items of a space are too large for what the folder takes on the disk.

    :param data: a space that fits :data:`SPACE`
    :param name: which one it is
    :raises CorruptStorage: with both sizes and what to do
    """
    declared = space_nbytes(data)
    if declared > MAX_SPACE_NBYTES:
        on_disk = nbytes_on_disk(folder)
        if declared > MAX_SPACE_NBYTES + NBYTES_PER_BYTE_ON_DISK * on_disk:
            raise CorruptStorage(
                f"{folder}: {name} has items of {declared} bytes, and the folder takes {on_disk} bytes on the disk; if "
                f"that is right, since the buffer is new, pass {name}"
            )


def check_buffer(about: Any, shapes: Mapping[str, tuple[int, ...]], folder: Path, given: Collection[str] = ()) -> None:
    """Raise if what a folder says of its buffer makes no sense, or declares more than there can be.

    :param about: what it says
    :param shapes: those of its arrays
    :param given: names of arguments that the caller has for the buffer's constructor, which are not looked at
    :raises CorruptStorage: naming the field
    """
    what = f"{folder}: what it says of its buffer makes no sense"
    check(ABOUT, about, what)
    for name in {"observation_space", "action_space"}.difference(given):
        check_space_nbytes(about[name], folder, name)
    rows, n_envs = (*shapes.get("actions", ()), 0, 0)[:2]
    size, envs = about["arguments"].get("buffer_size"), about["arguments"].get("n_envs", 1)
    # Else a small folder could ask for a buffer of any size.
    if type(size) is not int or type(envs) is not int or envs < 1 or (max(size // envs, 1), envs) != (rows, n_envs):
        raise CorruptStorage(
            f"{what}: buffer_size is {brief(size)} and n_envs {brief(envs)}, its arrays have {rows} rows of {n_envs} "
            "environments"
        )
