"""Convert spaces and other arguments of buffers to plain data for JSON, and back, without pickle."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_compressed.codecs import Codec, codec_from_config, config
from sb3_compressed.codecs.config import abbreviate, dtype_from_text
from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage.json_schema import parse

__all__ = [
    "SIZE",
    "argument_from_data",
    "argument_to_data",
    "parse_scalar",
    "parse_space",
    "space_from_data",
    "space_nbytes",
    "space_to_data",
]

SIZE = range(1 << 63)
COUNT = range(1, 1 << 63)

# -- spaces -----------------------------------------------------------------------------------------------------------


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
    space: spaces.Space[Any] = _convert(data, lambda data: _space(parse_space(data)), "space")
    return space


def parse_space(data: object) -> dict[str, Any]:
    """Return the fields of a space with its arrays and dtypes; they take little memory, however large it is.

    :raises ValueError: if it is not data that :func:`space_to_data` returns
    """
    kind = parse({"space": str}, data)["space"]
    if kind not in SPACES:
        raise ValueError(f"space must be one of {', '.join(SPACES)}, got {abbreviate(kind)}")
    fields: dict[str, Any] = parse({"space": str, **SPACES[kind]}, data)
    if kind == "Box":
        kinds = [(fields[bound].shape, fields[bound].dtype.str) for bound in ("low", "high")]
        if kinds[0] != kinds[1]:
            raise ValueError(f"the bounds have different shapes or dtypes: {abbreviate(kinds)}")
    if kind == "Dict":
        keys = [key for key, _ in fields["spaces"]]
        if len({*keys}) < len(keys):
            raise ValueError(f"there is a duplicate key: {abbreviate(keys)}")
    return fields


def parse_array(data: object) -> NDArray[Any]:
    """Return a read-only array; a constant one takes the memory of a single element.

    :raises ValueError: if it is not data that :func:`_array_to_data` returns
    """
    fields = parse({"shape": [SIZE, range(33)], "dtype": dtype_from_text, "content": config.bytes_from_text}, data)
    content = np.frombuffer(fields["content"], fields["dtype"])
    return np.broadcast_to(content[0], fields["shape"]) if content.size == 1 else content.reshape(fields["shape"])


def parse_axes(data: object) -> Any:
    """Return the shape of a MultiBinary, a list or a number."""
    return parse([COUNT, range(1, 33)] if isinstance(data, list) else COUNT, data)


#: The fields of each kind of space.
SPACES: dict[str, dict[str, Any]] = {
    "Box": {"low": parse_array, "high": parse_array},
    "Discrete": {"n": COUNT, "start": range(-1 << 63, 1 << 63), "dtype": dtype_from_text},
    "MultiDiscrete": {"nvec": parse_array, "start": parse_array, "dtype": dtype_from_text},
    "MultiBinary": {"n": parse_axes},
    "Dict": {"spaces": [(str, parse_space), SIZE]},
}


def _space(fields: dict[str, Any]) -> spaces.Space[Any]:
    kind = fields["space"]
    if kind == "Box":
        return spaces.Box(fields["low"], fields["high"], dtype=fields["low"].dtype.type)
    if kind == "MultiBinary":
        return spaces.MultiBinary(fields["n"])
    if kind == "Dict":  # Gymnasium keeps the order of a list, and sorts a dict; 1.0 also sorts an OrderedDict
        return spaces.Dict([(key, _space(part)) for key, part in fields["spaces"]])
    dtype = fields["dtype"].type
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.array(fields["nvec"]), dtype=dtype, start=np.array(fields["start"]))
    # Older versions of Gymnasium support int64 only, without this argument.
    kwargs: dict[str, Any] = {} if dtype == np.int64 else {"dtype": dtype}
    return spaces.Discrete(fields["n"], start=fields["start"], **kwargs)


def space_nbytes(data: Any) -> int:
    """Return the bytes of one item of a valid space; its bounds take at least as many."""
    kind = data["space"]
    if kind == "Dict":
        return sum(space_nbytes(part) for _, part in data["spaces"])
    if kind == "Discrete":
        return 8
    if kind == "MultiBinary":
        return math.prod(data["n"]) if isinstance(data["n"], list) else int(data["n"])
    bounds = data["low" if kind == "Box" else "nvec"]
    return int(math.prod(bounds["shape"])) * dtype_from_text(bounds["dtype"]).itemsize


def _array_to_data(array: NDArray[Any]) -> dict[str, Any]:
    """Return an array as plain data; a constant one, such as the bounds of images, as a single element."""
    array = np.asarray(array)
    is_constant = array.size > 1 and array.tobytes() == array.ravel()[:1].tobytes() * array.size
    content = array.ravel()[:1] if is_constant else array
    text = base64.b64encode(content.tobytes()).decode("ascii")
    return {"shape": list(array.shape), "dtype": array.dtype.str, "content": text}


# -- arguments --------------------------------------------------------------------------------------------------------


def argument_to_data(value: Any) -> Any:
    """Return an argument of a buffer as plain data.

    :raises StorageError: if it cannot be stored
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, type) and issubclass(value, np.generic | bool | int | float):
        value = np.dtype(value)
    if isinstance(value, config.SCALARS):
        return config.to_json(value)
    if isinstance(value, Codec):
        return {"codec": value.get_config()}
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, Mapping):
        return {"mapping": {str(key): argument_to_data(part) for key, part in value.items()}}
    raise StorageError(f"cannot store the argument {value!r}")


def argument_from_data(data: Any, make_sampler: Callable[[object], Any] | None = None) -> Any:
    """Return the argument for a result of :func:`argument_to_data`.

    :param make_sampler: returns a sampler for its config, where that is allowed
    :raises CorruptStorage: if the data is invalid
    """
    if make_sampler is not None and isinstance(data, dict) and data.keys() == {"sampler"}:
        return _convert(data["sampler"], make_sampler, "argument")
    return _convert(data, _parse_argument, "argument")


def _parse_argument(data: object) -> Any:
    if isinstance(data, dict) and data.keys() == {"codec"}:
        return codec_from_config(data["codec"])
    if isinstance(data, dict) and data.keys() == {"mapping"}:
        return parse({str: _parse_argument}, data["mapping"])
    return parse_scalar(data)


def parse_scalar(data: object) -> Any:
    """Return a number, text, dtype or ``None`` that :func:`argument_to_data` has converted."""
    return config.argument_from_json(bool | int | float | str | None, data, "it")


#: Errors that constructors of spaces and codecs raise for invalid arguments.
INVALID_DATA_ERRORS: tuple[type[Exception], ...] = (LookupError, TypeError, ValueError, AssertionError, AttributeError)
INVALID_DATA_ERRORS += (ArithmeticError, MemoryError, RecursionError)


def _convert(data: Any, function: Callable[[Any], Any], what: str) -> Any:
    """Return the result of a function for data from a file.

    :raises CorruptStorage: if the data is invalid
    """
    try:
        return function(data)
    except INVALID_DATA_ERRORS as error:
        raise CorruptStorage(f"{abbreviate(data)} is not a valid {what}: {error}") from error
