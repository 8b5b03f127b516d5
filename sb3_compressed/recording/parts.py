"""What a recording keeps of a step besides action and reward: observations and features, as parts by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_compressed.arrays.cast import cast_values
from sb3_compressed.dtypes import space_dtype

__all__ = ["NamedParts", "Parts", "batch_of", "feature_space_of", "joined", "joined_space"]

Parts = dict[str, NDArray[Any]]
"""Arrays ``(n_envs, *shape)`` by the names of parts."""


@dataclass(frozen=True)
class NamedParts:
    """The parts of a space: those of a Dict space by its keys, any other as one.

    :param name: the name of the one
    :param space: the space; ``None`` for no parts
    """

    name: str
    space: spaces.Space[Any] | None

    @property
    def spaces(self) -> dict[str, spaces.Space[Any]]:
        """The parts' spaces."""
        if self.space is None:
            return {}
        return dict(self.space.spaces) if isinstance(self.space, spaces.Dict) else {self.name: self.space}

    def batch(self, argument: str, value: Any, n_envs: int) -> Parts:
        """Return what a caller passed as copies of its own; where there are no parts, nothing is looked at.

        :param argument: what the caller calls it
        :raises ValueError: if something does not fit
        :raises TypeError: if something has no numbers
        """
        if not isinstance(self.space, spaces.Dict):
            return {name: batch_of(argument, value, space, n_envs) for name, space in self.spaces.items()}
        if not isinstance(value, Mapping) or set(value) != set(self.space.spaces):
            got = sorted(value) if isinstance(value, Mapping) else type(value).__name__
            raise ValueError(f"{argument} must be a dict with the keys {sorted(self.space.spaces)}, got {got}")
        return {key: batch_of(f"{argument}[{key!r}]", value[key], space, n_envs) for key, space in self.spaces.items()}


def batch_of(argument: str, value: Any, space: spaces.Space[Any], n_envs: int) -> NDArray[Any]:
    """Return a copy of the values ``(n_envs, *shape)`` of all environments in the dtype of their space.

    :raises ValueError: if the shape is another, or a value does not fit the dtype
    :raises TypeError: if there are no numbers
    """
    values, shape = np.asarray(value), space.shape or ()
    if n_envs == 1 and values.shape == shape:
        values = values[np.newaxis]
    if values.shape != (n_envs, *shape):
        or_one = f" or {shape}" if n_envs == 1 else ""
        raise ValueError(f"{argument} must have the shape {(n_envs, *shape)}{or_one}, got {values.shape}")
    try:
        return np.array(cast_values(values, space_dtype(space)))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{argument}: {error}") from None


def feature_space_of(given: int | spaces.Space[Any] | None) -> spaces.Space[Any] | None:
    """Return the space of features, of which a number says how many float32 numbers they are."""
    if given is None or isinstance(given, spaces.Space):
        return given
    if not isinstance(given, int | np.integer) or given < 1:
        raise ValueError(f"feature_space must be a space or a positive number of float32 features, got {given!r}")
    return spaces.Box(-np.inf, np.inf, (int(given),), np.float32)


def joined_space(*groups: NamedParts) -> spaces.Space[Any]:
    """Return the space of all parts together: a Dict space, unless there is one part at most that has no key.

    :raises ValueError: if two parts have one name
    """
    own = [group for group in groups if group.space is not None]
    if not own:
        return spaces.Box(0, 0, (0,), np.uint8)
    if len(own) == 1:
        assert own[0].space is not None
        return own[0].space
    names = [name for group in own for name in group.spaces]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"observations and features both have parts named {twice}; name them otherwise in a Dict space"
        )
    return spaces.Dict({name: space for group in own for name, space in group.spaces.items()})


def joined(parts: Parts, space: spaces.Space[Any], n_envs: int) -> Any:
    """Return parts as an observation of the space that :func:`joined_space` made."""
    if isinstance(space, spaces.Dict):
        return parts
    return next(iter(parts.values())) if parts else np.zeros((n_envs, 0), np.uint8)
