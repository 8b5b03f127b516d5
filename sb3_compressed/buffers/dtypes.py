"""``find_buffer_dtypes``: the ``dtypes`` argument of buffers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike

from sb3_compressed.codecs import Codec, get_codec
from sb3_compressed.codecs.rle import smallest_runs_type
from sb3_compressed.common.spaces import space_dtype, space_shape

__all__ = ["find_buffer_dtypes"]


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
    :raises TypeError: if ``elem_dtype`` is a space
    """
    if isinstance(elem_dtype, spaces.Space):  # NumPy takes an action space for a dtype: that of its actions
        raise TypeError(f"elem_dtype must be a dtype, got {elem_dtype}; pass the observation space alone")
    from sb3_compressed.arrays import (  # noqa: F401  # importing compiles them
        compaction_kernels,
        frame_dedup_kernels,
        payload_kernels,
        slot_copying_kernels,
        slot_kernels,
    )

    get_codec(compression_method).prepare()
    if isinstance(obs_shape, spaces.Dict):
        return {key: find_buffer_dtypes(part, elem_dtype, compression_method) for key, part in obs_shape.spaces.items()}
    if isinstance(obs_shape, spaces.Space):
        elem_dtype = space_dtype(obs_shape) if elem_dtype is None else elem_dtype
        obs_shape = space_shape(obs_shape)
    n_elems = obs_shape if isinstance(obs_shape, int | np.integer) else math.prod(obs_shape)
    elem_type = np.dtype(np.uint8 if elem_dtype is None else elem_dtype)
    return {"elem_type": elem_type, "runs_type": smallest_runs_type(int(n_elems))}
