"""One rollout buffer on a recording: its memory, ``add``, and one pass over all batches."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from sb3_compressed.benchmarking.adapters import Rollout, Setup
from sb3_compressed.benchmarking.frame_recording import Recording, play
from sb3_compressed.benchmarking.metrics import exhaust, median_us, one_thread, resident_nbytes, timed
from sb3_compressed.benchmarking.roundtrip import check_rollout

__all__ = ["measure_rollout"]

BATCH_SIZE = 256
PASSES = 4  # epochs a rollout


def measure_rollout(
    make: Callable[[Setup], Rollout], recording: Recording, n_steps: int, rollouts: int
) -> dict[str, Any]:
    """Fill and read one buffer several times; in a process of its own, or memory means nothing.

    :param make: makes the buffer
    :param recording: what is added, of at least ``n_steps * rollouts`` steps
    :param n_steps: how many steps of all environments a rollout has
    :param rollouts: how many are collected, two at least; the times are of those after the first
    :return: bytes of memory a transition (``rss``), microseconds a transition (``add``) and of one pass over all
        batches (``get``), and what is ``wrong`` with what it returns
    """
    one_thread()
    # What happens once in a process happens in a buffer that stays, so that none of its memory is reused.
    warm = make(Setup.of(recording, n_steps))
    for step in islice(play(recording), n_steps):
        warm.add(step)
    list(warm.get(BATCH_SIZE))

    steps = play(recording)
    first = next(steps)
    before = resident_nbytes()
    buffer = make(Setup.of(recording, n_steps))
    buffer.add(first)
    for step in islice(steps, n_steps - 1):
        buffer.add(step)
    result: dict[str, Any] = {"rss": (resident_nbytes() - before) / (n_steps * recording.n_envs)}
    adds, passes = [], []
    for _ in range(rollouts - 1):
        buffer.reset()
        adds += [timed(buffer.add, step) for step in islice(steps, n_steps)]
        passes += [timed(exhaust, buffer.get(BATCH_SIZE)) for _ in range(PASSES)]
    result["add"] = median_us(adds) / recording.n_envs
    result["get"] = median_us(passes)
    wrong = check_rollout(make(Setup.of(recording, n_steps)), play(recording), n_steps)
    del warm
    return {**result, "wrong": wrong}
