"""How many transitions a second go into shards and from there to the learner, and what CPU time they take."""

from __future__ import annotations

import itertools
import time
from collections import deque
from typing import Any

import numpy as np
import ray
from frame_recording import Recording, play
from measurement import Measurement
from metrics import one_thread
from process_times import cpu_times

from adapters.ray_buffers import DistributedBuffer, start_ray
from sb3_compressed.distributed import ReplayWriter
from sb3_compressed.distributed.encoded_rows import block_of
from sb3_compressed.distributed.shard import Segment
from sb3_compressed.step import Step

__all__ = ["SEGMENT_ROWS", "measure_inserts", "measure_throughput"]

SEGMENT_ROWS = 64
#: Segments that are sent before the first is acknowledged; writers have two.
WINDOWS = (1, 2, 4)
#: Rows that a collector repeats, and calls of it that wait.
COLLECTOR_ROWS, CALLS_AHEAD = 256, 2
BATCH_SIZE = 256


def measure_inserts(recording: Recording, rows: int, seconds: float) -> Measurement:
    """Insert segments that were encoded before into one shard in memory.

    :param rows: rows of the buffer and of the segments, which are repeated
    :param seconds: of inserting, for each number of segments that are sent ahead
    :return: acknowledged transitions a second, ``inserts, 2 ahead``; ``nbytes`` of a segment; ``cpu``, the seconds of
        each process per transition
    """
    one_thread()
    start_ray()
    buffer = DistributedBuffer(recording, rows)
    buffer.fill(itertools.islice(play(recording), SEGMENT_ROWS))
    shard, spec = buffer.buffer._group.shards[0].actor, buffer.buffer._spec
    staging = spec.staging(SEGMENT_ROWS, recording.n_envs, 1)
    segments: list[tuple[Any, dict[bytes, Any]]] = []
    for step in itertools.islice(play(recording), rows // SEGMENT_ROWS * SEGMENT_ROWS):
        step.add_to(staging)
        if staging.full:
            block = block_of(staging, np.arange(SEGMENT_ROWS))
            segments.append((block.pack(), block.codecs))
            staging.reset()
    result: Measurement = {"nbytes": sum(block.nbytes for block, _ in segments) / len(segments)}
    session, n_transitions = "benchmark", SEGMENT_ROWS * recording.n_envs
    n_envs = recording.n_envs
    position = ray.get(shard.open_ring.remote("learner-0", session, n_envs)).position
    sent: set[bytes] = set()
    turn = itertools.cycle(segments)
    for window in WINDOWS:
        replies: deque[Any] = deque()
        n, before, begin = 0, cpu_times(), time.perf_counter()
        while replies or time.perf_counter() - begin < seconds:
            if len(replies) < window and time.perf_counter() - begin < seconds:
                block, needed = next(turn)
                new = {digest: codec for digest, codec in needed.items() if digest not in sent}
                sent |= new.keys()
                segment = Segment(position, block)
                replies.append(shard.insert.remote("learner-0", session, n_envs, segment, new))
                position = position._replace(n_inserted=position.n_inserted + SEGMENT_ROWS)
                continue
            ray.get(replies.popleft())
            n += n_transitions
        result[f"inserts, {window} ahead"] = n / (time.perf_counter() - begin)
        used = cpu_times().since(before)
        result.setdefault("cpu", {})[f"{window} ahead"] = {role: used[role] / n for role in used}
    buffer.close()
    return result


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
        each; ``cpu``, seconds of each kind of process per transition
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
            before, begin = cpu_times(), time.perf_counter()
            n = _collect(buffer, actors[:n_collectors], seconds, per_insert)
            elapsed, used = time.perf_counter() - begin, cpu_times().since(before)
            result[label] = n / elapsed
            result.setdefault("cpu", {})[label] = {role: used[role] / n for role in used}
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
