"""``resize`` and ``copy_newest``: the content of a replay buffer in one of another size."""

from __future__ import annotations

from typing import Any

import numpy as np

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.buffers.replay import CompressedReplay
from sb3_compressed.buffers.tensors import torch_device
from sb3_compressed.persistence import buffer_state
from sb3_compressed.persistence.replay_buffer_like import ReplayBufferLike
from sb3_compressed.persistence.ring_resize import RingResize

__all__ = ["copy_newest", "resize"]


def resize(buffer: CompressedReplay, buffer_size: int) -> None:
    """Increase the size of a replay buffer, in memory or in its folder; its content stays.

    Nothing is decoded. In memory, slots are copied as references; in a folder, the buffer is resumed with the new size.

    :param buffer: a buffer with next observations: not one with SB3's own ``optimize_memory_usage``, nor hindsight's
    :param buffer_size: the new number of transitions, not smaller than the current one
    :raises StorageError: if the folder is not open for writing
    :raises OSError: if it cannot be written
    """
    storage: dict[str, Any] = {"storage": "device"} if buffer._is_on_device else {}
    bound = buffer.bound_sampler
    sampler = {} if bound is None else {"sampler": bound.configuration}
    if buffer.folder is not None:
        storage = {"storage": buffer.folder, "storage_mode": "resume"}
        buffer.close()
    resized = type(buffer)(
        observation_space=buffer.observation_space,
        action_space=buffer.action_space,
        device=torch_device(buffer.device),
        num_threads=buffer.num_threads,
        **{**buffer.given_arguments, **storage, **sampler, "buffer_size": buffer_size},
    )
    if buffer.is_in_memory:
        copy_newest(buffer, resized)
        for key, array in buffer_state.observation_arrays(resized):
            if isinstance(array, CompressedArray):
                resized._array_factory.newest[key] = array.new_sharing_frames()
    buffer.take_over(resized)


def copy_newest(buffer: ReplayBufferLike, resized: ReplayBufferLike) -> None:
    """Copy the newest rows of a buffer in memory that fit to a new one of the same kind, and the state of its sampler.

    Neither may be one of hindsight replay.
    """
    ring = RingResize(buffer.pos, buffer.buffer_size, resized.buffer_size, full=buffer.full)
    new_arrays = buffer_state.named_arrays(resized)
    for name, array in buffer_state.named_arrays(buffer).items():
        if isinstance(array, CompressedArray):  # with its trained codec and frames to share
            buffer_state.put_array(resized, name, array.resized(resized.buffer_size, ring.kept))
        else:
            new_arrays[name][: len(ring.kept)] = array[ring.kept]
    resized.pos, resized.full = ring.pos, ring.full
    if (bound := buffer.bound_sampler) is None or (new_bound := resized.bound_sampler) is None:
        return
    state = bound.sampler.state_dict()
    for name, value in state.items():
        if isinstance(value, np.ndarray) and value.ndim and len(value) == bound.n_rows * bound.n_envs:
            rows = value.reshape(bound.n_rows, bound.n_envs, *value.shape[1:])
            state[name] = ring.moved(rows).reshape(-1, *value.shape[1:])
    new_bound.load(state, 0, len(ring.kept))
    new_bound.synchronize(resized)
