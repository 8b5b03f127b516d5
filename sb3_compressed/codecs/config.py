"""Codecs as plain data, with all that they have learned: for files that no pickle is read from."""

from __future__ import annotations

import base64
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import numpy as np

from sb3_compressed.codecs.base import Codec
from sb3_compressed.codecs.registry import codec_class
from sb3_compressed.errors import CodecError

__all__ = ["codec_from_data", "data_of_codec"]


def data_of_codec(codec: Codec) -> dict[str, Any]:
    """Return what JSON can hold of a codec.

    >>> from sb3_compressed import get_codec
    >>> data_of_codec(get_codec("zstd-5"))
    {'name': 'zstd', 'fields': {'compresslevel': -5}}

    :raises CodecError: if it is no dataclass of numbers, strings, bytes, and dataclasses of these
    """
    if not is_dataclass(codec):
        raise CodecError(f"{codec!r} cannot be stored: a codec that is to be written to disk has to be a dataclass")
    return {"name": codec.name, "fields": _data_of(codec)}


def codec_from_data(data: Any) -> Codec:
    """Return the codec of which :func:`data_of_codec` gave this.

    Only registered classes are made, by their constructors.

    :raises CodecError: if there is no such codec here, or its arguments do not fit
    """
    try:
        cls = codec_class(data["name"])
        return cls(**_arguments(cls, data["fields"]))
    except CodecError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CodecError(f"cannot make a codec of {str(data)[:200]}: {error}") from error


def _data_of(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _data_of(getattr(value, field.name)) for field in fields(value) if field.init}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.dtype):
        return {"dtype": value.str}
    raise CodecError(f"cannot store the argument {value!r} of a codec: it is no number, string or bytes")


def _arguments(cls: Any, data: dict[str, Any]) -> dict[str, Any]:
    types = get_type_hints(cls)
    known = {field.name for field in fields(cls) if field.init}
    if not set(data) <= known:
        raise CodecError(f"codec {cls.__name__} takes the arguments {sorted(known)}, got {sorted(data)}")
    return {name: _value(types[name], value) for name, value in data.items()}


def _value(kind: Any, value: Any) -> Any:
    if is_dataclass(kind):
        return kind(**_arguments(kind, value))  # type: ignore[operator]
    if isinstance(value, dict):
        return np.dtype(value["dtype"])
    return base64.b64decode(value, validate=True) if kind is bytes else value
