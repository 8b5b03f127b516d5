"""Measure the memory, ``add`` and ``sample`` of one replay buffer on a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from batch_checks import check_replay
from frame_recording import Recording, play
from metrics import median_us, one_thread, resident_nbytes, timed

from adapters.sb3_adapters import ReplayAdapter
from sb3_compressed.step import Step

__all__ = ["CHECKED_STEPS", "TIMED_STEPS", "Filled", "fill", "measure_replay"]

BATCH_SIZES = (32, 256)
WARM_STEPS = 300  # enough to compile, train and allocate everything once
TIMED_STEPS = 500  # calls of add, on the second lap over the ring
CHECKED_STEPS = 500


@dataclass
class Filled:
    """A full buffer, with bytes per transition.

    :param rss: by which the process grew
    :param growth: by which it grew with each further transition, without what counts once
    :param steps: the following steps of the recording
    :param warm: another buffer, which is kept so that its memory is not reused
    """

    buffer: ReplayAdapter
    rss: float
    growth: float
    steps: Iterator[Step]
    warm: ReplayAdapter


def fill(
    make: Callable[[int], ReplayAdapter], recording: Recording, rows: int, batch_sizes: Sequence[int] = BATCH_SIZES
) -> Filled:
    """Fill a buffer. Requires a new process, since freed memory would be reused.

    :param make: creates a buffer for a number of steps of the recording
    :param rows: steps of all environments in the buffer
    """
    one_thread()
    n_envs = recording.n_envs
    warm_rows = min(WARM_STEPS, rows)
    # A small buffer triggers everything that happens once in a process.
    warm = make(warm_rows)
    for step in islice(play(recording), warm_rows):
        warm.add(step)
    for batch_size in batch_sizes:
        warm.sample(batch_size)

    steps = play(recording)
    first = next(steps)
    before = resident_nbytes()
    buffer = make(rows)
    created = resident_nbytes() - before  # of buffers that write to all of their memory first
    buffer.add(first)
    marks, early_rows = [], max(rows // 4, 1)
    for n_more in (early_rows - 1, rows - early_rows):
        for step in islice(steps, n_more):
            buffer.add(step)
        marks.append((resident_nbytes(), buffer.codec_state_nbytes()))
    (early, early_state), (full, full_state) = marks
    growth = ((full - full_state) - (early - early_state)) / ((rows - early_rows) * n_envs)
    growth += (created + buffer.reserved_nbytes()) / (rows * n_envs)
    return Filled(buffer, (full - before) / (rows * n_envs), growth, steps, warm)


def measure_replay(make: Callable[[int], ReplayAdapter], recording: Recording, rows: int) -> dict[str, Any]:
    """Fill and sample one buffer.

    :param recording: has ``rows`` steps and :data:`TIMED_STEPS` more
    :return: bytes per transition: ``growth``; microseconds: ``add`` per transition, ``sample(32)`` per batch; and
        ``wrong``, a description of differences between added and returned data
    """
    filled = fill(make, recording, rows)
    result: dict[str, Any] = {"growth": filled.growth}
    steps = islice(filled.steps, TIMED_STEPS)
    result["add"] = median_us(timed(filled.buffer.add, step) for step in steps) / recording.n_envs
    for batch_size in BATCH_SIZES:
        repeats = range(3200 // batch_size + 20)
        result[f"sample({batch_size})"] = median_us(timed(filled.buffer.sample, batch_size) for _ in repeats)
    checked_rows = min(CHECKED_STEPS, rows // 2)
    wrong = check_replay(make(checked_rows), play(recording), checked_rows)
    return {**result, "wrong": wrong}
