"""``buffer_statistics``: what a buffer takes, saves and shares, at a cost that does not grow with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import BaseBuffer

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.memory_estimate import MemoryEstimate
from sb3_compressed.buffers.base import CompressedBuffer
from sb3_compressed.dtypes import Key

__all__ = ["BufferStatistics", "buffer_statistics"]


@dataclass(frozen=True)
class BufferStatistics:
    """What a buffer holds and what that takes.

    :ivar transitions: transitions it holds, of all environments
    :ivar memory_nbytes: bytes of memory that all of its arrays take, those of actions and rewards too. What NumPy has
        reserved and nobody has written to yet takes none
    :ivar observations_nbytes: bytes that observations and next observations take where they are: in memory with
        Python's overhead, on disk their payloads
    :ivar raw_observations_nbytes: bytes of memory that the same observations take in SB3's buffer
    :ivar payload_nbytes: bytes of what was made of the frames alone, as compressed
    :ivar frames: frames that observations and next observations show, each counted as often as it is seen
    :ivar stored_frames: how many of these are stored
    :ivar batch_memory_nbytes: bytes of memory that are kept from one batch to the next, besides all of the above;
        ``MAX_NBYTES`` of :class:`~sb3_compressed.arrays.batch_pool.BatchPool` at most
    """

    transitions: int
    memory_nbytes: int
    observations_nbytes: int
    raw_observations_nbytes: int
    payload_nbytes: int
    frames: int
    stored_frames: int
    batch_memory_nbytes: int = 0

    @property
    def compression_ratio(self) -> float:
        """How many times less observations take than in SB3's buffer; 1 for an empty buffer."""
        return self.raw_observations_nbytes / self.observations_nbytes if self.observations_nbytes else 1.0

    @property
    def payload_nbytes_per_transition(self) -> float:
        """Compressed bytes that a transition adds, in the mean."""
        return self.payload_nbytes / max(self.transitions, 1)

    @property
    def shared_frames(self) -> float:
        """The part of all frames, from 0 to 1, that refers to a frame which is stored anyway."""
        return 1 - self.stored_frames / self.frames if self.frames else 0.0


def buffer_statistics(buffer: BaseBuffer | None, max_slots: int = 8192) -> BufferStatistics:
    """Return what a compressed buffer takes at present.

    Sizes of arrays are exact. What slots refer to is exact for up to ``max_slots`` slots (observations and next
    observations have one each); of larger buffers, runs of rows that are spread evenly over the ring stand for all, so
    that a call takes no longer for a larger buffer. Where every byte has to be counted, there is
    :attr:`~sb3_compressed.buffers.base.CompressedBuffer.observations_nbytes`, which looks at all.

    >>> from stable_baselines3 import DQN
    >>> from sb3_compressed import CompressedReplayBuffer, buffer_statistics
    >>> model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer, learning_starts=500)
    >>> statistics = buffer_statistics(model.learn(500).replay_buffer)
    >>> statistics.transitions, round(statistics.shared_frames, 1)
    (500, 0.5)

    :param buffer: a replay or rollout buffer; a rollout buffer between the last step and the training on it
    :param max_slots: about how many slots are looked at
    :raises TypeError: if it is none of this package
    """
    if not isinstance(buffer, CompressedBuffer):
        raise TypeError(f"there are statistics of compressed buffers, got a {type(buffer).__name__}")
    by_key: dict[Key, list[Any]] = {}
    for key, array in buffer._arrays():
        by_key.setdefault(key, []).append(array)
    filled = buffer.size() / max(buffer.buffer_size, 1)
    parts = [_part(arrays, buffer, filled, max_slots) for arrays in by_key.values()]
    memory = sum(part.nbytes for part in parts)
    payload = sum(part.payload_nbytes for part in parts)
    observations = {id(array) for arrays in by_key.values() for array in arrays}
    others = [
        array for array in vars(buffer).values() if isinstance(array, np.ndarray) and id(array) not in observations
    ]
    return BufferStatistics(
        transitions=buffer.size() * buffer.n_envs,
        memory_nbytes=round(memory + filled * sum(array.nbytes for array in others)),
        observations_nbytes=round(memory if getattr(buffer, "is_in_memory", True) else payload),
        raw_observations_nbytes=round(filled * buffer.raw_observations_nbytes),
        payload_nbytes=round(payload),
        frames=round(sum(part.n_frames for part in parts)),
        stored_frames=round(sum(part.n_payloads for part in parts)),
        batch_memory_nbytes=buffer._batch_pool.nbytes,
    )


def _part(arrays: Sequence[Any], buffer: CompressedBuffer, filled: float, max_slots: int) -> MemoryEstimate:
    """Return what observations and, if there are any, next observations of one key take.

    :param filled: how much of the buffer is written
    """
    first = arrays[0]
    if isinstance(first, CompressedArray):
        begin, n_rows = _written(buffer)
        return first.store.estimate([array.slots for array in arrays], begin, n_rows, max_slots)
    n_items = buffer.size() * buffer.n_envs
    nbytes: float = filled * sum(array.nbytes for array in arrays)
    n_stored = n_items * len(arrays)
    if not isinstance(first, np.ndarray):  # next observations that follow are not kept twice
        successors = arrays[1]
        nbytes = filled * first.nbytes + successors.nbytes
        n_stored = n_items + successors.n_own
    return MemoryEstimate(nbytes, n_stored * first[0, 0].nbytes, n_items * len(arrays), n_stored)


def _written(buffer: CompressedBuffer) -> tuple[int, int]:
    """Return the oldest row and how many there are from it on, around the end of the ring."""
    # With it, the row behind the newest holds that one's next observations.
    n_behind = int(bool(getattr(buffer, "optimize_memory_usage", False)) and buffer.size() > 0)
    begin = (buffer.pos + n_behind) % buffer.buffer_size if buffer.full else 0
    return begin, min(buffer.size() + n_behind, buffer.buffer_size)
