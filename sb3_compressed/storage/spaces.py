"""Convert spaces and other arguments of buffers to plain data for JSON, and back, without pickle."""

from __future__ import annotations

import base64
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_compressed.codecs import Codec, codec_from_config
from sb3_compressed.codecs.config import dtype_from_text
from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage.json_schema import brief, check
from sb3_compressed.storage.metadata_schema import ARGUMENT, SPACE

__all__ = ["argument_from_data", "argument_to_data", "space_from_data", "space_to_data"]


def space_to_data(space: spaces.Space[Any]) -> dict[str, Any]:
    """Return a space as plain data.

    :raises StorageError: if it is not a kind of space that SB3's buffers support
    """
    if isinstance(space, spaces.Box):
        return {"space": "Box", "low": _array_to_data(space.low), "high": _array_to_data(space.high)}
    if isinstance(space, spaces.Discrete):
        return {"space": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": np.dtype(space.dtype).str}
    if isinstance(space, spaces.MultiDiscrete):
        dtype = np.dtype(space.dtype).str
        start = _array_to_data(space.start)
        return {"space": "MultiDiscrete", "nvec": _array_to_data(space.nvec), "start": start, "dtype": dtype}
    if isinstance(space, spaces.MultiBinary):
        return {"space": "MultiBinary", "n": [*space.n] if isinstance(space.n, tuple) else int(space.n)}
    if isinstance(space, spaces.Dict):
        return {"space": "Dict", "spaces": [[key, space_to_data(part)] for key, part in space.spaces.items()]}
    raise StorageError(f"cannot store {space}: it must be a Box, Discrete, MultiDiscrete, MultiBinary or Dict")


def space_from_data(data: Any) -> spaces.Space[Any]:
    """Return the space for a result of :func:`space_to_data`.

    Its bounds take memory; :func:`~sb3_compressed.storage.metadata_schema.check_space_nbytes` limits their size.

    :raises CorruptStorage: if the data is invalid
    """
    what = f"{brief(data)} is not a valid space"
    check(SPACE, data, what)
    try:
        return _space(data)
    except INVALID_DATA_ERRORS as error:
        raise CorruptStorage(f"{what}: {error}") from error


def _space(data: Any) -> spaces.Space[Any]:
    kind = data["space"]
    if kind == "Box":
        low, high = _array_from_data(data["low"]), _array_from_data(data["high"])
        return spaces.Box(low, high, dtype=low.dtype.type)
    if kind == "MultiBinary":
        return spaces.MultiBinary(data["n"])
    if kind == "Dict":  # Gymnasium keeps the order of an OrderedDict, and sorts a dict
        return spaces.Dict(OrderedDict((key, _space(part)) for key, part in data["spaces"]))
    dtype = dtype_from_text(data["dtype"]).type
    if kind == "MultiDiscrete":
        nvec, start = (np.array(_array_from_data(data[name])) for name in ("nvec", "start"))
        return spaces.MultiDiscrete(nvec, dtype=dtype, start=start)
    # Older versions of Gymnasium support int64 only, without this argument.
    kwargs: dict[str, Any] = {} if dtype == np.int64 else {"dtype": dtype}
    return spaces.Discrete(data["n"], start=data["start"], **kwargs)


#: Errors that constructors of spaces and codecs raise for invalid arguments.
INVALID_DATA_ERRORS: tuple[type[Exception], ...] = (LookupError, TypeError, ValueError, AssertionError, AttributeError)
INVALID_DATA_ERRORS += (ArithmeticError, MemoryError, RecursionError)


def _array_to_data(array: NDArray[Any]) -> dict[str, Any]:
    """Return an array as plain data; a constant one, such as the bounds of images, as a single element."""
    array = np.asarray(array)
    is_constant = array.size > 1 and array.tobytes() == array.ravel()[:1].tobytes() * array.size
    content = array.ravel()[:1] if is_constant else array
    text = base64.b64encode(content.tobytes()).decode("ascii")
    return {"shape": list(array.shape), "dtype": array.dtype.str, "content": text}


def _array_from_data(data: Any) -> NDArray[Any]:
    """Return a read-only array; a constant one takes the memory of a single element."""
    content = np.frombuffer(base64.b64decode(data["content"], validate=True), dtype_from_text(data["dtype"]))
    return np.broadcast_to(content[0], data["shape"]) if content.size == 1 else content.reshape(data["shape"])


def argument_to_data(value: Any) -> Any:
    """Return an argument of a buffer as plain data.

    :raises StorageError: if it cannot be stored
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(float(value))}  # JSON has no infinities and NaN
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Codec):
        return {"codec": value.get_config()}
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, Mapping):
        return {"mapping": {str(key): argument_to_data(part) for key, part in value.items()}}
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic | bool | int | float)):
        return {"dtype": np.dtype(value).str}
    raise StorageError(f"cannot store the argument {value!r}")


def argument_from_data(data: Any) -> Any:
    """Return the argument for a result of :func:`argument_to_data`.

    :raises CorruptStorage: if the data is invalid
    """
    what = f"{brief(data)} is not a valid argument"
    check(ARGUMENT, data, what)
    try:
        return _argument(data)
    except INVALID_DATA_ERRORS as error:
        raise CorruptStorage(f"{what}: {error}") from error


def _argument(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    [(kind, content)] = data.items()
    if kind == "mapping":
        return {key: _argument(part) for key, part in content.items()}
    makers: dict[str, Callable[[Any], Any]] = {"codec": codec_from_config, "dtype": dtype_from_text, "float": float}
    return makers[kind](content)
