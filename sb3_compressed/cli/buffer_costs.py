"""``measure_buffers``: memory and times of SB3's buffer and of compressed ones that get the same transitions."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common import buffers as sb3_buffers
from stable_baselines3.common.vec_env import VecEnv

import sb3_compressed
from sb3_compressed.common.memory import available_memory
from sb3_compressed.common.spaces import space_parts
from sb3_compressed.common.tree_map import leaves
from sb3_compressed.step import Step, with_last_observations

__all__ = ["BufferCost", "measure_buffers"]

SB3, OPTIMIZED = "SB3", "optimize_memory_usage"
#: How often replay buffers draw each transition on average, so that batches contain all but one in 3,000.
N_DRAWS = 8
#: The share of the available memory that all buffers may take.
MAX_MEMORY_RATIO = 0.8


@dataclass(frozen=True)
class BufferCost:
    """Memory of a full buffer and median times of its calls; the fields are keys of ``advise --json``."""

    buffer: str  # SB3, optimize_memory_usage, or the codec of a compressed one
    transition: float  # bytes
    memory: float  # bytes of all transitions
    ratio: float  # of memory, to SB3's
    add: float  # microseconds
    read: float  # microseconds of `sample`, or of a batch of `get`


def measure_buffers(
    env: VecEnv,
    codecs: Sequence[str],
    size: int,
    n_rows: int,
    batch_size: int,
    on_step: Callable[[], object],
    *,
    is_rollout: bool,
) -> list[BufferCost]:
    """Return the costs of SB3's buffer, also with ``optimize_memory_usage``, and of one with each codec.

    They take turns, so that what else runs on the machine slows all of them alike.

    :param env: environments as a model wraps them
    :param size: the user's ``buffer_size`` of a replay buffer, or ``n_steps`` of a rollout buffer
    :param n_rows: steps to collect, with random actions; of rollouts whole ones
    :param on_step: called for each step when it is collected, and when it is added
    :raises ValueError: if there is not enough memory
    :raises RuntimeError: if a compressed buffer returns another batch than SB3's
    """
    _check_memory(env.observation_space, n_rows * env.num_envs, len(codecs))
    steps = []
    for step in _collect(env, n_rows):
        steps.append(step)
        on_step()
    buffers = _make_buffers(env, codecs, size, n_rows, is_rollout=is_rollout)
    adds, reads = ({name: list[float]() for name in buffers} for _ in range(2))
    for number, step in enumerate(steps, 1):
        arguments = _add_arguments(step, is_rollout=is_rollout)
        for name, buffer in buffers.items():
            begin = time.perf_counter()
            buffer.add(*arguments)
            adds[name].append(time.perf_counter() - begin)
        on_step()
        if number % (size if is_rollout else n_rows) == 0:
            read_batches(buffers, batch_size, reads)
            for buffer in buffers.values() if number < n_rows else ():  # to collect the next rollout
                buffer.reset()
    capacity = size * env.num_envs if is_rollout else size
    memory = {name: _full_nbytes(buffer, capacity) for name, buffer in buffers.items()}
    return [
        BufferCost(
            name,
            transition=memory[name] / capacity,
            memory=memory[name],
            ratio=memory[name] / memory[SB3],
            add=_median_us(adds[name]),
            read=_median_us(reads[name]),
        )
        for name in buffers
    ]


def _check_memory(space: spaces.Space[Any], n_transitions: int, n_codecs: int) -> None:
    parts = space_parts(space).values()
    nbytes: float = sum(math.prod(part.shape or ()) * np.dtype(part.dtype).itemsize for part in parts)
    # Two observations of each transition are collected and in SB3's buffer, and at most one is in each of the others.
    nbytes *= n_transitions * (5 + n_codecs)
    available = available_memory()
    if nbytes > MAX_MEMORY_RATIO * available:
        raise ValueError(
            f"the buffers of {n_transitions:,} transitions would take up to {nbytes / 1e9:.1f} of "
            f"{available / 1e9:.1f} GB: pass fewer --steps, or a smaller --n-steps or --n-envs"
        )


def _collect(env: VecEnv, n_rows: int) -> Iterator[Step]:
    """Yield steps with random actions, as SB3's off-policy algorithms add them."""
    env.action_space.seed(0)
    obs: Any = env.reset()
    for _ in range(n_rows):
        actions = np.array([env.action_space.sample() for _ in range(env.num_envs)])
        new_obs, rewards, dones, infos = env.step(actions)
        yield Step(obs, with_last_observations(new_obs, dones, infos), actions, rewards, dones, infos)
        obs = new_obs


def _make_buffers(env: VecEnv, codecs: Sequence[str], size: int, n_rows: int, *, is_rollout: bool) -> dict[str, Any]:
    """Return the buffers by name; SB3's, which allocate all of their memory, only for the steps that are added."""
    is_dict = isinstance(env.observation_space, spaces.Dict)
    name = f"{'Dict' if is_dict else ''}{'Rollout' if is_rollout else 'Replay'}Buffer"
    theirs, ours = getattr(sb3_buffers, name), getattr(sb3_compressed, f"Compressed{name}")
    arguments = env.observation_space, env.action_space, "cpu"
    used = size if is_rollout else min(size, n_rows * env.num_envs)
    buffers = {SB3: theirs(used, *arguments, n_envs=env.num_envs)}
    if not is_rollout and not is_dict and used >= 2 * env.num_envs:  # not supported by other ones
        buffers[OPTIMIZED] = theirs(
            used, *arguments, n_envs=env.num_envs, optimize_memory_usage=True, handle_timeout_termination=False
        )
    for codec in codecs:
        buffers[codec] = ours(size, *arguments, n_envs=env.num_envs, compression_method=codec)
    return buffers


def _add_arguments(step: Step, *, is_rollout: bool) -> tuple[Any, ...]:
    """Return the arguments of ``add``; rollout buffers get rewards as values and probabilities."""
    if not is_rollout:
        return step.obs, step.next_obs, step.action, step.reward, step.done, step.infos
    rewards = th.as_tensor(step.reward)
    return step.obs, step.action, step.reward, step.done, rewards, rewards


def read_batches(buffers: Mapping[str, Any], batch_size: int, reads: Mapping[str, list[float]]) -> None:
    """Read and verify batches; append the seconds of each call.

    :raises RuntimeError: if a compressed buffer returns another batch than SB3's
    """
    readers = {name: _batches(buffer, batch_size) for name, buffer in buffers.items()}
    for seed in itertools.count():
        batches = {}
        for name, reader in readers.items():
            np.random.seed(seed)  # noqa: NPY002  # so that all of them draw the same transitions
            begin = time.perf_counter()
            batches[name] = next(reader, None)
            if batches[name] is None:
                return
            reads[name].append(time.perf_counter() - begin)
        contents = {name: _content(batch) for name, batch in batches.items() if name != OPTIMIZED}
        for name, content in contents.items():
            if content != contents[SB3]:
                raise RuntimeError(f"{name} returned another batch than SB3's buffer: please report this")


def _batches(buffer: Any, batch_size: int) -> Iterator[Any]:
    if isinstance(buffer, sb3_buffers.RolloutBuffer):
        return iter(buffer.get(batch_size))
    n_batches = math.ceil(N_DRAWS * buffer.size() * buffer.n_envs / batch_size)
    return (buffer.sample(batch_size) for _ in range(n_batches))


def _content(batch: Any) -> list[bytes]:
    return [leaf.numpy().tobytes() for part in batch if part is not None for leaf in leaves(part)]


def _full_nbytes(buffer: Any, capacity: int) -> float:
    """Return the memory of a buffer for that many transitions when it is full."""
    if hasattr(buffer, "observations_nbytes"):
        return float(sb3_compressed.buffer_statistics(buffer).full_memory_nbytes)
    arrays = [part for value in vars(buffer).values() for part in leaves(value)]
    nbytes = sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
    return float(nbytes * capacity / (buffer.buffer_size * buffer.n_envs))


def _median_us(seconds: Sequence[float]) -> float:
    """Return the median in microseconds, without the first half: kernels are compiled and codecs trained in it."""
    return 1e6 * statistics.median(seconds[len(seconds) // 2 :])
