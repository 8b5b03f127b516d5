"""Repeat what sb3-extra-buffers publishes of its buffers, with its codecs or ours.

From its README: MsPacman, 4 stacked frames, 4 environments. *Save* is the total time of ``add`` until a replay buffer
with ``optimize_memory_usage`` is full; *load* the time of reading a rollout buffer once in batches of 64. Its script
computes memory from the sizes of the Python objects in the slots; here it is also measured (RSS).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from batch_checks import check_replay, check_rollout
from frame_recording import play
from measurement import Measurement
from metrics import exhaust, one_thread, resident_nbytes, timed
from sources import record

from adapters import make_replay, make_rollout
from sb3_compressed.step import Step

__all__ = ["LOAD", "SAVE", "measure_published"]

SAVE, LOAD = "save", "load"
N_ENVS = 4
BATCH_SIZE = 64
WARM_STEPS = 50
CHECKED_STEPS = 100


def measure_published(name: str, source: str, size: int, test: str) -> Measurement:
    """Return the memory in bytes and the latency in seconds of a test."""
    one_thread()
    rows = size // N_ENVS
    recording = record(source, N_ENVS, max(rows, 2 * CHECKED_STEPS))

    def make(n_rows: int) -> Any:
        if test == LOAD:
            return make_rollout(name, recording, n_rows)
        options = {"optimize_memory_usage": True, "handle_timeout_termination": False}
        return make_replay(name, recording, n_rows, **options)

    warm = make(WARM_STEPS)
    _add_all(warm, islice(play(recording), WARM_STEPS))
    if test == LOAD:
        list(warm.buffer.get(BATCH_SIZE))
    steps = play(recording)
    first = next(steps)
    before = resident_nbytes()
    filled = make(rows)
    filled.add(first)
    seconds = _add_all(filled, islice(steps, rows - 1)) * rows / max(rows - 1, 1)
    result: Measurement = {"rss": resident_nbytes() - before, "counted": counted_nbytes(filled.buffer)}
    result["latency"] = seconds if test == SAVE else timed(exhaust, filled.buffer.get(BATCH_SIZE))
    del warm
    checked, steps = make(CHECKED_STEPS), play(recording)
    if test == LOAD:
        return {**result, "wrong": check_rollout(checked, steps, CHECKED_STEPS)}
    # optimize_memory_usage overwrites terminal observations with the next episode's first one, as in SB3.
    return {**result, "wrong": check_replay(checked, steps, CHECKED_STEPS, has_ends=False)}


def counted_nbytes(buffer: Any) -> int:
    """Return the memory of the observations as computed by the script of sb3-extra-buffers.

    Payloads shared by several slots of our buffers count once, as our buffers report.
    """
    if hasattr(buffer, "observations_nbytes"):
        return int(buffer.observations_nbytes)
    slots = np.ravel(buffer.observations)
    return sys.getsizeof(buffer.observations) + (sum(map(sys.getsizeof, slots)) if slots.dtype == object else 0)


def _add_all(filled: Any, steps: Iterator[Step]) -> float:
    return sum(timed(filled.add, step) for step in steps)
