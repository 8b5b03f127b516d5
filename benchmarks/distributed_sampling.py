"""How long ``sample`` takes of buffers behind Ray, and whether it returns what was added."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch as th
from batch_checks import compare_batch
from frame_recording import Recording, play
from measurement import Measurement
from metrics import one_thread

from adapters.ray_buffers import RayBuffer, make_ray_buffer, start_ray
from sb3_compressed.step import Step

__all__ = ["BATCH_SIZES", "measure_sampling"]

BATCH_SIZES = (32, 256)
CHECKED_ROWS, CHECKED_BATCHES = 250, 4
WARM_UP = 10
#: Seconds of other work between batches, in which all that were asked for arrive.
PAUSES = {32: 0.02, 256: 0.06}


def measure_sampling(name: str, recording: Recording, rows: int, seconds: float) -> Measurement:
    """Fill a buffer and sample.

    :param rows: steps in the buffer
    :param seconds: of sampling, for each batch size and depth
    :return: milliseconds of a batch: ``sample(256)`` without requests in advance, ``sample(256), 4 ahead`` with that
        many, as means over batches in immediate succession; ``sample(256), ready``, the median after other work, when
        all batches that were asked for have arrived; ``wrong``, a description of wrong data
    """
    one_thread()
    result: Measurement = {"wrong": ""}
    if name != "local":
        start_ray()
    sizes = [BATCH_SIZES] if not name.startswith("torchrl") else [(size,) for size in BATCH_SIZES]
    for of_buffer in sizes:  # of TorchRL, one batch size in each buffer
        buffer = make_ray_buffer(name, recording, rows, of_buffer[0])
        steps = play(recording)
        result["wrong"] = result["wrong"] or _check(buffer, steps, of_buffer[0])
        buffer.fill(itertools.islice(steps, rows - CHECKED_ROWS))
        for batch_size in of_buffer:
            _measure_batches(buffer, batch_size, seconds, result)
        buffer.close()
    return result


def _check(buffer: RayBuffer, steps: Iterator[Step], batch_size: int) -> str:
    added = deque(itertools.islice(steps, CHECKED_ROWS))
    buffer.fill(added)
    found = [compare_batch(buffer.read(buffer.sample(batch_size)), added) for _ in range(CHECKED_BATCHES)]
    return next(filter(None, found), "")


def _measure_batches(buffer: RayBuffer, batch_size: int, seconds: float, result: Measurement) -> None:
    key = f"sample({batch_size})"
    for depth in buffer.depths:
        batches = buffer.batches(batch_size, depth)
        for _ in range(WARM_UP + depth):
            next(batches)
        begin, n = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            next(batches)
            n += 1
        label = f"{key}, {depth} ahead" if depth else key
        result[label] = (time.perf_counter() - begin) / n * 1e3
        if depth == buffer.depths[-1]:
            result[f"{key}, ready"] = _ready_ms(batches, seconds, PAUSES[batch_size])
        batches.close()


def _ready_ms(batches: Iterator[Any], seconds: float, pause: float) -> float:
    """Return the median milliseconds until the next batch, after other work that does not wait for anything."""
    matrix = th.rand(256, 256)
    times: list[float] = []
    end = time.perf_counter() + 2 * seconds
    while time.perf_counter() < end:
        paused = time.perf_counter() + pause
        while time.perf_counter() < paused:
            matrix @ matrix
        begin = time.perf_counter()
        batch = next(batches)
        times.append(time.perf_counter() - begin)
        del batch
    return statistics.median(times) * 1e3
