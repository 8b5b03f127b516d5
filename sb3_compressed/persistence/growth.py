"""Room for more transitions in a buffer that there is, for those who cannot say beforehand how many will come."""

from __future__ import annotations

from typing import Any

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.buffers.base import CompressedReplay
from sb3_compressed.persistence import buffer_state
from sb3_compressed.persistence.ring_resize import Resized

__all__ = ["grow"]


def grow(buffer: CompressedReplay, buffer_size: int) -> None:
    """Give a replay buffer room for more transitions, in memory or in its folder; what it holds stays.

    Nothing is decoded. In memory, slots go over as references; in a folder, it goes on with ``resume=True``.

    :param buffer: a buffer with next observations: not one with SB3's own ``optimize_memory_usage``, nor hindsight's
    :param buffer_size: number of transitions it is to have room for, not fewer than now
    :raises StorageError: if the folder is not open for writing
    :raises OSError: if the disk does not take it
    """
    place: dict[str, Any] = {}
    if buffer.folder is not None:
        place = {"storage": buffer.folder, "resume": True}
        buffer.close()
    grown = type(buffer)(
        observation_space=buffer.observation_space,
        action_space=buffer.action_space,
        device=buffer.device,
        num_threads=buffer.num_threads,
        **{**buffer.given_arguments, **place, "buffer_size": buffer_size},
    )
    if buffer.is_in_memory:
        _copy(buffer, grown)
    buffer.take_over(grown)


def _copy(buffer: Any, grown: Any) -> None:
    """Put the content of a buffer in memory into another one of the same kind with more room."""
    resized = Resized(buffer.pos, buffer.buffer_size, grown.buffer_size, full=buffer.full)
    new_arrays = buffer_state.named_arrays(grown)
    for name, array in buffer_state.named_arrays(buffer).items():
        if isinstance(array, CompressedArray):  # with what it has learned and remembers
            buffer_state.put_array(grown, name, array.resized(grown.buffer_size, resized.kept))
        else:
            new_arrays[name][: len(resized.kept)] = array[resized.kept]
    grown.pos, grown.full = resized.pos, resized.full
