"""Parse and validate untrusted JSON.

A schema is one of

- ``bool``, ``str``, ``dict``; ``float``, for finite numbers, which may be integers;
- a ``range``, for the integers in it;
- ``[schema, range]``, a list whose length is in the range;
- ``(schema, schema)``, a list with one item for each schema;
- ``{str: schema}``, an object with any keys;
- ``{"name": schema, "other?": schema}``, an object with these keys, of which those with a question mark may be missing.
  It may have more keys, so that later versions can add some;
- a function that returns what the value stands for, or raises ``ValueError``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

from sb3_compressed.codecs.config import abbreviate
from sb3_compressed.errors import CorruptStorage

__all__ = ["check", "load_json", "optional", "parse"]

EXPECTED = {bool: "true or false", float: "a finite number", str: "text", dict: "an object"}


def check(schema: Any, value: Any, what: str) -> None:
    """Raise if a value does not match a schema.

    :param what: the beginning of the message: what the value is, with its folder or file
    :raises CorruptStorage: with the field, its value and what is expected
    """
    try:
        parse(schema, value)
    except (ValueError, RecursionError) as error:
        raise CorruptStorage(f"{what}: {error}") from error


def parse(schema: Any, value: Any, path: str = "") -> Any:
    """Return a value, with the results of the functions in its schema, and without keys that are not in the schema.

    :param path: its path in the document, for error messages
    :raises ValueError: with the path, the value and what is expected, if it does not match the schema
    """
    if isinstance(schema, dict):
        return _parse_object(schema, _of_type(dict, value, path), path)
    if isinstance(schema, list | tuple):
        return _parse_list(schema, value, path)
    if isinstance(schema, range):
        if type(value) is not int or value not in schema:
            raise _mismatch(value, path, f"an integer from {schema.start} to {schema.stop - 1}")
        return value
    if isinstance(schema, type):
        return _of_type(schema, value, path)
    try:
        return schema(value)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{_name_of(path)}: {error}") from error


def optional(schema: Any) -> Callable[[Any], Any]:
    """Return a schema that also accepts ``None``."""
    return lambda value: None if value is None else parse(schema, value)


def _parse_object(schema: dict[Any, Any], value: dict[str, Any], path: str) -> dict[str, Any]:
    if str in schema:
        return {key: parse(schema[str], part, f"{path}.{abbreviate(key)[1:-1]}") for key, part in value.items()}
    result = {}
    for key, part in schema.items():
        name = key.removesuffix("?")
        if name in value:
            result[name] = parse(part, value[name], f"{path}.{name}")
        elif name == key:
            raise ValueError(f"{_name_of(path)} has no {name!r}")
    return result


def _parse_list(schema: list[Any] | tuple[Any, ...], value: Any, path: str) -> list[Any]:
    items: Iterable[Any]
    if isinstance(schema, tuple):
        items, lengths, expected = schema, (len(schema),), f"a list of {len(schema)} items"
    else:
        item, lengths = schema
        items, expected = repeat(item), f"a list of {lengths.start} to {lengths.stop - 1} items"
    if type(value) is not list or len(value) not in lengths:
        raise _mismatch(value, path, expected)
    return [parse(item, part, f"{path}[{index}]") for index, (item, part) in enumerate(zip(items, value))]


def _of_type(kind: type, value: Any, path: str) -> Any:
    if kind is float:
        is_valid = type(value) in (int, float) and abs(value) <= sys.float_info.max
    else:
        is_valid = type(value) is kind
    if not is_valid:
        raise _mismatch(value, path, EXPECTED[kind])
    return value


def _mismatch(value: Any, path: str, expected: str) -> ValueError:
    return ValueError(f"{_name_of(path)} must be {expected}, got {abbreviate(value)}")


def _name_of(path: str) -> str:
    return path.lstrip(".") or "it"


def load_json(data: bytes) -> Any:
    """Return the value of a JSON document.

    :raises ValueError: if it is not valid JSON, or has invalid Unicode or too many nested levels
    """
    try:
        document = data.decode("utf-8")
        value = json.loads(document)
        if "\\ud" in document.lower():  # half of a surrogate pair
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("lists and objects are nested too deep") from None
    return value
