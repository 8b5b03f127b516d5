"""``NamedSpaces``: observations and features of a recording as arrays by name, whether or not their space is a Dict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_compressed.arrays.cast import cast_values
from sb3_compressed.common.spaces import space_dtype, space_parts

__all__ = ["Arrays", "NamedSpaces", "merge_arrays", "merge_spaces", "to_feature_space", "validate_batch"]

Arrays = dict[str, NDArray[Any]]
"""Arrays ``(n_envs, *shape)`` by name."""


@dataclass(frozen=True)
class NamedSpaces:
    """The parts of a Dict space by their keys, or any other space by one name.

    :param name: name of a space that is not a Dict
    :param space: the space; ``None`` for no parts
    """

    name: str
    space: spaces.Space[Any] | None

    @property
    def spaces(self) -> dict[str, spaces.Space[Any]]:
        """The spaces by name."""
        parts = {} if self.space is None else space_parts(self.space)
        return {self.name if key is None else key: space for key, space in parts.items()}

    def validate(self, argument: str, value: Any, n_envs: int) -> Arrays:
        """Return copies of the arrays in ``value``, which is ignored if there are no parts.

        :param argument: name of the argument for error messages
        :raises ValueError: if a key, shape or value does not fit the space
        :raises TypeError: if a value is not numeric
        """
        if not isinstance(self.space, spaces.Dict):
            return {name: validate_batch(argument, value, space, n_envs) for name, space in self.spaces.items()}
        if not isinstance(value, Mapping) or set(value) != set(self.space.spaces):
            got = sorted(value) if isinstance(value, Mapping) else type(value).__name__
            raise ValueError(f"{argument} must be a dict with the keys {sorted(self.space.spaces)}, got {got}")
        return {
            key: validate_batch(f"{argument}[{key!r}]", value[key], space, n_envs) for key, space in self.spaces.items()
        }


def validate_batch(argument: str, value: Any, space: spaces.Space[Any], n_envs: int) -> NDArray[Any]:
    """Return a copy of the values of all environments, ``(n_envs, *shape)``, in the dtype of their space.

    :raises ValueError: if the shape is wrong, or a value cannot be represented in the dtype
    :raises TypeError: if a value is not numeric
    """
    values, shape = np.asarray(value), space.shape or ()
    if n_envs == 1 and values.shape == shape:
        values = values[np.newaxis]
    if values.shape != (n_envs, *shape):
        alternative = f" or {shape}" if n_envs == 1 else ""
        raise ValueError(f"{argument} must have the shape {(n_envs, *shape)}{alternative}, got {values.shape}")
    try:
        return np.array(cast_values(values, space_dtype(space)))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{argument}: {error}") from None


def to_feature_space(value: int | spaces.Space[Any] | None) -> spaces.Space[Any] | None:
    """Return a space of features, which may be given as a number of float32 values.

    :raises ValueError: if the number is not a positive integer
    """
    if value is None or isinstance(value, spaces.Space):
        return value
    if not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"feature_space must be a space or a positive number of float32 features, got {value!r}")
    return spaces.Box(-np.inf, np.inf, (int(value),), np.float32)


def merge_spaces(*groups: NamedSpaces) -> spaces.Space[Any]:
    """Return a Dict space of all parts, or the space itself if only one of the groups has any.

    :raises ValueError: if two parts have the same name
    """
    given = [group for group in groups if group.space is not None]
    if not given:
        return spaces.Box(0, 0, (0,), np.uint8)
    if len(given) == 1:
        assert given[0].space is not None
        return given[0].space
    names = [name for group in given for name in group.spaces]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(
            f"observations and features both have parts named {duplicates}; pass a Dict space with other names"
        )
    return spaces.Dict({name: space for group in given for name, space in group.spaces.items()})


def merge_arrays(arrays: Arrays, space: spaces.Space[Any], n_envs: int) -> Any:
    """Return arrays as an observation of the space that :func:`merge_spaces` returned."""
    if isinstance(space, spaces.Dict):
        return arrays
    return next(iter(arrays.values())) if arrays else np.zeros((n_envs, 0), np.uint8)
