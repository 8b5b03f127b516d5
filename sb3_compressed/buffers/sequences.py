"""``sample_sequences`` of replay buffers: batches of consecutive transitions, as recurrent networks need them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.type_aliases import TensorDict

from sb3_compressed.arrays.sequence_reading import SequenceSteps, clear_padding, read_sequences
from sb3_compressed.buffers.arguments import warn_of_time_limits
from sb3_compressed.buffers.tensors import (
    as_array,
    output_tensors,
    tensor_converter,
    torch_device,
)
from sb3_compressed.buffers.validation import require_numbers_per_env, validate_integer
from sb3_compressed.samplers import PrioritizedSampler
from sb3_compressed.samplers.sequence_draw import EpisodeRing, SequenceDraw, SequenceShape, draw_sequences

if TYPE_CHECKING:
    from sb3_compressed.buffers.replay import CompressedReplay

__all__ = ["SequenceSamples", "sample_sequences"]

Observations = th.Tensor | TensorDict


class SequenceSamples(NamedTuple):
    """A batch of sequences of consecutive transitions, each within one episode.

    ``time`` is ``burn_in + length``. Train on the steps ``[:, burn_in:]`` where ``mask`` is ``True``. Where it is
    ``False``, steps are padding, which consists of zeros. Only the observation after a last step is the next
    observation of that step, since ``observations`` and ``next_observations`` are views of ``all_observations``.

    :param observations: observations ``(batch, time, *obs_shape)``, or a dict of them
    :param actions: actions ``(batch, time, action_dim)``
    :param next_observations: next observations ``(batch, time, *obs_shape)``, at the end of an episode its terminal
        observation; ``None`` if they were not requested
    :param dones: 1 where an episode ends, except by a time limit, else 0; ``(batch, time)`` of float32
    :param rewards: rewards ``(batch, time)`` of float32
    :param mask: whether a step is one of the episode, not padding, ``(batch, time)`` of bool
    :param episode_starts: 1 where a recurrent state is to be reset: at the first step of an episode, and at the first
        step after padding; else 0; ``(batch, time)`` of float32, as in sb3-contrib
    :param all_observations: the observations followed by the next observation of the last step,
        ``(batch, time + 1, *obs_shape)``, so that one pass over it evaluates both. ``None`` if next observations were
        not requested
    :param weights: importance weights ``(batch, 1)`` of float32; ``None`` without a sampler
    :param indices: the flat index ``row * n_envs + env`` of the transition that was drawn for each sequence, its first
        one after the burn-in; an int64 array of NumPy, ``(batch,)``
    """

    observations: Observations
    actions: th.Tensor
    next_observations: Observations | None
    dones: th.Tensor
    rewards: th.Tensor
    mask: th.Tensor
    episode_starts: th.Tensor
    all_observations: Observations | None
    weights: th.Tensor | None
    indices: NDArray[np.int64]


def sample_sequences(
    buffer: CompressedReplay, batch_size: int, shape: SequenceShape, env: Any = None, *, with_next: bool
) -> SequenceSamples:
    """Sample sequences; see :meth:`.CompressedReplay.sample_sequences`."""
    _validate(buffer, batch_size, shape)
    empty = buffer._batch_pool.begin_batch(torch_device(buffer.device).type)
    drawn = _draw(buffer, shape, batch_size)
    steps = drawn.steps
    positions = np.arange(shape.n_steps)
    mask = (positions >= steps.first[:, None]) & (positions < steps.stop[:, None])
    arrays, next_arrays = buffer.__dict__["observations"], buffer.__dict__.get("next_observations")
    is_dict = isinstance(arrays, dict)
    # Those of a plain space by one key, so that both kinds are read in the same way.
    pairs = (
        {key: (arrays[key], next_arrays and next_arrays[key]) for key in arrays}
        if is_dict
        else {None: (arrays, next_arrays)}
    )
    read = {
        key: read_sequences(array, next_array, steps, with_next=with_next, empty=empty)
        for key, (array, next_array) in pairs.items()
    }
    values = {key: part for key, (part, _) in read.items()}
    stacked = _to_tensors(buffer, values, steps, steps.stop + with_next, env)
    observations = {key: tensor[:, : shape.n_steps] for key, tensor in stacked.items()}
    following = {key: tensor[:, 1:] for key, tensor in stacked.items()}
    others = {key: part for key, (_, part) in read.items() if part is not None}
    if others:
        following.update(_to_tensors(buffer, others, steps, steps.stop, env))

    index = steps.rows, steps.envs[:, None]
    dones = buffer.dones[index] * (1 - buffer.timeouts[index])
    rewards = buffer._normalize_reward(buffer.rewards[index], env)
    actions = np.where(mask[..., None], buffer.actions[index], 0).astype(buffer.actions.dtype, copy=False)
    plain = (actions, dones * mask, (rewards * mask).astype(np.float32, copy=False), mask, drawn.episode_starts)
    actions_, dones_, rewards_, mask_, starts = map(buffer.to_torch, plain)

    def by_key(tensors: dict[Any, th.Tensor]) -> Any:
        return tensors if is_dict else tensors[None]

    return SequenceSamples(
        observations=by_key(observations),
        actions=actions_,
        next_observations=by_key(following) if with_next else None,
        dones=dones_,
        rewards=rewards_,
        mask=mask_,
        episode_starts=starts,
        all_observations=by_key(stacked) if with_next else None,
        weights=None if drawn.weights is None else buffer.to_torch(drawn.weights.astype(np.float32)[:, None]),
        indices=drawn.indices,
    )


def _validate(buffer: CompressedReplay, batch_size: int, shape: SequenceShape) -> None:
    for name, value, least in (
        ("batch_size", batch_size, 1), ("length", shape.length, 1), ("burn_in", shape.burn_in, 0),
        ("stride", shape.stride, 1),
    ):  # fmt: skip
        validate_integer(name, value, least)
    if shape.n_steps > 1 and not (buffer.handle_timeout_termination or buffer._has_warned_of_time_limits):
        buffer._has_warned_of_time_limits = True
        warn_of_time_limits("sequences")
    require_numbers_per_env(buffer, "sequences", "rewards", "dones", "timeouts")
    # Longer sequences would consist of padding, for any amount of memory.
    most = buffer.buffer_size
    if shape.burn_in > most or (shape.length > most and shape.pad != "none"):
        raise ValueError(
            f"length and burn_in must be at most {most}, the rows of the buffer, got {shape.length} and {shape.burn_in}"
        )


def _draw(buffer: CompressedReplay, shape: SequenceShape, batch_size: int) -> SequenceDraw:
    ring, bound = episode_ring(buffer), buffer.bound_sampler
    if bound is None:
        return draw_sequences(ring, shape, batch_size)
    sampler = bound.sampler
    if not isinstance(sampler, PrioritizedSampler):
        raise TypeError(
            "sequences are drawn with sampler='uniform' or 'prioritized', but that of this buffer is a "
            f"{type(sampler).__name__}"
        )
    bound.begin_batch(buffer)
    drawn = draw_sequences(ring, shape, batch_size, sampler)
    weights = np.ones(batch_size, dtype=np.float32) if drawn.weights is None else drawn.weights
    return drawn._replace(weights=weights)


def is_normalized_by_user(buffer: BaseBuffer) -> bool:
    """Return whether a subclass normalizes observations in its own way."""
    return bool(buffer._normalize_obs is not BaseBuffer._normalize_obs)


def episode_ring(buffer: CompressedReplay) -> EpisodeRing:
    """Return the transitions of a buffer that can be in a sequence."""
    n_rows, pos, full = buffer.buffer_size, buffer.pos, buffer.full
    oldest, n_ages = (pos, n_rows) if full else (0, pos)
    if full and buffer.optimize_memory_usage:  # row pos has the next observation of the newest transition
        oldest, n_ages = (pos + 1) % n_rows, n_rows - 1
    return EpisodeRing(buffer.dones, buffer.timeouts, oldest, n_ages, starts_at_row_0=not full)


def _to_tensors(
    buffer: CompressedReplay,
    values: dict[Any, NDArray[Any]],
    steps: SequenceSteps,
    stop: NDArray[np.int64],
    env: Any,
) -> dict[Any, th.Tensor]:
    """Return observations by key as tensors ``(batch, time, *obs_shape)`` in the buffer's output format.

    :param stop: the position after the last observation of each sequence, ``(batch,)``
    """
    convert = tensor_converter(buffer)  # normalized values are copies
    if convert is None or env is not None:
        values = {key: as_array(value) for key, value in values.items()}
    if env is not None or is_normalized_by_user(buffer):
        values = _normalized(buffer, values, env)
        for value in values.values():
            clear_padding(value, steps.first, stop)
    space = buffer.observation_space
    tensors = {}
    for key, value in values.items():
        part_space = space if key is None else cast("spaces.Dict", space)[key]
        tensors[key] = output_tensors(
            (convert or buffer.to_torch)(value),
            part_space,
            buffer.output_dtype,
            normalize_images=buffer.normalize_images,
        )
    return tensors


def _normalized(buffer: BaseBuffer, values: dict[Any, NDArray[Any]], env: Any) -> dict[Any, NDArray[Any]]:
    """Return observations ``(batch, time, *obs_shape)`` as SB3 normalizes them."""
    flat: Any = {key: value.reshape(math.prod(value.shape[:2]), *value.shape[2:]) for key, value in values.items()}
    flat = buffer._normalize_obs(flat.get(None, flat), env)
    by_key = flat if isinstance(flat, dict) else {None: flat}
    return {key: np.array(by_key[key]).reshape(value.shape) for key, value in values.items()}
