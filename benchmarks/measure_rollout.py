"""Measure the memory, ``add`` and ``get`` of one rollout buffer on a recording."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from batch_checks import check_rollout
from frame_recording import Recording, play
from metrics import exhaust, median_us, one_thread, resident_nbytes, timed

from adapters.sb3_adapters import RolloutAdapter

__all__ = ["BATCH_SIZE", "measure_rollout"]

BATCH_SIZE = 256
N_EPOCHS = 4


def measure_rollout(
    make: Callable[[int], RolloutAdapter], recording: Recording, n_steps: int, rollouts: int
) -> dict[str, Any]:
    """Fill and read one buffer several times. Requires a new process, since freed memory would be reused.

    :param make: creates a buffer for a number of steps of the recording
    :param recording: has at least ``n_steps * rollouts`` steps
    :param n_steps: steps of all environments per rollout
    :param rollouts: number of rollouts, at least two; the first one is not timed
    :return: bytes per transition, ``rss``, by which the process grew; microseconds: ``add`` per transition, ``get`` per
        epoch, which is one pass over all batches; and ``wrong``, a description of differences between added and
        returned data
    """
    one_thread()
    # Triggers everything that happens once in a process, and is kept so that its memory is not reused.
    warm = make(n_steps)
    for step in islice(play(recording), n_steps):
        warm.add(step)
    list(warm.buffer.get(BATCH_SIZE))

    steps = play(recording)
    first = next(steps)
    before = resident_nbytes()
    rollout = make(n_steps)
    rollout.add(first)
    for step in islice(steps, n_steps - 1):
        rollout.add(step)
    transitions = n_steps * recording.n_envs
    result: dict[str, Any] = {"rss": (resident_nbytes() - before) / transitions}
    adds: list[float] = []
    epochs: list[float] = []
    for _ in range(rollouts - 1):
        rollout.buffer.reset()
        adds += [timed(rollout.add, step) for step in islice(steps, n_steps)]
        epochs += [timed(exhaust, rollout.buffer.get(BATCH_SIZE)) for _ in range(N_EPOCHS)]
    result |= {"add": median_us(adds) / recording.n_envs, "get": median_us(epochs)}
    wrong = check_rollout(make(n_steps), play(recording), n_steps)
    del warm
    return {**result, "wrong": wrong}
