"""Replay buffers behind Ray, each as its users would sample from it: with and without calls in flight.

=====================  ===================================================================================
``local``              this package's buffer in the learner's process, without Ray
``distributed``        this package's ``DistributedReplayBuffer`` with one shard
``SB3``                SB3's buffer in an actor, which returns its batches of tensors
``SB3, arrays``        the same, returning arrays, which Ray does not copy when they are received
``torchrl:ray``        TorchRL's ``RayReplayBuffer`` with a ``LazyTensorStorage``, through Ray's object store
``torchrl:sockets``    the same with its own transport, ``transport="distributed"``
=====================  ===================================================================================

None but ``distributed`` prefetches by itself across processes, so the others are asked for batches in advance. TorchRL
also prepares batches in threads of its actor, which makes it faster in all cases and is used here.
"""

from __future__ import annotations

import itertools
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

import numpy as np
import ray
import torch as th
from frame_recording import Recording
from typing_extensions import override

from adapters.sb3_adapters import Batch, ReplayAdapter
from sb3_compressed.step import Step

__all__ = ["RayBuffer", "make_ray_buffer", "start_ray"]

CHUNK_ROWS = 50  # sent at once; TorchRL requires equal numbers with its own transport
N_PREPARED = 2  # batches that TorchRL prepares in its actor


def start_ray(object_store_nbytes: int = 3 << 30) -> None:
    """Start Ray on this machine, for this process only; end what it has started before."""
    ray.shutdown()
    ray.init(
        "local",  # not another one on this machine
        num_cpus=64,  # processes share the cores, whatever their number
        object_store_memory=object_store_nbytes,
        include_dashboard=False,
        configure_logging=False,
        log_to_driver=False,
    )


class RayBuffer(ABC):
    """A replay buffer that the learner samples from."""

    #: Numbers of batches to ask for in advance; the last one is always enough for a learner with other work.
    depths: ClassVar[tuple[int, ...]] = (0, 1, 2, 4, 8)

    @abstractmethod
    def fill(self, steps: Iterable[Step]) -> None:
        """Add steps, and wait until they are stored."""

    @abstractmethod
    def request(self, batch_size: int) -> Any:
        """Ask for a batch, without waiting for it."""

    @abstractmethod
    def receive(self, request: Any) -> Any:
        """Return the batch that was asked for, as tensors."""

    def sample(self, batch_size: int) -> Any:
        """Return a batch that was not asked for before."""
        return self.receive(self.request(batch_size))

    def batches(self, batch_size: int, depth: int) -> Generator[Any, None, None]:
        """Yield batches, while that many others are asked for."""
        requests = deque(self.request(batch_size) for _ in range(depth))
        try:
            while True:
                requests.append(self.request(batch_size))
                yield self.receive(requests.popleft())
        finally:
            for request in requests:
                self.receive(request)

    @abstractmethod
    def read(self, batch: Any) -> Batch:
        """Convert a batch."""

    @abstractmethod
    def close(self) -> None:
        """End its processes."""


class LocalBuffer(RayBuffer):
    """The buffer of this package in the process of the learner."""

    depths: ClassVar[tuple[int, ...]] = (0,)

    def __init__(self, recording: Recording, rows: int) -> None:
        from sb3_compressed import CompressedReplayBuffer

        self._adapter = ReplayAdapter(CompressedReplayBuffer, recording, rows)

    @override
    def fill(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self._adapter.add(step)

    @override
    def request(self, batch_size: int) -> Any:
        return batch_size

    @override
    def receive(self, request: Any) -> Any:
        return self._adapter.sample(request)

    @override
    def read(self, batch: Any) -> Batch:
        return self._adapter.read(batch)

    @override
    def close(self) -> None:
        pass


class DistributedBuffer(RayBuffer):
    """The distributed buffer of this package; the learner adds to it, as without collectors."""

    depths: ClassVar[tuple[int, ...]] = (0, 1, 2, 4, 8, 16)

    def __init__(self, recording: Recording, rows: int, **options: Any) -> None:
        from sb3_compressed.distributed import DistributedReplayBuffer

        self._adapter = ReplayAdapter(DistributedReplayBuffer, recording, rows, **options)
        self.buffer = self._adapter.buffer

    @override
    def fill(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self._adapter.add(step)
        self.buffer.flush()

    def add(self, step: Step) -> None:
        """Add one step, which is sent with others."""
        self._adapter.add(step)

    @override
    def request(self, batch_size: int) -> Any:
        return batch_size

    @override
    def receive(self, request: Any) -> Any:
        return self._adapter.sample(request)

    @override
    def batches(self, batch_size: int, depth: int) -> Generator[Any, None, None]:
        pipeline = self.buffer._pipeline
        pipeline.discard()
        pipeline._prefetch = depth  # a buffer has one depth; it does not depend on it otherwise
        while True:
            yield self._adapter.sample(batch_size)

    @override
    def read(self, batch: Any) -> Batch:
        return self._adapter.read(batch)

    @override
    def close(self) -> None:
        self.buffer.close()


class SB3Actor:
    """SB3's buffer, for an actor."""

    def __init__(self, recording: Recording, rows: int) -> None:
        from stable_baselines3.common.buffers import ReplayBuffer

        th.set_num_threads(1)
        self._adapter = ReplayAdapter(ReplayBuffer, recording, rows)

    def extend(self, steps: list[Step]) -> None:
        """Add steps."""
        for step in steps:
            self._adapter.add(step)

    def sample(self, batch_size: int) -> Any:
        """Return SB3's batch."""
        return self._adapter.sample(batch_size)

    def sample_arrays(self, batch_size: int) -> Any:
        """Return SB3's batch as arrays."""
        batch = self._adapter.sample(batch_size)
        return type(batch)(*(each if each is None else each.numpy() for each in batch))


class SB3Buffer(RayBuffer):
    """SB3's buffer in an actor."""

    def __init__(self, recording: Recording, rows: int, *, as_arrays: bool) -> None:
        self._actor: Any = ray.remote(SB3Actor).remote(recording, rows)
        self._as_arrays = as_arrays
        self._sample: Any = self._actor.sample_arrays if as_arrays else self._actor.sample

    @override
    def fill(self, steps: Iterable[Step]) -> None:
        for chunk in _chunks(steps):
            ray.get(self._actor.extend.remote(chunk))

    @override
    def request(self, batch_size: int) -> Any:
        return self._sample.remote(batch_size)

    @override
    def receive(self, request: Any) -> Any:
        batch = ray.get(request)
        if not self._as_arrays:
            return batch
        with warnings.catch_warnings():  # the arrays are read-only, but nobody writes to batches
            warnings.simplefilter("ignore", UserWarning)
            return type(batch)(*(each if each is None else th.from_numpy(each) for each in batch))

    @override
    def read(self, batch: Any) -> Batch:
        return Batch(batch.observations.numpy(), batch.next_observations.numpy(), batch.rewards.numpy().ravel())

    @override
    def close(self) -> None:
        ray.kill(self._actor)


class TorchRLBuffer(RayBuffer):
    """TorchRL's ``RayReplayBuffer``.

    :param batch_size: of all batches, which its threads prepare
    """

    def __init__(self, recording: Recording, rows: int, batch_size: int, *, transport: str) -> None:
        from torchrl.data import LazyTensorStorage, RayReplayBuffer

        self._buffer = RayReplayBuffer(
            storage=partial(LazyTensorStorage, rows * recording.n_envs),
            batch_size=batch_size,
            prefetch=N_PREPARED,
            remote_config={"num_cpus": 1},
            transport=transport,
        )
        self._batch_size = batch_size
        self._uses_ray = transport == "ray"
        # With its own transport, each client has one call at a time, and waits for it.
        self._clients: list[Any] = []
        self._threads: list[ThreadPoolExecutor] = []

    @override
    def fill(self, steps: Iterable[Step]) -> None:
        from tensordict import TensorDict

        for chunk in _chunks(steps):
            names = {"observation": "obs", "next_observation": "next_obs", "action": "action", "reward": "reward"}
            fields = {
                key: th.from_numpy(np.concatenate([getattr(step, name) for step in chunk]))
                for key, name in {**names, "done": "done"}.items()
            }
            self._buffer.extend(TensorDict(fields, batch_size=[len(fields["reward"])]))

    @override
    def batches(self, batch_size: int, depth: int) -> Generator[Any, None, None]:
        if self._uses_ray or not depth:
            yield from super().batches(batch_size, depth)
            return
        while len(self._clients) <= depth:
            self._clients.append(self._buffer.client())
            self._threads.append(ThreadPoolExecutor(1))
        requests: deque[Any] = deque()
        try:
            for turn in itertools.count():
                which = turn % (depth + 1)
                requests.append(self._threads[which].submit(self._clients[which].sample))
                if len(requests) > depth:
                    yield requests.popleft().result()
        finally:
            for request in requests:
                request.result()

    @override
    def request(self, batch_size: int) -> Any:
        if batch_size != self._batch_size:
            raise ValueError(f"the buffer returns batches of {self._batch_size}, got batch_size={batch_size}")
        # As its method sample does, but without waiting. With its own transport there is no such call.
        return self._buffer._rb.sample.remote() if self._uses_ray else None

    @override
    def receive(self, request: Any) -> Any:
        return self._buffer.sample() if request is None else ray.get(request)

    @override
    def read(self, batch: Any) -> Batch:
        return Batch(*(batch[name].numpy() for name in ("observation", "next_observation", "reward")))

    @override
    def close(self) -> None:
        for threads in self._threads:
            threads.shutdown()
        self._buffer.close()


def make_ray_buffer(name: str, recording: Recording, rows: int, batch_size: int) -> RayBuffer:
    """Return a buffer by name, for that many steps of a recording.

    :param batch_size: number of transitions of its batches
    :raises ValueError: if there is none of that name
    """
    if name == "local":
        return LocalBuffer(recording, rows)
    if name == "distributed":
        return DistributedBuffer(recording, rows)
    if name in ("SB3", "SB3, arrays"):
        return SB3Buffer(recording, rows, as_arrays=name != "SB3")
    if name in ("torchrl:ray", "torchrl:sockets"):
        transport = "ray" if name == "torchrl:ray" else "distributed"
        return TorchRLBuffer(recording, rows, batch_size, transport=transport)
    raise ValueError(f"{name!r} is no replay buffer behind Ray")


def _chunks(steps: Iterable[Step]) -> Iterator[list[Step]]:
    iterator = iter(steps)
    while chunk := list(itertools.islice(iterator, CHUNK_ROWS)):
        yield chunk
