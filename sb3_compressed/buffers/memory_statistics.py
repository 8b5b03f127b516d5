"""``buffer_statistics``: memory, compression, and shared frames of a buffer, in constant time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import BaseBuffer

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.memory_estimate import MemoryEstimate, tables_nbytes
from sb3_compressed.codecs import TrainableCodec
from sb3_compressed.common.spaces import Key
from sb3_compressed.persistence.buffer_state import observation_arrays, raw_observations_nbytes

__all__ = ["BufferStatistics", "buffer_statistics", "statistics_of"]


@dataclass(frozen=True)
class BufferStatistics:
    """Number of transitions in a buffer, and their size.

    :ivar transitions: transitions of all environments
    :ivar memory_nbytes: bytes of memory of all arrays, actions and rewards included. Memory that NumPy has reserved and
        that was not written to yet does not count
    :ivar observations_nbytes: bytes of observations and next observations: in memory with slots and tables, on disk
        those of their payloads
    :ivar raw_observations_nbytes: bytes of memory of the same observations in SB3's buffer
    :ivar payload_nbytes: bytes of compressed frames alone
    :ivar frames: frames in observations and next observations, each counted as often as it occurs
    :ivar stored_frames: frames that are stored
    :ivar batch_memory_nbytes: bytes of memory that batches reuse, besides all of the above;
        ``MAX_NBYTES`` of :class:`~sb3_compressed.arrays.batch_pool.BatchPool` at most
    :ivar loaded_memory_nbytes: ``memory_nbytes`` of the same buffer in memory: of one on disk, after
        :func:`~sb3_compressed.load_checkpoint`. The trained state of the current codec counts even if no payload needs
        it yet
    :ivar raw_memory_nbytes: ``memory_nbytes`` of SB3's buffer
    :ivar device_memory_nbytes: bytes of the blocks of device memory that contain the observations, with
        ``storage="device"``
    :ivar full_memory_nbytes: ``memory_nbytes`` of the full buffer, if all of its frames take as much as those of now;
        0 for an empty buffer
    """

    transitions: int
    memory_nbytes: int
    observations_nbytes: int
    raw_observations_nbytes: int
    payload_nbytes: int
    frames: int
    stored_frames: int
    batch_memory_nbytes: int = 0
    loaded_memory_nbytes: int = 0
    raw_memory_nbytes: int = 0
    full_memory_nbytes: int = 0
    device_memory_nbytes: int = 0

    @property
    def compression_ratio(self) -> float:
        """Size of observations in SB3's buffer divided by their size here; 1 for an empty buffer."""
        return self.raw_observations_nbytes / self.observations_nbytes if self.observations_nbytes else 1.0

    @property
    def payload_nbytes_per_transition(self) -> float:
        """Mean compressed bytes of a transition."""
        return self.payload_nbytes / max(self.transitions, 1)

    @property
    def shared_frames(self) -> float:
        """Fraction of all frames, from 0 to 1, that are references to another stored frame."""
        return 1 - self.stored_frames / self.frames if self.frames else 0.0


def buffer_statistics(buffer: BaseBuffer | None, max_slots: int = 8192) -> BufferStatistics:
    """Return the current size of a compressed buffer.

    Sizes of arrays are exact. Sizes of payloads are exact for up to ``max_slots`` slots (observations and next
    observations have one each); for larger buffers they are estimated from runs of rows spread evenly over the ring, so
    that a call takes constant time. :attr:`~sb3_compressed.buffers.base.CompressedBuffer.observations_nbytes` counts
    every byte.

    >>> from stable_baselines3 import DQN
    >>> from sb3_compressed import CompressedReplayBuffer, buffer_statistics
    >>> model = DQN(
    ...     "MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer, learning_starts=500
    ... )
    >>> statistics = buffer_statistics(model.learn(500).replay_buffer)
    >>> statistics.transitions, round(statistics.shared_frames, 1)
    (500, 0.0)

    :param buffer: a replay or rollout buffer. Of a mixed buffer, the online buffer is described
    :param max_slots: approximate number of slots to read
    :raises TypeError: if it is not a buffer of this package
    """
    described: Any = getattr(buffer, "online", buffer)
    if not hasattr(described, "_batch_pool"):
        raise TypeError(f"buffer_statistics is for compressed buffers, got a {type(described).__name__}")
    return replace(statistics_of(described, max_slots), batch_memory_nbytes=described._batch_pool.nbytes)


def statistics_of(buffer: BaseBuffer, max_slots: int = 8192) -> BufferStatistics:
    """Return the current size of a compressed buffer, as :func:`buffer_statistics` but without memory of batches."""
    by_key: dict[Key, list[Any]] = {}
    for key, array in observation_arrays(buffer):
        by_key.setdefault(key, []).append(array)
    filled = buffer.size() / max(buffer.buffer_size, 1)
    parts = [_part(arrays, buffer, filled, max_slots) for arrays in by_key.values()]
    memory = sum(part.nbytes for part in parts)
    payload = sum(part.payload_nbytes for part in parts)
    observations = {id(array) for arrays in by_key.values() for array in arrays}
    others = [
        array for array in vars(buffer).values() if isinstance(array, np.ndarray) and id(array) not in observations
    ]
    others_nbytes = filled * sum(array.nbytes for array in others)
    raw_nbytes = filled * raw_observations_nbytes(buffer)
    is_in_memory = getattr(buffer, "is_in_memory", True)
    full = sum(  # of a folder, the tables are in memory, and do not grow
        _full_nbytes(arrays, part, filled) if is_in_memory else part.nbytes
        for arrays, part in zip(by_key.values(), parts, strict=True)
    )
    return BufferStatistics(
        transitions=buffer.size() * buffer.n_envs,
        memory_nbytes=round(memory + others_nbytes),
        observations_nbytes=round(memory if is_in_memory else payload),
        raw_observations_nbytes=round(raw_nbytes),
        payload_nbytes=round(payload),
        frames=round(sum(part.n_frames for part in parts)),
        stored_frames=round(sum(part.n_payloads for part in parts)),
        loaded_memory_nbytes=round(sum(part.loaded_nbytes for part in parts) + others_nbytes),
        raw_memory_nbytes=round(raw_nbytes + others_nbytes),
        full_memory_nbytes=round(full + sum(array.nbytes for array in others)) if filled else 0,
        device_memory_nbytes=sum(
            arrays[0].stream.log.device_nbytes for arrays in by_key.values() if isinstance(arrays[0], CompressedArray)
        ),
    )


def _part(arrays: Sequence[Any], buffer: BaseBuffer, filled: float, max_slots: int) -> MemoryEstimate:
    """Return the size of the observations and, if there are any, next observations of one key.

    :param filled: fraction of the buffer that is written
    """
    first = arrays[0]
    if isinstance(first, CompressedArray):
        begin, n_rows = _written(buffer)
        tables = [array.references for array in arrays]
        if first.references.ndim == 1:  # a rollout while the network trains on it, of one axis
            begin, n_rows, tables = 0, len(first.references), [table[:, np.newaxis] for table in tables]
        estimate = first.stream.estimate(tables, begin, n_rows, max_slots)
        codec = first.codec
        if isinstance(codec, TrainableCodec) and codec not in estimate.codecs:
            # It was trained after the last row, and takes memory nevertheless.
            estimate = replace(estimate, loaded_nbytes=estimate.loaded_nbytes + codec.nbytes)
        return estimate
    nbytes = filled * sum(array.nbytes for array in arrays)
    n_items = buffer.size() * buffer.n_envs * len(arrays)
    return MemoryEstimate(nbytes, nbytes, nbytes, n_items, n_items)


def _full_nbytes(arrays: Sequence[Any], part: MemoryEstimate, filled: float) -> float:
    """Return the memory of the observations and next observations of one key in a full buffer in memory.

    :param part: what they take now
    :param filled: fraction of the buffer that is written
    """
    fixed = sum(codec.nbytes for codec in part.codecs)
    if isinstance(arrays[0], CompressedArray):
        fixed += tables_nbytes([array.references for array in arrays])
    return fixed + (part.nbytes - fixed) / filled if filled else fixed


def _written(buffer: BaseBuffer) -> tuple[int, int]:
    """Return the oldest row and the number of written rows from there on, around the end of the ring."""
    # With optimize_memory_usage, the row after the newest contains its next observations.
    n_more = int(bool(getattr(buffer, "optimize_memory_usage", False)) and buffer.size() > 0)
    begin = (buffer.pos + n_more) % buffer.buffer_size if buffer.full else 0
    return begin, min(buffer.size() + n_more, buffer.buffer_size)
