"""``restore_formats``: before a save, the arrays that a user assigned get the formats that a load requires.

``buffer.rewards = buffer.rewards * np.float64(0.99)`` replaces SB3's array of float32 by one of float64. The buffer
works, but the class that loads it creates arrays of float32 again.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import BaseBuffer

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.array_replacement import assign_values
from sb3_compressed.common.spaces import Key, ObservationFormats, space_formats
from sb3_compressed.errors import StorageError
from sb3_compressed.persistence.buffer_state import get_array, named_arrays, put_array
from sb3_compressed.persistence.replay_buffer_like import ReplayBufferLike

__all__ = ["ArrayFormats", "formats_of", "restore_formats"]

ArrayFormats = dict[str, tuple[tuple[int, ...], np.dtype[Any] | None]]
"""The shape and the dtype of each array of a buffer by its name; without a dtype for compressed ones."""

NOT_SAVED = "nothing was saved, since it could not be loaded"


def formats_of(buffer: BaseBuffer | ReplayBufferLike) -> ArrayFormats:
    """Return the formats of the arrays that a buffer has now."""
    return {
        name: (tuple(array.shape), array.dtype if isinstance(array, np.ndarray) else None)
        for name, array in named_arrays(buffer).items()
    }


def restore_formats(
    buffer: ReplayBufferLike,
    formats: ArrayFormats,
    new_arrays: Mapping[Key, CompressedArray],
    of_space: ObservationFormats,
) -> None:
    """Replace arrays that a load would not accept by those that the constructor creates, with the same values.

    Values are cast as SB3 does when a transition is added: rewards to float32, for example. Numbers in other forms
    become Python's numbers.

    :param formats: those that a load accepts
    :param new_arrays: an unwritten array for each key of compressed observations
    :param of_space: the formats of observations of the space that the buffer was constructed for
    :raises StorageError: if an array has another shape, or values that its dtype does not contain, or is missing, or if
        compressed observations have another dtype
    """
    buffer.pos, buffer.full = index(buffer.pos), bool(buffer.full)
    if buffer.pos == buffer.buffer_size:  # a data set that fills the buffer
        buffer.pos, buffer.full = 0, True
    if unknown := named_arrays(buffer).keys() - formats.keys():
        raise StorageError(f"{NOT_SAVED}: the buffer was constructed without {', '.join(sorted(unknown))}")
    if space_formats(buffer.observation_space) != of_space:
        raise StorageError(f"{NOT_SAVED}: observation_space was replaced by one of other observations")
    for name, (shape, dtype) in formats.items():
        given = get_array(buffer, name)
        own: Any
        if dtype is not None:
            is_own = isinstance(given, np.ndarray) and (given.shape, given.dtype) == (shape, dtype)
            own = None if is_own else np.zeros(shape, dtype)
        else:
            unwritten = new_arrays[name.partition("/")[2] or None]
            is_own = isinstance(given, CompressedArray) and given.shape == shape and given.has_same_format_as(unwritten)
            own = None if is_own else unwritten.new_sharing_frames()
            if isinstance(given, CompressedArray) and given.dtype != unwritten.dtype:  # batches must keep their dtype
                raise StorageError(
                    f"{NOT_SAVED}: {name} was replaced by an array of dtype {given.dtype}; assign it in the "
                    f"constructor of a subclass, or assign {name}.astype({unwritten.dtype})"
                )
        if own is None:
            continue
        if given is None:
            raise StorageError(f"{NOT_SAVED}: {name} is missing or None")
        try:
            assign_values({name: own}, {name: given})
        except (TypeError, ValueError) as error:
            raise StorageError(f"{NOT_SAVED}: {error}") from error
        put_array(buffer, name, own)
