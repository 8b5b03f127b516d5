"""Spaces and other arguments of buffers as plain data, for files that no pickle is read from."""

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
from sb3_compressed.storage.metadata_schema import ARGUMENT, SPACE, brief, check

__all__ = ["argument_from_data", "data_of_argument", "data_of_space", "space_from_data"]


def data_of_space(space: spaces.Space[Any]) -> dict[str, Any]:
    """Return what JSON can hold of a space.

    :raises StorageError: if it is of a kind that SB3's buffers do not take either
    """
    if isinstance(space, spaces.Box):
        return {"space": "Box", "low": _data_of_array(space.low), "high": _data_of_array(space.high)}
    if isinstance(space, spaces.Discrete):
        return {"space": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": np.dtype(space.dtype).str}
    if isinstance(space, spaces.MultiDiscrete):
        dtype = np.dtype(space.dtype).str
        start = _data_of_array(space.start)
        return {"space": "MultiDiscrete", "nvec": _data_of_array(space.nvec), "start": start, "dtype": dtype}
    if isinstance(space, spaces.MultiBinary):
        return {"space": "MultiBinary", "n": [*space.n] if isinstance(space.n, tuple) else int(space.n)}
    if isinstance(space, spaces.Dict):
        return {"space": "Dict", "spaces": [[key, data_of_space(part)] for key, part in space.spaces.items()]}
    raise StorageError(f"cannot store {space}: it is no Box, Discrete, MultiDiscrete, MultiBinary or Dict")


def space_from_data(data: Any) -> spaces.Space[Any]:
    """Return the space of which :func:`data_of_space` gave this.

    Its bounds take memory; :func:`~sb3_compressed.storage.metadata_schema.check_space_nbytes` limits their size.

    :raises CorruptStorage: if there is none
    """
    what = f"{brief(data)} is no space"
    check(SPACE, data, what)
    try:
        return _space(data)
    except NONSENSE as error:
        raise CorruptStorage(f"{what}: {error}") from error


def _space(data: Any) -> spaces.Space[Any]:
    return SPACES[data["space"]](data)


def _box(data: Any) -> spaces.Space[Any]:
    low, high = _array_from_data(data["low"]), _array_from_data(data["high"])
    return spaces.Box(low, high, dtype=low.dtype.type)


def _discrete(data: Any) -> spaces.Space[Any]:
    dtype = dtype_from_text(data["dtype"])
    # Older versions of Gymnasium have int64 only, and no such argument.
    kind: dict[str, Any] = {} if dtype == np.int64 else {"dtype": dtype.type}
    return spaces.Discrete(data["n"], start=data["start"], **kind)


def _multi_discrete(data: Any) -> spaces.Space[Any]:
    dtype = dtype_from_text(data["dtype"]).type
    nvec, start = (np.array(_array_from_data(data[name])) for name in ("nvec", "start"))
    return spaces.MultiDiscrete(nvec, dtype=dtype, start=start)


def _multi_binary(data: Any) -> spaces.Space[Any]:
    return spaces.MultiBinary(data["n"])


def _dict(data: Any) -> spaces.Space[Any]:
    # An OrderedDict, whose order is kept.
    return spaces.Dict(OrderedDict((key, _space(part)) for key, part in data["spaces"]))


#: What constructors of spaces and codecs raise.
NONSENSE = (
    LookupError,
    TypeError,
    ValueError,
    AssertionError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    RecursionError,
)

SPACES: dict[str, Callable[[Any], spaces.Space[Any]]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
    "Dict": _dict,
}


def _data_of_array(array: NDArray[Any]) -> dict[str, Any]:
    """Return an array as data; one that is the same everywhere, as the bounds of images, as one element."""
    array = np.asarray(array)
    is_constant = array.size > 1 and array.tobytes() == array.ravel()[:1].tobytes() * array.size
    content = array.ravel()[:1] if is_constant else array
    text = base64.b64encode(content.tobytes()).decode("ascii")
    return {"shape": list(array.shape), "dtype": array.dtype.str, "content": text}


def _array_from_data(data: Any) -> NDArray[Any]:
    """Return a read-only array; one element that stands for all is there once."""
    content = np.frombuffer(base64.b64decode(data["content"], validate=True), dtype_from_text(data["dtype"]))
    return np.broadcast_to(content[0], data["shape"]) if content.size == 1 else content.reshape(data["shape"])


def data_of_argument(value: Any) -> Any:
    """Return what JSON can hold of an argument of a buffer.

    :raises StorageError: if it cannot be stored
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(float(value))}  # JSON has no such numbers
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Codec):
        return {"codec": value.get_config()}
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, Mapping):
        return {"mapping": {str(key): data_of_argument(part) for key, part in value.items()}}
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic | bool | int | float)):
        return {"dtype": np.dtype(value).str}
    raise StorageError(f"cannot store the argument {value!r}")


def argument_from_data(data: Any) -> Any:
    """Return the argument of which :func:`data_of_argument` gave this.

    :raises CorruptStorage: if there is none
    """
    what = f"{brief(data)} is no argument"
    check(ARGUMENT, data, what)
    try:
        return _argument(data)
    except NONSENSE as error:
        raise CorruptStorage(f"{what}: {error}") from error


def _argument(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    [(kind, content)] = data.items()
    if kind == "mapping":
        return {key: _argument(part) for key, part in content.items()}
    makers: dict[str, Callable[[Any], Any]] = {"codec": codec_from_config, "dtype": dtype_from_text, "float": float}
    return makers[kind](content)
