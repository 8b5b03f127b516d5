"""One replay buffer on a recording: its memory, ``add`` and ``sample``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from sb3_compressed.benchmarking.adapters import Replay, Setup
from sb3_compressed.benchmarking.frame_recording import Recording, play
from sb3_compressed.benchmarking.metrics import median_us, one_thread, resident_nbytes, timed
from sb3_compressed.benchmarking.roundtrip import check_replay

__all__ = ["BATCH_SIZES", "EXTRAPOLATED_BY", "TIMED_STEPS", "measure_replay"]

BATCH_SIZES = (32, 256, 1024)
WARM_STEPS = 300  # whatever is compiled, learned or allocated at first use
TIMED_STEPS = 500  # of add, on the second lap
CHECKED_STEPS = 500
#: Results that say what a larger buffer would take.
EXTRAPOLATED_BY = frozenset({"growth", "counted"})


def measure_replay(
    make: Callable[[Setup], Replay], recording: Recording, rows: int, batch_sizes: Sequence[int] = BATCH_SIZES
) -> dict[str, Any]:
    """Fill one buffer and look at it; in a process of its own, or memory means nothing.

    :param make: makes the buffer
    :param recording: what is added, of at least ``rows`` steps and better of :data:`TIMED_STEPS` more
    :param rows: how many steps of all environments the buffer holds
    :return: bytes of memory a transition (``rss``) and those that every further transition would add (``growth``:
        what a codec learns, and whatever else a buffer begins with, is counted once), microseconds a transition
        (``add``) and a batch (``sample(32)``), what is ``wrong`` with what it returns, and the bytes a transition that
        are counted, not measured (``counted``, 0 where a library does not tell): of small buffers, memory is noise
    """
    one_thread()
    n_envs = recording.n_envs
    warm_rows = min(WARM_STEPS, rows)
    # A small buffer meets what is met only once in a process. It stays, so that none of its memory is reused.
    warm = make(Setup.of(recording, warm_rows))
    for step in islice(play(recording), warm_rows):
        warm.add(step)
    for batch_size in batch_sizes:
        warm.sample(batch_size)

    steps = play(recording)
    first = next(steps)
    before = resident_nbytes()
    buffer = make(Setup.of(recording, rows))
    buffer.add(first)
    marks, early_rows = [], max(rows // 4, 1)
    for n_more in (early_rows - 1, rows - early_rows):
        for step in islice(steps, n_more):
            buffer.add(step)
        marks.append((resident_nbytes(), buffer.codec_state_nbytes()))
    (early, learned_early), (full, learned) = marks
    growth = (full - learned) - (early - learned_early)
    result: dict[str, Any] = {
        "rss": (full - before) / (rows * n_envs),
        "growth": growth / ((rows - early_rows) * n_envs) + buffer.reserved_nbytes() / (rows * n_envs),
    }
    result["counted"] = max(buffer.nbytes() - learned, 0) / (rows * n_envs)
    result["add"] = median_us(timed(buffer.add, step) for step in islice(steps, TIMED_STEPS)) / n_envs
    for batch_size in batch_sizes:
        rounds = 6400 // batch_size + 20
        result[f"sample({batch_size})"] = median_us(timed(buffer.sample, batch_size) for _ in range(rounds))
    del warm
    checked_rows = min(CHECKED_STEPS, rows // 2)
    wrong = check_replay(make(Setup.of(recording, checked_rows)), play(recording), checked_rows)
    return {**result, "wrong": wrong}
