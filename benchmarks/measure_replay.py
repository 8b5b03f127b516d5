"""Measure the memory, ``add`` and ``sample`` of one replay buffer on a recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from batch_checks import check_replay
from frame_recording import Recording, play
from metrics import CallTimer, one_thread, resident_nbytes

from adapters.sb3_adapters import ReplayAdapter

__all__ = ["BATCH_SIZES", "TIMED_STEPS", "measure_replay"]

BATCH_SIZES = (32, 256, 1024)
WARM_STEPS = 300  # enough to compile, train and allocate everything once
TIMED_STEPS = 500  # calls of add, on the second lap over the ring
CHECKED_STEPS = 500


def measure_replay(
    make: Callable[[int], ReplayAdapter], recording: Recording, rows: int, batch_sizes: Sequence[int] = BATCH_SIZES
) -> dict[str, Any]:
    """Fill and sample one buffer. Requires a new process, since freed memory would be reused.

    :param make: creates a buffer for a number of steps of the recording
    :param recording: has ``rows`` steps and :data:`TIMED_STEPS` more
    :param rows: steps of all environments in the buffer
    :return: bytes per transition: ``rss`` by which the process grew, ``growth`` with each further transition (without
        what counts once, such as the codec's trained state), ``counted`` as reported by the arrays (0 if unknown; a
        lower bound for small buffers, whose RSS is noise); microseconds: ``add`` per transition, ``sample(32)`` per
        batch, with the ``quartiles`` and minor page ``faults`` of each; and ``wrong``, a description of differences
        between added and returned data
    """
    one_thread()
    n_envs = recording.n_envs
    warm_rows = min(WARM_STEPS, rows)
    # A small buffer triggers everything that happens once in a process. It is kept so that its memory is not reused.
    warm = make(warm_rows)
    for step in islice(play(recording), warm_rows):
        warm.add(step)
    for batch_size in batch_sizes:
        warm.sample(batch_size)

    steps = play(recording)
    first = next(steps)
    before = resident_nbytes()
    buffer = make(rows)
    buffer.add(first)
    marks, early_rows = [], max(rows // 4, 1)
    for n_more in (early_rows - 1, rows - early_rows):
        for step in islice(steps, n_more):
            buffer.add(step)
        marks.append((resident_nbytes(), buffer.codec_state_nbytes()))
    (early, early_state), (full, full_state) = marks
    growth = (full - full_state) - (early - early_state)
    result: dict[str, Any] = {
        "rss": (full - before) / (rows * n_envs),
        "growth": growth / ((rows - early_rows) * n_envs) + buffer.reserved_nbytes() / (rows * n_envs),
        "counted": max(buffer.nbytes() - full_state, 0) / (rows * n_envs),
    }
    timer = CallTimer()
    for step in islice(steps, TIMED_STEPS):
        timer.call(buffer.add, step)
    timer.add_to(result, "add", n_envs)
    for batch_size in batch_sizes:
        repeats = 6400 // batch_size + 20
        timer = CallTimer()
        for _ in range(repeats):
            timer.call(buffer.sample, batch_size)
        timer.add_to(result, f"sample({batch_size})")
    del warm
    checked_rows = min(CHECKED_STEPS, rows // 2)
    wrong = check_replay(make(checked_rows), play(recording), checked_rows)
    return {**result, "wrong": wrong}
