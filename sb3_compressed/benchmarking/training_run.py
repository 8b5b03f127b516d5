"""One short training with one buffer: its time, the calls of the buffer inside, its memory, and the weights."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.logger import Logger

from sb3_compressed.benchmarking.benchmark_envs import make_env, wrap_as_sb3
from sb3_compressed.benchmarking.measurement import Measurement
from sb3_compressed.benchmarking.metrics import median_us
from sb3_compressed.benchmarking.sb3_classes import SB3, policy_for, sb3_class
from sb3_compressed.benchmarking.time_slices import pause
from sb3_compressed.buffers.memory_statistics import buffer_statistics
from sb3_compressed.common.memory import available_memory
from sb3_compressed.common.spaces import space_parts
from sb3_compressed.common.tree_map import leaves

__all__ = [
    "Setup",
    "TimedBatches",
    "TimedCalls",
    "check_memory",
    "count_chunks",
    "measure_training",
    "weights_digest",
]

#: Steps of a chunk with an off-policy algorithm.
CHUNK_STEPS = 64
#: The most chunks of a training.
MAX_CHUNKS = 256
#: The share of its time in which is tried how far a training gets, and the most random steps before.
TRIAL_SHARE, TRIAL_STEPS = 0.2, 200
#: Time slices of each training. Few, since caches are cold after each; many, since they share what other programs take.
N_SLICES = 8
#: The share of the available memory that the buffers may take.
MAX_MEMORY_RATIO = 0.8


class Setup(NamedTuple):
    """What is trained, whatever the buffer.

    :param env_id: the id of the environment
    :param atari: whether it has SB3's Atari wrappers
    :param n_envs: number of parallel environments
    :param n_stack: number of stacked frames
    :param algorithm: name of an algorithm of SB3, which is used with its default settings
    :param buffer: the user's ``buffer_size``, or ``n_steps`` for rollout buffers
    :param steps: transitions to collect with random actions before an off-policy algorithm trains
    :param seconds: how long to train after that
    """

    env_id: str
    atari: bool
    n_envs: int
    n_stack: int
    algorithm: str
    buffer: dict[str, int]
    steps: int
    seconds: float

    @property
    def is_rollout(self) -> bool:
        """Whether the algorithm has a rollout buffer."""
        return "n_steps" in self.buffer

    @property
    def capacity(self) -> int:
        """The number of transitions in the user's buffer."""
        return self.buffer["n_steps"] * self.n_envs if self.is_rollout else self.buffer["buffer_size"]

    @property
    def chunk(self) -> int:
        """The number of transitions of a chunk."""
        return self.capacity if self.is_rollout else CHUNK_STEPS * self.n_envs

    @property
    def max_measured(self) -> int:
        """The most transitions that are added in a training; SB3's buffer allocates so many."""
        if self.is_rollout:
            return self.capacity
        return min(self.capacity, self.steps + MAX_CHUNKS * self.chunk)


def count_chunks(name: str, **setup: Any) -> Measurement:
    """Train with a buffer for a part of the time, to find out how far a training gets. Requires a new process.

    :param name: name of the buffer
    :param setup: the fields of :class:`Setup`
    :return: ``n_chunks``, how many chunks of transitions can be trained in ``seconds``
    """
    given = Setup(**setup)
    model = _started_model(name, given._replace(steps=min(given.steps, TRIAL_STEPS)))
    n, begin = 0, time.perf_counter()
    while n == 0 or time.perf_counter() - begin < TRIAL_SHARE * given.seconds:
        _train(model, given, 1)
        n += 1
    in_time = round(n * given.seconds / (time.perf_counter() - begin))
    model.env.close()
    return {"n_chunks": min(max(in_time, 2), MAX_CHUNKS)}


def measure_training(name: str, *, n_chunks: int, time_sliced: bool = True, **setup: Any) -> Measurement:
    """Train once with a buffer. Requires a new process.

    The first half of the training is not measured: kernels are compiled and codecs are trained in it. In the second
    half it runs in time slices, as other trainings do, see :func:`.pause`.

    :param name: name of the buffer
    :param n_chunks: how long to train, see :func:`count_chunks`
    :param time_sliced: whether to pause :data:`N_SLICES` times
    :param setup: the fields of :class:`Setup`
    :return: ``step``, microseconds of a transition in the second half of the training; median microseconds of ``add``
        and of ``read``, a call of ``sample`` or a batch of ``get``; ``memory``, bytes of the full buffer;
        ``weights``, a digest
    """
    given = Setup(**setup)
    model = _started_model(name, given)
    n_first = n_chunks // 2
    _train(model, given, n_first)
    buffer = model.rollout_buffer if given.is_rollout else model.replay_buffer
    adds = TimedCalls(buffer, "add")
    reads = TimedBatches(buffer, "get") if given.is_rollout else TimedCalls(buffer, "sample")
    before, seconds = model.num_timesteps, 0.0
    for of_slice in np.array_split(range(n_first, n_chunks), N_SLICES):
        if time_sliced:
            pause()
        begin = time.perf_counter()
        _train(model, given, len(of_slice))
        seconds += time.perf_counter() - begin
    step = seconds / (model.num_timesteps - before)
    model.env.close()
    result: Measurement = {"step": 1e6 * step, "weights": weights_digest(model)}
    result |= {"add": median_us(adds.seconds), "read": median_us(reads.seconds)}
    if name == SB3:
        return {**result, "memory": _nbytes(buffer) * given.capacity / (buffer.buffer_size * given.n_envs)}
    statistics = buffer_statistics(buffer)
    return {**result, "memory": statistics.full_memory_nbytes}


def check_memory(setup: Setup, space: spaces.Space[Any], n_others: int) -> None:
    """Verify, before the long measurements, that all buffers of the measured transitions fit into memory together.

    :param space: the observation space
    :param n_others: how many are measured besides SB3's; replay buffers take at most about half of its memory
    :raises ValueError: if they do not
    """
    parts = space_parts(space).values()
    nbytes: float = sum(math.prod(part.shape or ()) * np.dtype(part.dtype).itemsize for part in parts)
    nbytes *= setup.max_measured * (1 + n_others if setup.is_rollout else 2 + n_others)
    available = available_memory()
    if nbytes > MAX_MEMORY_RATIO * available:
        raise ValueError(
            f"the buffers of {setup.max_measured:,} transitions, which are measured at the same time, would take "
            f"{nbytes / 1e9:.1f} of {available / 1e9:.1f} GB: pass fewer --steps, or a smaller --n-steps or --n-envs"
        )


def _started_model(name: str, setup: Setup) -> Any:
    """Return a model that has done its random steps."""
    env = wrap_as_sb3(make_env(setup.env_id, setup.n_envs, atari=setup.atari), setup.n_stack)
    kind: Any = "rollout" if setup.is_rollout else "replay"
    cls, arguments = sb3_class(name, kind, env.observation_space)
    settings: dict[str, Any] = {**setup.buffer, f"{kind}_buffer_class": cls, f"{kind}_buffer_kwargs": arguments}
    if not setup.is_rollout:
        settings["learning_starts"] = setup.steps
        if name == SB3:  # it allocates all of its memory at once
            settings["buffer_size"] = setup.max_measured
    policy = policy_for(env.observation_space)
    model = getattr(stable_baselines3, setup.algorithm)(policy, env, seed=0, **settings)
    model.set_logger(Logger(None, []))
    if not setup.is_rollout:
        model.learn(setup.steps)
    return model


def _train(model: Any, setup: Setup, n_chunks: int) -> None:
    for _ in range(n_chunks):
        model.learn(setup.chunk, reset_num_timesteps=False)


def _nbytes(buffer: Any) -> int:
    """Return the size of all arrays of a buffer of SB3."""
    arrays = [part for value in vars(buffer).values() for part in leaves(value)]
    return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))


def weights_digest(model: Any) -> str:
    """Return a digest of all weights of a model's policy."""
    digest = hashlib.sha256()
    for parameter in model.policy.state_dict().values():
        digest.update(parameter.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


class TimedCalls:
    """Replaces a method of one buffer, calls it, and records the time of each call."""

    def __init__(self, buffer: Any, name: str) -> None:
        self.seconds: list[float] = []
        self._method = getattr(buffer, name)
        vars(buffer)[name] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        begin = time.perf_counter()
        result = self._method(*args, **kwargs)
        self.seconds.append(time.perf_counter() - begin)
        return result


class TimedBatches(TimedCalls):
    """The same for a generator of batches: the time until each batch."""

    def __call__(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Yield the batches."""
        batches = self._method(*args, **kwargs)
        while True:
            begin = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                return
            self.seconds.append(time.perf_counter() - begin)
            yield batch
