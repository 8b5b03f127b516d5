"""``find_buffer_dtypes``, and the dtypes and shapes of observation spaces."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike

from sb3_compressed.codecs import Codec, get_codec
from sb3_compressed.codecs.rle import smallest_runs_type
from sb3_compressed.errors import ObservationSpaceError

__all__ = ["Key", "find_buffer_dtypes", "space_dtype", "space_parts", "space_shape"]

Key = str | None
"""A key of Dict observations; ``None`` for observations that are one array."""


def find_buffer_dtypes(
    obs_shape: int | tuple[int, ...] | spaces.Space[Any],
    elem_dtype: DTypeLike | None = None,
    compression_method: str | Codec = "auto",
) -> dict[str, Any]:
    """Return the smallest lossless dtypes, for the ``dtypes`` argument of the buffers, and compile the codec.

    That is the dtype of the observations for elements, and the smallest unsigned dtype for lengths of runs. Buffers
    choose the same by default; call this function before creating a ``SubprocVecEnv``, so that kernels are compiled
    neither in the workers nor while they wait.

    >>> find_buffer_dtypes((84, 84), np.uint8, "rle-jit")
    {'elem_type': dtype('uint8'), 'runs_type': dtype('uint16')}

    :param obs_shape: shape of an observation, its number of elements, or an observation space
    :param elem_dtype: dtype of an observation; by default that of the space, or uint8 if ``obs_shape`` is not a space
    :param compression_method: a codec or its shorthand
    :return: ``elem_type`` for elements and ``runs_type`` for lengths of runs; for a Dict space such a dict for each key
    :raises ValueError: if the codec is unknown or invalid
    """
    from sb3_compressed.arrays import frame_dedup_kernels, payload_kernels  # noqa: F401  # importing compiles them

    get_codec(compression_method).prepare()
    if isinstance(obs_shape, spaces.Dict):
        return {key: find_buffer_dtypes(part, elem_dtype, compression_method) for key, part in obs_shape.spaces.items()}
    if isinstance(obs_shape, spaces.Space):
        elem_dtype = space_dtype(obs_shape) if elem_dtype is None else elem_dtype
        obs_shape = space_shape(obs_shape)
    n_elems = obs_shape if isinstance(obs_shape, int | np.integer) else math.prod(obs_shape)
    elem_type = np.dtype(np.uint8 if elem_dtype is None else elem_dtype)
    return {"elem_type": elem_type, "runs_type": smallest_runs_type(int(n_elems))}


def space_parts(space: spaces.Space[Any]) -> dict[Key, spaces.Space[Any]]:
    """Return the subspaces of a Dict space by their keys, in a fixed order; any other space under the key ``None``."""
    return dict(space.spaces.items()) if isinstance(space, spaces.Dict) else {None: space}


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
