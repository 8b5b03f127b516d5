"""How many bytes a distributed buffer sends per transition, from writers to shards and from shards to the learner."""

from __future__ import annotations

import itertools
import math
from typing import Any

import lz4.frame
from frame_recording import Recording, play
from measurement import Measurement
from metrics import one_thread

from adapters.ray_buffers import DistributedBuffer, start_ray

__all__ = ["measure_bytes", "measure_lz4"]

#: Transitions of SB3's buffer for each one that is inserted, as collectors do by default.
SAMPLES_PER_INSERT = 8
BATCH_SIZES = (256, 32)


def measure_bytes(recording: Recording, rows: int) -> Measurement:
    """Fill a buffer with a recording, then sample.

    :param rows: steps of the buffer; the recording has twice as many
    :return: bytes per transition without headers and codecs: ``to shard``, of all rows that fill it; ``to shard,
        second``, of as many rows after these; ``to learner(256)``, of batches of that size requested ahead, and
        ``without prefetch``; ``raw``, that of SB3's observations
    """
    one_thread()
    start_ray()
    buffer = DistributedBuffer(recording, rows)
    steps = play(recording)
    n = rows * recording.n_envs
    result: Measurement = {"raw": 2.0 * math.prod(recording.observation_space.shape or ())}
    sent = 0
    for key in ("to shard", "to shard, second"):
        buffer.fill(itertools.islice(steps, rows))
        total = buffer.buffer.statistics().n_bytes_inserted
        result[key], sent = (total - sent) / n, total
        if key == "to shard":
            _sample(buffer, n, result)
    buffer.close()
    return result


def _sample(buffer: DistributedBuffer, n: int, result: Measurement) -> None:
    depth = buffer.depths[-1]
    for batch_size, prefetch in itertools.product(BATCH_SIZES, (depth, 0)):
        before = buffer.buffer.statistics().n_bytes_sampled
        before_n = _n_sent(buffer)
        batches = buffer.batches(batch_size, prefetch)
        for _ in range(n * SAMPLES_PER_INSERT // batch_size):
            next(batches)
        batches.close()
        suffix = "" if prefetch else ", without prefetch"
        n_bytes = buffer.buffer.statistics().n_bytes_sampled - before
        result[f"to learner({batch_size}){suffix}"] = n_bytes / (_n_sent(buffer) - before_n)


def _n_sent(buffer: DistributedBuffer) -> int:
    """Return the number of transitions that shards have sent, as far as the learner has received them."""
    return sum(view.status.n_sampled for view in buffer.buffer._group.shards if view.status is not None)


def measure_lz4(recording: Recording, rows: int) -> Measurement:
    """Return bytes per transition if each observation is compressed with LZ4, as RLlib does."""
    sizes: list[int] = []
    for step in itertools.islice(play(recording), rows):
        arrays: list[Any] = [*step.obs, *step.next_obs]
        sizes += [len(lz4.frame.compress(array.tobytes())) for array in arrays]
    return {"to shard": 2 * sum(sizes) / len(sizes)}
