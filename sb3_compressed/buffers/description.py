"""``describe``: content and size of a replay buffer, for JSON."""

from __future__ import annotations

from typing import Any

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.buffers.memory_statistics import statistics_of
from sb3_compressed.buffers.replay import CompressedReplay
from sb3_compressed.codecs import TrainableCodec
from sb3_compressed.persistence.buffer_state import is_observation, named_arrays
from sb3_compressed.samplers import PrioritizedSampler
from sb3_compressed.samplers.config import sampler_to_config

__all__ = ["describe"]


def describe(buffer: CompressedReplay) -> dict[str, Any]:
    """Describe a replay buffer for JSON.

    Takes constant time, and decodes nothing; see :func:`~sb3_compressed.buffer_statistics`.

    :return: ``class``, ``observation_space``, ``action_space``; the numbers ``n_envs``, ``capacity`` and
        ``transitions`` (of all environments), ``rows``, ``position`` (the row that is written next) and ``full``; for
        each part of the observations, by its key, the ``codec``, the size of its trained state (``learned_bytes``) and
        the number of stacked frames; the ``sampler``, by its name and arguments or the name of a user's class, ``None``
        for SB3's own sampling; ``raw_bytes_per_transition`` in SB3's own buffer,
        ``payload_bytes_per_transition`` of observations here, ``None`` in an empty buffer, and their ``ratio``; the
        memory that the buffer takes when loaded (``memory_bytes``: payloads, slots, references, trained state, actions,
        rewards and flags), that of SB3's own buffer with the same transitions (``sb3_memory_bytes``), and
        ``memory_ratio``, ``None`` in an empty buffer; with priorities, also ``priorities``: the largest (``max``), the
        effective sample size and the share of transitions that were never sampled
    """
    n_slots = buffer.buffer_size * buffer.n_envs
    arrays = named_arrays(buffer)
    raw = buffer.raw_observations_nbytes / max(n_slots, 1)
    statistics = statistics_of(buffer)
    payload = statistics.payload_nbytes_per_transition if buffer.size() else None
    memory, sb3_memory = statistics.loaded_memory_nbytes, statistics.raw_memory_nbytes
    sampler = buffer.sampler
    description = {
        "class": type(buffer).__name__,
        "observation_space": str(buffer.observation_space),
        "action_space": str(buffer.action_space),
        "n_envs": buffer.n_envs,
        "capacity": n_slots,
        "transitions": buffer.size() * buffer.n_envs,
        "rows": buffer.buffer_size,
        "position": int(buffer.pos),
        "full": bool(buffer.full),
        "observations": {
            name.partition("/")[2]: _describe_array(array) for name, array in arrays.items() if is_observation(name)
        },
        "sampler": None if sampler is None else sampler_to_config(sampler),
        "raw_bytes_per_transition": raw,
        "payload_bytes_per_transition": payload,
        "ratio": raw / payload if payload else None,
        "memory_bytes": memory,
        "sb3_memory_bytes": sb3_memory,
        "memory_ratio": sb3_memory / memory if buffer.size() and memory else None,
    }
    if isinstance(sampler, PrioritizedSampler) and sampler.priority_max:  # of a buffer with transitions
        description["priorities"] = {
            "max": sampler.priority_max,
            "effective_sample_size": sampler.effective_sample_size,
            "never_sampled": sampler.share_never_sampled,
        }
    return description


def _describe_array(array: Any) -> dict[str, Any]:
    if not isinstance(array, CompressedArray):
        return {"codec": None, "learned_bytes": 0, "frames": 1, "stored_as": str(array.dtype)}
    return {
        "codec": repr(array.codec),
        "learned_bytes": array.codec.nbytes if isinstance(array.codec, TrainableCodec) else 0,
        "frames": array.n_frames,
        "stored_as": str(array.elem_type),
    }
