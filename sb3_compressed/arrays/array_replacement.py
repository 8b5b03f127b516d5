"""``assigned_arrays``: what replaces the arrays of a buffer, as in ``buffer.observations = values``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.cast import cast_values
from sb3_compressed.arrays.compressed_array import CompressedArray

__all__ = ["assign_values", "assigned_arrays"]


def assigned_arrays(
    current: Mapping[str, Any],
    values: Mapping[str, Any],
    unwritten: Mapping[str, CompressedArray],
    *,
    may_be_flat: bool = False,
) -> dict[str, Any]:
    """Return the arrays of a buffer after an assignment to their names.

    Values are copied to compressed arrays, unless they are another array of the same buffer, as where observations and
    next observations are exchanged. Plain arrays are replaced, as in SB3.

    :param current: the arrays by their names, which messages contain
    :param values: what is assigned to each
    :param unwritten: for each name of a compressed array an unwritten one, for the case that the current one was
        released or has another format
    :param may_be_flat: see :meth:`.CompressedArray.may_replace`
    :raises ValueError: if a shape or a value does not fit; all arrays are then as they were
    :raises TypeError: if values are not numeric; likewise
    """
    arrays, zeros = dict(values), set[str]()
    for name, array in unwritten.items():
        own, value = current.get(name), values[name]
        if isinstance(value, CompressedArray) and value.may_replace(array, may_be_flat=may_be_flat):
            continue
        if not (isinstance(own, CompressedArray) and own.may_replace(array)):
            own = None
        if _are_zeros(value, array) and (own is None or own.stream.log.is_in_memory):
            zeros.add(name)  # which takes no memory, and no time to encode
            own = None
        arrays[name] = array.new_sharing_frames() if own is None else own
    copied = {name: array for name, array in arrays.items() if array is not values[name] and name not in zeros}
    assign_values(copied, values)
    return arrays


def _are_zeros(values: Any, array: CompressedArray) -> bool:
    """Return whether values for an array are an ndarray of zeros, such as SB3 allocates."""
    if type(values) is not np.ndarray or not values.flags.c_contiguous:
        return False
    if (values.shape, values.dtype) != (array.shape, array.dtype):
        return False
    return not any(row.reshape(-1).view(np.uint8).any() for row in values)


def assign_values(arrays: Mapping[str, CompressedArray | NDArray[Any]], values: Mapping[str, Any]) -> None:
    """Copy values to arrays, whatever they are in: ndarrays, tensors, lists, compressed arrays, data sets in files.

    :param arrays: the arrays by their names, which messages contain
    :param values: the values for each, of its shape; an array-like that can be sliced is read in parts
    :raises ValueError: if a shape or a value does not fit; all arrays are then as they were
    :raises TypeError: if values are not numeric; likewise
    """
    for write in [_encoded(array, values[name], name) for name, array in arrays.items()]:
        write()


def _encoded(array: CompressedArray | NDArray[Any], values: Any, name: str) -> Callable[[], None]:
    """Return a function that writes values to an array, after everything that may fail."""
    try:
        if not hasattr(values, "shape") or not hasattr(values, "__getitem__"):
            values = np.asarray(values)
        if tuple(values.shape) != array.shape:
            raise ValueError(
                f"it has the shape {array.shape}, and cannot be replaced by values of shape {tuple(values.shape)}; "
                f"create a buffer of another size, add them by extend, or assign to a part: {name}[rows] = values"
            )
        with np.errstate(over="raise"):
            if isinstance(array, CompressedArray):
                return array.prepare_assignment(values)
            cast = np.array(cast_values(np.asarray(values), array.dtype))  # a copy: arrays may be exchanged
    except FloatingPointError as error:
        raise ValueError(f"{name}: a value is too large for an array of dtype {array.dtype}") from error
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from error
    return lambda: np.copyto(array, cast)
