"""Parse and validate untrusted JSON.

A schema is a function that raises :class:`SchemaError` if a value does not match it; the functions here return schemas
or combine them into larger ones. Objects may have more keys than their schema, so that later versions can add some.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sb3_compressed.codecs.config import dtype_from_text
from sb3_compressed.errors import CorruptStorage

__all__ = ["Schema", "SchemaError", "brief", "check", "load_json"]

Schema = Callable[[Any, str], None]
"""Raises :class:`SchemaError` if a value does not match; the second argument is its path in the document."""

#: Maximum nesting. This package writes fewer than ten levels, except for Dict spaces in Dict spaces.
MAX_DEPTH = 64
MAX_INT = 2**63 - 1
MAX_FLOAT = sys.float_info.max
TOO_DEEP = f"lists and objects are nested more than {MAX_DEPTH} levels deep"


class SchemaError(ValueError):
    """A value does not match its schema; the message contains its path and what is expected."""


def check(schema: Schema, value: Any, what: str) -> None:
    """Raise if a value does not match a schema.

    :param what: the beginning of the message: what the value is, with its folder or file
    :raises CorruptStorage: with the field, its value and what is expected
    """
    try:
        schema(value, "")
    except (SchemaError, RecursionError) as error:
        raise CorruptStorage(f"{what}: {error}") from error


def load_json(data: bytes) -> Any:
    """Return the value of a JSON document.

    :raises ValueError: if it is not valid JSON, or has infinite or NaN numbers, a duplicate key, invalid Unicode or too
        many nested levels
    """
    try:
        document = data.decode("utf-8")
        value = DECODER.decode(document)
        if document.count("[") + document.count("{") > MAX_DEPTH:
            _check_depth(value)
        if "\\ud" in document.lower():  # half of a surrogate pair
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a finite number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError(f"duplicate key in {brief([key for key, _ in pairs])}")
    return result


#: Shared, because json.loads with these arguments would create a decoder for each commit.
DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)


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
        raise ValueError(TOO_DEEP)


def brief(value: Any) -> str:
    """Return the repr of a value for a message, truncated if it is long."""
    try:
        result = repr(value)
    except (RecursionError, ValueError):  # ValueError: an int of more digits than Python prints
        return f"a {type(value).__name__}"
    return result if len(result) <= 100 else f"{result[:100]}..."


def mismatch(value: Any, path: str, expected: str) -> SchemaError:
    """Return the error for a value that is not as expected."""
    return SchemaError(f"{name_of(path)} must be {expected}, got {brief(value)}")


def name_of(path: str) -> str:
    """Return the path of a field as messages show it."""
    return path.lstrip(".") or "the document"


def integer(low: int = -MAX_INT - 1, high: int = MAX_INT) -> Schema:
    """Accept integers in a closed range, not booleans."""

    def validate(value: Any, path: str) -> None:
        if type(value) is not int or not low <= value <= high:
            raise mismatch(value, path, f"an integer from {low} to {high}")

    return validate


def number(value: Any, path: str) -> None:
    """Accept finite numbers, not booleans."""
    if type(value) not in (int, float) or not abs(value) <= MAX_FLOAT:
        raise mismatch(value, path, "a finite number")


def of_type(kind: type, expected: str) -> Schema:
    """Accept values of a type, not of a subclass."""

    def validate(value: Any, path: str) -> None:
        if type(value) is not kind:
            raise mismatch(value, path, expected)

    return validate


boolean = of_type(bool, "true or false")
text = of_type(str, "text")
null = of_type(type(None), "null")
json_object = of_type(dict, "an object")


def anything(value: Any, path: str) -> None:
    """Accept every JSON value."""


def one_of(*values: Any) -> Schema:
    """Accept values that are equal to one of some values and have its type."""

    def validate(value: Any, path: str) -> None:
        if not any(type(value) is type(each) and value == each for each in values):
            raise mismatch(value, path, f"one of {', '.join(map(repr, values))}")

    return validate


def dtype(value: Any, path: str) -> None:
    """Accept the names of numeric dtypes."""
    try:
        dtype_from_text(value)
    except ValueError as error:
        raise mismatch(value, path, "a dtype of numbers") from error


def list_of(item: Schema, low: int = 0, high: int = MAX_INT) -> Schema:
    """Accept lists of ``low`` to ``high`` items that match a schema."""

    def validate(value: Any, path: str) -> None:
        if type(value) is not list or not low <= len(value) <= high:
            raise mismatch(value, path, f"a list of {low} to {high} items" if high < MAX_INT else "a list")
        for index, each in enumerate(value):
            item(each, f"{path}[{index}]")

    return validate


def tuple_of(*items: Schema) -> Schema:
    """Accept lists with one item for each schema."""

    def validate(value: Any, path: str) -> None:
        if type(value) is not list or len(value) != len(items):
            raise mismatch(value, path, f"a list of {len(items)} items")
        for index, (each, item) in enumerate(zip(value, items, strict=True)):
            item(each, f"{path}[{index}]")

    return validate


def mapping_of(item: Schema) -> Schema:
    """Accept objects with any keys whose values match a schema."""

    def validate(value: Any, path: str) -> None:
        json_object(value, path)
        for key, each in value.items():
            item(each, f"{path}.{brief(key)[1:-1]}")

    return validate


def record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """Accept objects with a matching value for each required key, and for each optional key that is present."""

    def validate(value: Any, path: str) -> None:
        json_object(value, path)
        for name, schema in required.items():
            if name not in value:
                raise SchemaError(f"{name_of(path)} has no {name!r}")
            schema(value[name], f"{path}.{name}")
        for name, schema in (optional or {}).items():
            if name in value:
                schema(value[name], f"{path}.{name}")

    return validate


def either(*schemas: Schema) -> Schema:
    """Accept values that match one of some schemas; the error is that of the last schema."""

    def validate(value: Any, path: str) -> None:
        for schema in schemas[:-1]:
            try:
                schema(value, path)
                return
            except SchemaError:  # noqa: PERF203  # there are two or three
                pass
        schemas[-1](value, path)

    return validate
