"""The parts, dtypes and shapes of observation spaces."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_compressed.errors import ObservationSpaceError

__all__ = ["Key", "ObservationFormats", "space_dtype", "space_formats", "space_parts", "space_shape"]

Key = str | None
"""A key of Dict observations; ``None`` for observations that are one array."""

ObservationFormats = dict[Key, tuple[tuple[int, ...], np.dtype[Any]]]
"""For each key the shape and the dtype of an observation."""


def space_parts(space: spaces.Space[Any]) -> dict[Key, spaces.Space[Any]]:
    """Return the subspaces of a Dict space by their keys, in a fixed order; any other space under the key ``None``."""
    return dict(space.spaces.items()) if isinstance(space, spaces.Dict) else {None: space}


def space_formats(space: spaces.Space[Any]) -> ObservationFormats:
    """Return the shape and the dtype of the observations of each part of a space, as SB3 allocates them.

    :raises ValueError: if SB3's buffers do not support a part; the message names it
    """
    return {key: _format(key, part) for key, part in space_parts(space).items()}


def _format(key: Key, part: spaces.Space[Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        return space_shape(part), space_dtype(part)
    except ValueError as error:
        raise type(error)(f"observations[{key!r}]: {error}" if key is not None else str(error)) from error


def space_shape(space: spaces.Space[Any]) -> tuple[int, ...]:
    """Return the shape of observations of a space in SB3's buffers; the space must not be a Dict."""
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return space.shape
    if isinstance(space, spaces.Discrete):
        return (1,)
    if isinstance(space, spaces.MultiDiscrete):
        return (len(space.nvec),)
    from stable_baselines3.common.preprocessing import get_obs_shape  # for its errors: importing SB3 takes long

    shape = get_obs_shape(space)
    if isinstance(shape, dict):
        raise ObservationSpaceError(f"a Dict space inside a Dict space is not supported, got {space}")
    return tuple(shape)


def space_dtype(space: spaces.Space[Any]) -> np.dtype[Any]:
    """Return the dtype of observations of a space; the space must not be a Dict."""
    if space.dtype is None:
        raise ValueError(f"observations of {space} have no dtype")
    return np.dtype(space.dtype)
