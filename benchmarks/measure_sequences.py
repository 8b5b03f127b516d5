"""Measure ``sample_sequences``: stacked images against single transitions, and vectors in large buffers.

On images, ``80 x sample(32)`` are as many single transitions, ``copies`` sequences with observations and next
observations, and ``copies, observations only`` those with ``next_observations=False``.

On vectors, buffers are filled with random numbers and episodes of 20 to 1000 transitions. TorchRL's ``SliceSampler``
finds the ends of all episodes for each batch; its ``cache_values``, which are valid until a transition is added, are
off.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
from frame_recording import play
from measurement import Measurement
from metrics import median_us, one_thread, timed
from sources import record

__all__ = ["BATCH_SIZE", "COPIES", "LENGTH", "ONLY", "SINGLE", "VECTORS", "measure_sequences"]

BATCH_SIZE, LENGTH = 32, 80
N_ENVS = 4
SINGLE = f"{LENGTH} x sample({BATCH_SIZE})"
COPIES, ONLY = "copies", "copies, observations only"
VECTORS = "vectors"
WARM_CALLS, TIMED_CALLS = 3, 40


def measure_sequences(name: str, source: str, size: int, length: int = LENGTH) -> Measurement:
    """Return microseconds per batch, by what is sampled.

    :param name: ``auto``, or ``torchrl`` for vectors
    :param source: a source of images, or ``vectors``
    :param size: transitions in the buffer
    :param length: transitions of a sequence
    """
    one_thread()
    if source != VECTORS:
        return _measure_images(source, size, length)
    return _measure_torchrl(size, length) if name == "torchrl" else _measure_vectors(size, length)


def _measure_images(source: str, size: int, length: int) -> Measurement:
    from sb3_compressed import CompressedReplayBuffer

    recording = record(source, N_ENVS, size // N_ENVS)
    spaces = recording.observation_space, recording.action_space
    buffer = CompressedReplayBuffer(size, *spaces, device="cpu", n_envs=N_ENVS)
    for step in islice(play(recording), size // N_ENVS):
        step.add_to(buffer)
    result: Measurement = {}

    def single() -> None:
        for _ in range(length):
            buffer.sample(BATCH_SIZE)

    _time(result, SINGLE, single)
    _time(result, COPIES, lambda: buffer.sample_sequences(BATCH_SIZE, length))
    _time(result, ONLY, lambda: buffer.sample_sequences(BATCH_SIZE, length, next_observations=False))
    return {**result, "wrong": _differences(buffer, length)}


def _differences(buffer: Any, length: int) -> str:
    """Return which sequences are not what the buffer's arrays contain."""
    samples = buffer.sample_sequences(BATCH_SIZE, length)
    for number, index in enumerate(samples.indices.tolist()):
        row, env = divmod(index, buffer.n_envs)
        rows = (row + np.arange(length)) % buffer.buffer_size
        for field in ("observations", "next_observations"):
            if not np.array_equal(getattr(samples, field)[number], getattr(buffer, field)[rows, env]):
                return f"{field} of a sequence"
    return ""


def _time(result: Measurement, key: str, function: Any) -> None:
    kept: list[Any] = []  # the previous batch still has a name when the next one is sampled, as in training

    def call() -> None:
        kept[:] = [function()]

    for _ in range(WARM_CALLS):
        call()
    result[key] = median_us(timed(call) for _ in range(TIMED_CALLS))


def _episode_ends(size: int) -> Any:
    """Return whether an episode ends with each transition, ``(size,)``."""
    rng = np.random.default_rng(0)
    ends = np.cumsum(rng.integers(20, 1001, size // 20 + 1)) - 1
    is_end = np.zeros(size, dtype=np.bool_)
    is_end[ends[ends < size]] = True
    return is_end


def _measure_vectors(size: int, length: int) -> Measurement:
    from gymnasium import spaces

    from sb3_compressed import CompressedReplayBuffer

    box = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    buffer = CompressedReplayBuffer(size, box, spaces.Discrete(4), device="cpu")
    # As if they had been added, which would take minutes.
    buffer.observations[:, 0] = np.random.default_rng(0).random((size, 4), np.float32)
    buffer.next_observations[:-1] = buffer.observations[1:]
    buffer.dones[:, 0] = _episode_ends(size)
    buffer.full, buffer.pos = True, size // 3
    result: Measurement = {}
    _time(result, COPIES, lambda: buffer.sample_sequences(BATCH_SIZE, length))
    return {**result, "wrong": _differences(buffer, length)}


def _measure_torchrl(size: int, length: int) -> Measurement:
    import torch as th
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, ReplayBuffer
    from torchrl.data.replay_buffers.samplers import SliceSampler

    sampler = SliceSampler(slice_len=length, end_key=("next", "done"), traj_key=None, strict_length=True)
    buffer = ReplayBuffer(storage=LazyTensorStorage(size), sampler=sampler, batch_size=BATCH_SIZE * length)
    observations = th.rand(size + 1, 4)
    done = th.from_numpy(_episode_ends(size))[:, None]
    following = TensorDict(
        {"observation": observations[1:], "reward": th.zeros(size, 1), "done": done, "truncated": th.zeros_like(done)},
        batch_size=[size],
    )
    transitions = {"observation": observations[:-1], "action": th.zeros(size, 1), "next": following}
    buffer.extend(TensorDict(transitions, batch_size=[size]))
    result: Measurement = {}
    _time(result, COPIES, buffer.sample)
    return {**result, "wrong": ""}
