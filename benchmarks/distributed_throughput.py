"""How many transitions a second go into shards and from there to the learner."""

from __future__ import annotations

import itertools
import time
from typing import Any

import ray
from frame_recording import Recording, play
from measurement import Measurement
from metrics import one_thread

from adapters.ray_buffers import DistributedBuffer, start_ray
from sb3_compressed.distributed import ReplayWriter
from sb3_compressed.step import Step

__all__ = ["measure_throughput"]

SEGMENT_ROWS = 64
#: Rows that a collector repeats, and calls of it that wait.
COLLECTOR_ROWS, CALLS_AHEAD = 256, 2
BATCH_SIZE = 256


class PlaybackCollector:
    """Adds the rows of a recording again and again, without environments and policies, for an actor."""

    def __init__(self, recording: Recording, offset: int) -> None:
        one_thread()
        self._steps: list[Step] = list(itertools.islice(play(recording), offset, offset + COLLECTOR_ROWS))
        self._turn = itertools.cycle(self._steps)
        self._writer: ReplayWriter | None = None

    def use(self, writer: ReplayWriter) -> None:
        """Add to another writer."""
        self._writer = writer
        self.collect(SEGMENT_ROWS)
        writer.flush()

    def collect(self, n_rows: int) -> int:
        """Add rows, and return the number of transitions."""
        writer = self._writer
        if writer is None:
            raise RuntimeError("call use() first")
        for step in itertools.islice(self._turn, n_rows):
            step.add_to(writer)
        return n_rows * writer.n_envs

    def flush(self) -> None:
        """Wait until everything is acknowledged."""
        if self._writer is not None:
            self._writer.flush()


def measure_throughput(
    recording: Recording,
    rows: int,
    seconds: float,
    n_shards: int,
    collectors: list[int],
    samples_per_insert: float,
) -> Measurement:
    """Let collectors insert, with and without a learner that samples.

    :param rows: rows of the buffer for each environment of a single collector
    :param seconds: of each measurement
    :param collectors: numbers of collectors
    :return: transitions a second: ``inserts, 4 collectors``, and ``both, 4 collectors``, if so many are sampled for
        each
    """
    one_thread()
    start_ray()
    most = max(collectors)
    actor: Any = ray.remote(PlaybackCollector)
    actors = [actor.remote(recording, SEGMENT_ROWS * k) for k in range(most)]
    result: Measurement = {}
    buffer = DistributedBuffer(recording, rows, n_shards=n_shards)
    writers = [buffer.buffer.writer(f"collector-{k}", recording.n_envs) for k in range(most)]
    ray.get([each.use.remote(writer) for each, writer in zip(actors, writers, strict=True)])
    for n_collectors in collectors:
        for key, per_insert in (("inserts", 0.0), ("both", samples_per_insert)):
            label = f"{key}, {n_collectors} collector{'s' if n_collectors > 1 else ''}"
            _collect(buffer, actors[:n_collectors], min(seconds, 1.0), per_insert)  # until caches are warm
            begin = time.perf_counter()
            n = _collect(buffer, actors[:n_collectors], seconds, per_insert)
            result[label] = n / (time.perf_counter() - begin)
    statistics = buffer.buffer.statistics()
    result["lost"] = statistics.n_lost + statistics.n_failed + statistics.n_late
    buffer.close()
    return result


def _collect(buffer: DistributedBuffer, actors: list[Any], seconds: float, samples_per_insert: float) -> int:
    """Collect, sample in proportion, and return the number of transitions that were collected."""
    end = time.perf_counter() + seconds
    calls = {each.collect.remote(SEGMENT_ROWS): each for each in actors for _ in range(CALLS_AHEAD)}
    n = n_batches = 0
    while calls:
        [done], _ = ray.wait(list(calls), num_returns=1)
        each = calls.pop(done)
        n += ray.get(done)
        while n_batches * BATCH_SIZE < n * samples_per_insert:
            buffer.sample(BATCH_SIZE)
            n_batches += 1
        if time.perf_counter() < end:
            calls[each.collect.remote(SEGMENT_ROWS)] = each
    ray.get([each.flush.remote() for each in actors])
    return n
