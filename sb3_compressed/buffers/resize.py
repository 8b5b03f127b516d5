"""``resize``: replace a replay buffer by a larger one with the same content."""

from __future__ import annotations

from typing import Any

from sb3_compressed.buffers.replay import CompressedReplay
from sb3_compressed.persistence.ring_resize import copy_newest

__all__ = ["resize"]


def resize(buffer: CompressedReplay, buffer_size: int) -> None:
    """Increase the size of a replay buffer, in memory or in its folder; its content stays.

    Nothing is decoded. In memory, slots are copied as references; in a folder, the buffer is resumed with the new size.

    :param buffer: a buffer with next observations: not one with SB3's own ``optimize_memory_usage``, nor hindsight's
    :param buffer_size: the new number of transitions, not smaller than the current one
    :raises StorageError: if the folder is not open for writing
    :raises OSError: if it cannot be written
    """
    storage: dict[str, Any] = {}
    bound = buffer.bound_sampler
    sampler = {} if bound is None else {"sampler": bound.configured}
    if buffer.folder is not None:
        storage = {"storage": buffer.folder, "storage_mode": "resume"}
        buffer.close()
    resized = type(buffer)(
        observation_space=buffer.observation_space,
        action_space=buffer.action_space,
        device=buffer.device,
        num_threads=buffer.num_threads,
        **{**buffer.given_arguments, **storage, **sampler, "buffer_size": buffer_size},
    )
    if buffer.is_in_memory:
        copy_newest(buffer, resized)
    buffer.take_over(resized)
