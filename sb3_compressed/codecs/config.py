"""The arguments of codecs and buffers as JSON, for :meth:`.Codec.get_config`, :meth:`.Codec.from_config` and storage.

Configs come from files that may be untrusted: every value is validated against the type of its field, and nothing is
evaluated or unpickled.
"""

from __future__ import annotations

import base64
import math
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from sb3_compressed.errors import CodecError

__all__ = [
    "SCALARS",
    "abbreviate",
    "argument_from_json",
    "arguments_from_json",
    "bytes_from_text",
    "dtype_from_text",
    "to_json",
]

#: ``dtype.str`` of booleans, integers and floats. NumPy accepts many more strings, and evaluates parts of some.
ONE_BYTE_DTYPES = ("|b1", "|i1", "|u1")
LONGER_DTYPES = ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "f12", "f16")
DTYPES = frozenset(ONE_BYTE_DTYPES) | {order + name for order in "<>" for name in LONGER_DTYPES}

#: The field types that JSON represents directly. A field of any other type accepts a value of each of these.
PLAIN = (bool, int, float, str, type(None))
#: The types of arguments without parts.
SCALARS = (*PLAIN, np.dtype)


def dtype_from_text(text: Any) -> np.dtype[Any]:
    """Return the numeric dtype named in a file, without passing other text to NumPy.

    :raises ValueError: if it is not a numeric dtype, or this machine does not have it
    """
    if not isinstance(text, str) or text not in DTYPES:
        raise ValueError(f"{abbreviate(text)} is not a numeric dtype")
    try:
        return np.dtype(text)
    except TypeError as error:  # the size of long double depends on the platform
        raise ValueError(f"this machine has no dtype {text!r}") from error


def bytes_from_text(text: Any) -> bytes:
    """Return the bytes that a file contains in base64.

    :raises ValueError: if it is not base64
    """
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{abbreviate(text)} is not base64: {error}") from error


def abbreviate(data: Any) -> str:
    """Return the repr of data from a file, truncated if it is too long for an error message."""
    try:
        result = repr(data)
    except (RecursionError, ValueError):  # ValueError: an int with more digits than Python prints
        return f"a {type(data).__name__}"
    return result if len(result) <= 100 else f"{result[:100]}..."


def to_json(value: Any) -> Any:
    """Return a value, of a dataclass its arguments as a dict, as data that JSON can store.

    :raises CodecError: if it is not a number, string, bytes, dtype, or dataclass of these
    """
    if is_dataclass(value):
        arguments = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return {name: to_json(each) for name, each in arguments.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(float(value))}  # JSON has no infinities and NaN
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, np.dtype):
        return {"dtype": value.str}
    raise CodecError(f"cannot store {abbreviate(value)}, which is not a number, a string, bytes or a dtype")


def arguments_from_json(cls: Any, data: Any) -> dict[str, Any]:
    """Return the constructor arguments of a dataclass from what :func:`to_json` made of an instance.

    :raises CodecError: if an argument is unknown, or not of the type of its field
    :raises ValueError: if base64 or a dtype is malformed
    """
    if not isinstance(data, dict):
        raise CodecError(f"the arguments of {cls.__name__} must be a dict, got {abbreviate(data)}")
    types = _field_types(cls)
    allowed = {field.name for field in fields(cls) if field.init}
    if not set(data) <= allowed:
        raise CodecError(f"{cls.__name__} takes the arguments {sorted(allowed)}, got {sorted(data)}")
    return {name: argument_from_json(types[name], value, f"{cls.__name__}.{name}") for name, value in data.items()}


@cache  # evaluating annotations takes longer than all the rest, and folders contain many configs
def _field_types(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def argument_from_json(kind: Any, value: Any, name: str) -> Any:
    """Return an argument from what :func:`to_json` made of it.

    :param kind: its type
    :param name: its name for error messages
    :raises CodecError: if it is not of that type
    :raises ValueError: if base64 or a dtype is malformed
    """
    if is_dataclass(kind):
        return kind(**arguments_from_json(kind, value))  # type: ignore[operator]
    if kind is bytes:
        return bytes_from_text(value)
    if isinstance(value, dict) and len(value) == 1:
        if "dtype" in value:
            return dtype_from_text(value["dtype"])
        if value.get("float") in ("inf", "-inf", "nan"):
            return float(value["float"])
    kinds: tuple[Any, ...] = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if "dtype" in str(kind).lower():  # dtypes are handled above, so that no other text reaches np.dtype
        allowed: tuple[Any, ...] = (type(None),)
    elif set(kinds) <= set(PLAIN):
        allowed = (*kinds, int) if float in kinds else kinds
    else:
        allowed = PLAIN
    if type(value) not in allowed or (type(value) is float and not math.isfinite(value)):
        raise CodecError(f"{name} must be {kind}, got {abbreviate(value)}")
    return value
