"""Validation of counts that constructors receive, and of everything that ``add`` and ``sample`` receive."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.cast import cast_values

__all__ = [
    "is_unchanged",
    "kinds_of_step",
    "require_numbers_per_env",
    "validate_infos",
    "validate_integer",
    "validate_numbers",
    "validate_observation",
    "validate_observations",
    "validate_row",
    "validate_tensor",
    "validated_counts",
    "validated_timeouts",
]

#: Arguments of SB3's constructors that are counts, and their minimum.
LEAST = {"buffer_size": 1, "n_envs": 1, "n_steps": 1, "n_sampled_goal": 0}


def validated_counts(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a constructor with Python's integers for counts.

    SB3 fails later or not at all: ``n_envs=0`` is a ``ZeroDivisionError``, ``buffer_size=-5`` one row.

    :raises TypeError: if a count is not an integer
    :raises ValueError: if one is too small
    """
    counts = {name: validate_integer(name, arguments[name], LEAST[name]) for name in LEAST if name in arguments}
    return {**arguments, **counts}


def validate_integer(name: str, value: Any, least: int) -> int:
    """Return an integer of Python or NumPy as Python's ``int``.

    :raises TypeError: if it is not an integer
    :raises ValueError: if it is too small
    """
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        hint = f"; pass {int(value)}" if isinstance(value, float) and value.is_integer() else ""
        raise TypeError(f"{name} must be an integer, got {value!r}{hint}")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return number


def validate_observations(name: str, value: Any, arrays: Any, space: spaces.Space[Any], n_envs: int) -> Any:
    """Return observations of all environments as they can be written to a row of the arrays, or raise.

    :param name: the argument's name for the message
    :param value: observations ``(n_envs, *obs_shape)``, or a dict of them
    :param arrays: the array of observations, or a dict of them
    """
    if not isinstance(space, spaces.Dict):
        return validate_observation(name, value, arrays, n_envs, space)
    missing = set(arrays) - set(value) if isinstance(value, Mapping) else set(arrays)
    if missing:
        raise ValueError(f"{name} must be a dict with the keys {sorted(arrays)}, {sorted(missing)} are missing")
    # A new dict, since SB3 writes into the one that it gets.
    return {
        key: validate_observation(f"{name}[{key!r}]", value[key], array, n_envs, space[key])
        for key, array in arrays.items()
    }


def validate_observation(
    name: str, value: Any, array: NDArray[Any] | CompressedArray, n_envs: int, space: spaces.Space[Any]
) -> NDArray[Any]:
    """Return observations of all environments, or raise if they cannot be written to a row of ``array``.

    :param space: their space
    """
    is_number = isinstance(space, spaces.Discrete)  # which SB3 reshapes to (n_envs, 1)
    is_plain = not is_number and not isinstance(array, CompressedArray)
    if is_plain and type(value) is np.ndarray and value.dtype == array.dtype and value.shape == array.shape[1:]:
        return value  # the usual case
    values = np.asarray(value)
    if array.dtype != space.dtype and values.dtype.kind in "biuf":
        values = values.astype(array.dtype)  # a user has chosen that dtype, so values are cast as NumPy casts them
    try:
        row = values.reshape(n_envs, 1) if is_number else values
        if isinstance(array, CompressedArray):
            return array.validated_row(row)
        if not is_number:
            values = row = _without_leading_axes(row, array.ndim - 1)
        _check_row(row, array)
    except (TypeError, ValueError) as error:
        hint = ""
        if values.dtype.kind == "f" and array.dtype.kind in "biu":
            hint = "; observations that are normalized or scaled need a space of floats (or norm_obs=False)"
        raise type(error)(f"{name}: {error}{hint}") from None
    return values


def kinds_of_step(*arguments: Any) -> tuple[Any, ...] | None:
    """Return the types, dtypes and shapes of arguments of ``add``, ``None`` if one has none, such as a list."""
    kinds: list[Any] = []
    try:
        for each in arguments:
            if type(each) is dict:
                kinds += [(key, type(part), part.dtype, part.shape) for key, part in each.items()]
            else:
                kinds += type(each), each.dtype, each.shape
    except AttributeError:
        return None
    return tuple(kinds)


def is_unchanged(given: Any, validated: Any) -> bool:
    """Return whether validation returned the argument that it got, or a dict of the same arrays."""
    if type(given) is dict and type(validated) is dict:
        return all(given[key] is part for key, part in validated.items())
    return given is validated


def validate_numbers(name: str, value: Any, size: int, n_envs: int) -> NDArray[Any]:
    """Return ``value`` as an array, or raise if it does not consist of ``size`` numbers."""
    values = _numbers(name, value)
    if values.size != size:
        elements, environments = "element" + "s" * (size != 1), "environment" + "s" * (n_envs != 1)
        raise ValueError(
            f"{name} must have {size} {elements}, for a step of {n_envs} {environments}, got {values.size}"
            f"{_size_hint(values.size, size, n_envs)}"
        )
    return values


def _size_hint(n_given: int, size: int, n_envs: int) -> str:
    """Return what may be wrong with another number of elements than ``size``, as the end of an error message."""
    n_steps, rest = divmod(n_given * n_envs, size)
    if rest or not n_steps:
        return ""
    if n_steps == 1:
        return "; of vector environments, pass single_observation_space and single_action_space to the buffer"
    return f"; pass n_envs={n_steps} to the buffer if these are {n_steps} environments"


def validate_row(name: str, value: Any, shape: tuple[int, ...], *, may_broadcast: bool = True) -> NDArray[Any]:
    """Return numbers of all environments as they can be assigned to a row of an array, or raise.

    SB3's array has one number for each environment. If a subclass replaced it, for example by one with the rewards of
    several objectives, what NumPy assigns to its rows is valid.

    :param shape: that of a row, ``(n_envs,)`` unless the array was replaced
    :param may_broadcast: whether one number may stand for all environments, where each has one
    """
    values = _without_leading_axes(_numbers(name, value), len(shape))
    if values.shape == shape:
        return values
    if values.size == 1 and shape == (1,):
        return values.reshape(1)
    if not may_broadcast and len(shape) == 1:
        raise _wrong_shape(name, values.shape, shape)
    _require_broadcast(name, values.shape, shape)
    return values


def require_numbers_per_env(buffer: Any, what: str, *names: str) -> None:
    """Raise if arrays that a subclass replaced do not have one number for each environment.

    :param what: what needs that
    :raises ValueError: then
    """
    for name in names:
        shape = np.shape(getattr(buffer, name))
        if len(shape) != 2:
            raise ValueError(f"{what} need one number of {name} for each environment, got an array of shape {shape}")


def validate_tensor(name: str, value: Any, array: Any, n_envs: int) -> th.Tensor:
    """Return a tensor of numbers of all environments as it can be assigned to a row of an array, or raise.

    One number for each environment is returned flat, unless it has no axes.

    :param array: the array of the buffer, ``(buffer_size, n_envs)`` unless it was replaced
    """
    shape = np.shape(array)[1:]
    is_replaced = shape != (n_envs,)
    if not isinstance(value, th.Tensor) or value.requires_grad or not (is_replaced or value.numel() in (n_envs, 1)):
        raise ValueError(f"{name} must be a tensor of {n_envs} elements without gradient, got {value!r}")
    if is_replaced:
        _require_broadcast(name, tuple(value.shape), shape)
        return value
    return value.flatten() if value.dim() else value


def validated_timeouts(infos: Any, n_envs: int) -> Any:
    """Return whether a time limit ended each episode, from the info dicts of a step, or raise if they are none."""
    try:
        if len(infos) == n_envs:
            timeouts = []
            for info in infos:
                timeouts.append(info.get("TimeLimit.truncated", False))  # a call takes as long as 3 envs
                if timeouts[-1] is not False and timeouts[-1] is not True:
                    break
            else:
                return timeouts  # the usual case
    except (TypeError, AttributeError):  # None, an iterator, other objects
        pass
    validate_infos(infos, n_envs)
    # Of environments that return arrays of one element, too.
    return np.reshape([info.get("TimeLimit.truncated", False) for info in infos], n_envs)


def validate_infos(infos: Any, n_envs: int) -> None:
    """Raise if these are not the info dicts of a step of ``n_envs`` environments."""
    try:
        n_infos = len(infos)
    except TypeError:  # None, an iterator
        n_infos = None
    if isinstance(infos, Mapping):
        keys = f" with the keys {', '.join(map(str, infos))}" if infos else ""
        # Not the infos of Gymnasium: it does not store time limits in them, so that their ends would be terminal.
        raise ValueError(
            f"infos must be a list of dicts, one for each environment (n_envs={n_envs}), got a dict{keys}; of "
            "environments of Gymnasium, add terminations | truncations as done, and as infos for each environment "
            "{'TimeLimit.truncated': <whether it was truncated and not terminated>}"
        )
    # SB3 would use a single info dict for all environments, so that one time limit ended every episode.
    if n_infos != n_envs or not all(hasattr(info, "get") for info in infos):
        given = "other objects" if n_infos == n_envs else "none" if n_infos is None else str(n_infos)
        raise ValueError(f"infos must be a list of dicts, one for each environment (n_envs={n_envs}), got {given}")
    truncated = [info.get("TimeLimit.truncated", False) for info in infos]
    if [*map(type, truncated)].count(bool) == n_envs:
        return
    validate_row("infos' 'TimeLimit.truncated'", truncated, (n_envs,))


def _without_leading_axes(values: NDArray[Any], ndim: int) -> NDArray[Any]:
    """Return values without leading axes of length 1 beyond ``ndim``, which NumPy ignores in assignments."""
    while values.ndim > ndim and values.shape[0] == 1:
        values = values[0]
    return values


def _require_broadcast(name: str, given: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Raise if values of one shape cannot be assigned to a row of another one.

    :raises ValueError: then
    """
    try:
        is_valid = np.broadcast_shapes(given, shape) == shape
    except ValueError:
        is_valid = False
    if not is_valid:
        raise _wrong_shape(name, given, shape)


def _wrong_shape(name: str, given: tuple[int, ...], shape: tuple[int, ...]) -> ValueError:
    what = "one for each environment" if len(shape) == 1 else "that of a row of the buffer's array"
    return ValueError(f"{name} must have the shape {shape}, {what}, got {given}")


def _check_row(values: NDArray[Any], array: NDArray[Any]) -> None:
    shape = array.shape[1:]
    row = cast_values(values, array.dtype)
    try:
        np.broadcast_to(row, shape)
    except ValueError:
        raise ValueError(f"cannot write values of shape {values.shape} to a row of shape {shape}") from None


def _numbers(name: str, value: Any) -> NDArray[Any]:
    values = np.asarray(value)
    if values.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be numbers, got {value!r}")
    return values
