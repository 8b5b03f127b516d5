"""``Prefetcher``: draws the next batches earlier, and decodes them in another thread while the network trains.

It is for mixed buffers, and for samplers: their draws depend on updates of priorities, so they cannot be predicted.
Uniform draws can, see :mod:`.predicted_batch`.

The thread that calls ``sample`` draws the transitions, from the same random numbers in each run, and copies actions and
rewards. Only the observations are not decoded yet; the locations of their payloads are known, and payloads never
change. So another thread can decode them while transitions are added, without locks, and the content of a batch does
not depend on timing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

import torch as th

from sb3_compressed.buffers.buffer_lock import new_lock
from sb3_compressed.buffers.validation import validate_integer
from sb3_compressed.common.threads import PoolTask
from sb3_compressed.common.tree_map import tree_map

__all__ = ["Prefetcher", "Prefetching"]


class Prefetcher:
    """A queue of batches: each call draws one and returns the one that was drawn ``n_batches`` calls before.

    Copies and pickles have an empty queue.

    :param n_batches: length of the queue
    :raises ValueError: if it is not positive
    :raises TypeError: if it is not an integer
    """

    def __init__(self, n_batches: int) -> None:
        validate_integer("prefetch", n_batches, 1)
        self.n_batches = n_batches
        self._kind: Any = None
        self._queue: deque[_QueuedBatch] = deque()
        self._lock = new_lock()  # several threads may sample

    def __reduce__(self) -> tuple[Any, ...]:
        return Prefetcher, (self.n_batches,)

    def sample(self, draw: Callable[[], Callable[[], Any]], batch_size: int, device: th.device) -> Any:
        """Return the samples of the oldest batch, after drawing new ones.

        :param draw: draws another batch; returns a function that returns its samples, in main memory
        :param batch_size: if it or the device differs from that of the last call, the queue is discarded
        :param device: the device to which tensors are copied
        :raises CorruptPayload: if a payload of this batch is damaged; the next call returns the next batch
        """
        with self._lock:
            if self._kind != (batch_size, device):
                self._discard()
                self._kind = batch_size, device
            while len(self._queue) <= self.n_batches:
                self._queue.append(_QueuedBatch(draw, device))
            oldest = self._queue.popleft()
        return oldest.samples()

    def discard(self) -> None:
        """Discard all batches in the queue."""
        with self._lock:
            self._discard()

    def _discard(self) -> None:
        while self._queue:
            self._queue.popleft().cancel()


class Prefetching:
    """What buffers that prefetch have in common."""

    #: The queue of batches, ``None`` without prefetching.
    _prefetcher: Prefetcher | None = None

    @property
    def prefetch(self) -> int:
        """How many batches are drawn and decoded ahead."""
        return 0 if self._prefetcher is None else self._prefetcher.n_batches

    def discard_prefetched(self) -> None:
        """Discard the batches that were drawn ahead, for example after writing to ``rewards``."""
        if self._prefetcher is not None:
            self._prefetcher.discard()


class _QueuedBatch:
    """A batch whose observations a thread of the pool decodes and copies to the device."""

    def __init__(self, draw: Callable[[], Callable[[], Any]], device: th.device) -> None:
        self._decode = draw()
        self._device = device
        self._samples: Any = None
        self._copied: th.cuda.Event | None = None
        self._task = PoolTask(self._complete)
        self._task.start()

    def samples(self) -> Any:
        """Return the samples when they are complete."""
        self._task.wait()
        if self._copied is not None:  # pragma: no cover  # needs CUDA
            stream = th.cuda.current_stream(self._device)
            stream.wait_event(self._copied)
            _map_samples(lambda tensor: tensor.record_stream(stream), self._samples)
        return self._samples

    def cancel(self) -> None:
        """Do not complete it, unless a thread has begun to."""
        self._task.cancel()

    def _complete(self) -> None:
        self._samples = self._decode()
        if self._device.type == "cuda":  # pragma: no cover  # needs CUDA
            # On a stream of its own, so that the copy does not wait for the kernels of the training.
            stream = _copy_stream(self._device)
            with th.cuda.stream(stream):
                self._samples = _map_samples(self._to_cuda, self._samples)
            self._copied = stream.record_event()
        elif self._device.type != "cpu":  # pragma: no cover  # needs another device
            self._samples = _map_samples(lambda tensor: tensor.to(self._device), self._samples)

    def _to_cuda(self, tensor: th.Tensor) -> th.Tensor:  # pragma: no cover  # needs CUDA
        return tensor if tensor.is_cuda else tensor.pin_memory().to(self._device, non_blocking=True)


@cache
def _copy_stream(device: th.device) -> th.cuda.Stream:  # pragma: no cover  # needs CUDA
    """Return the stream of this process on which batches are copied to a device."""
    return th.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _map_samples(function: Callable[[th.Tensor], Any], samples: Any) -> Any:  # pragma: no cover  # needs another device
    """Apply a function to all tensors of a batch."""

    def map_field(field: Any) -> Any:
        return tree_map(lambda part: function(part) if isinstance(part, th.Tensor) else part, field)

    return samples._make(map(map_field, samples))
