"""Codecs as plain data, with all that they have learned: for files that no pickle is read from."""

from __future__ import annotations

import base64
import math
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from sb3_compressed.codecs.base import Codec
from sb3_compressed.codecs.dtype_names import dtype_from_text
from sb3_compressed.codecs.registry import codec_class
from sb3_compressed.errors import CodecError

__all__ = ["codec_config", "codec_from_config"]


def codec_config(codec: Codec) -> dict[str, Any]:
    """Return what JSON can hold of a codec.

    >>> from sb3_compressed import get_codec
    >>> codec_config(get_codec("zstd-5"))
    {'name': 'zstd', 'fields': {'compresslevel': -5}}

    :raises CodecError: if it is no dataclass of numbers, strings, bytes, and dataclasses of these
    """
    if not is_dataclass(codec):
        raise CodecError(f"{codec!r} cannot be stored: a codec that is to be written to disk has to be a dataclass")
    return {"name": codec.name, "fields": _data_of(codec)}


def codec_from_config(data: Any) -> Codec:
    """Return the codec of which :func:`codec_config` gave this.

    Only registered classes are made, by their constructors, with arguments of the types that their fields have.

    :raises CodecError: if there is no such codec here, or its arguments do not fit
    """
    try:
        cls = codec_class(data["name"])
        return cls(**_arguments(cls, data["fields"]))
    except CodecError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise CodecError(f"cannot make a codec of {_brief(data)}: {error}") from error


def _brief(data: Any) -> str:
    try:
        return str(data)[:200]
    except (RecursionError, ValueError):  # ValueError: an int of more digits than Python prints
        return f"a {type(data).__name__}"


def _data_of(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _data_of(getattr(value, field.name)) for field in fields(value) if field.init}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(float(value))}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.dtype):
        return {"dtype": value.str}
    raise CodecError(f"cannot store the argument {value!r} of a codec: it is no number, string or bytes")


def _arguments(cls: Any, data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise CodecError(f"codec {cls.__name__} takes its arguments by name, got {_brief(data)}")
    types = get_type_hints(cls)
    known = {field.name for field in fields(cls) if field.init}
    if not set(data) <= known:
        raise CodecError(f"codec {cls.__name__} takes the arguments {sorted(known)}, got {sorted(data)}")
    return {name: _value(types[name], value, f"{cls.__name__}.{name}") for name, value in data.items()}


#: The types of fields that JSON has as they are; a field of another type takes any of these.
PLAIN: dict[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (int, float),
    str: (str,),
    type(None): (type(None),),
}


def _value(kind: Any, value: Any, name: str) -> Any:
    """Return the argument for a field.

    :param kind: the type of the field
    :param name: its class and name, for the message
    """
    if is_dataclass(kind):
        return kind(**_arguments(kind, value))  # type: ignore[operator]
    if kind is bytes:
        if not isinstance(value, str):
            raise CodecError(f"{name} must be bytes in base64, got {_brief(value)}")
        return base64.b64decode(value, validate=True)
    if isinstance(value, dict) and len(value) == 1:
        if "dtype" in value:
            return dtype_from_text(value["dtype"])
        if value.get("float") in ("inf", "-inf", "nan"):
            return float(value["float"])
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    allowed: tuple[type, ...] = (type(None),)
    if "dtype" not in str(kind).lower():  # else it comes as above, and no text reaches np.dtype
        is_known = all(each in PLAIN for each in kinds)
        allowed = tuple(kind for each in kinds for kind in PLAIN[each]) if is_known else (*PLAIN,)
    if type(value) not in allowed:
        raise CodecError(f"{name} must be {kind}, got {_brief(value)}")
    return value
