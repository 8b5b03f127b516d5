"""Whether buffers return what was added: a measurement of one that does not is worth nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from sb3_compressed.benchmarking.adapters import Batch, Replay, Rollout
from sb3_compressed.benchmarking.frame_recording import Step
from sb3_compressed.benchmarking.tree_map import mapped

__all__ = ["check_replay", "check_rollout"]

BATCH = 256


def check_replay(replay: Replay, steps: Iterator[Step], rows: int, *, has_ends: bool = True) -> str:
    """Go twice over the ring and sample on the way; return what is wrong, or nothing.

    Every transition is found by its reward, which is its serial number.

    :param rows: how many steps the buffer holds
    :param has_ends: whether the next observation at an episode's end must be its last one
    """
    known: deque[Step] = deque(maxlen=rows)
    for i in range(2 * rows):
        step = next(steps)
        replay.add(step)
        known.append(_kept(step))
        if i > 8 and i % max(rows // 8, 1) == 0:
            wrong = _compare(replay.read(replay.sample(BATCH)), known, has_next=True, has_ends=has_ends)
            if wrong:
                return f"after {i + 1} steps: {wrong}"
    return ""


def check_rollout(rollout: Rollout, steps: Iterator[Step], rows: int) -> str:
    """Fill and empty it twice; return what is wrong with the batches, or nothing."""
    for _ in range(2):
        known: deque[Step] = deque(maxlen=rows)
        rollout.reset()
        for _ in range(rows):
            step = next(steps)
            rollout.add(step)
            known.append(_kept(step))
        for batch in rollout.get(BATCH):
            if wrong := _compare(rollout.read(batch), known, has_next=False):
                return wrong
    return ""


def _kept(step: Step) -> Step:
    return replace(step, obs=mapped(np.copy, step.obs), next_obs=mapped(np.copy, step.next_obs), done=step.done.copy())


def _compare(batch: Batch, known: deque[Step], *, has_next: bool, has_ends: bool = True) -> str:
    first, n_envs = int(known[0].reward[0]), len(known[0].reward)
    counts = dict.fromkeys(("observations", "next observations", "next observations at episode ends", "unknown"), 0)
    for i, serial in enumerate(batch.serial):
        row, env = divmod(int(serial) - first, n_envs)
        if not 0 <= row < len(known):
            counts["unknown"] += 1
            continue
        step = known[row]
        counts["observations"] += not _equal(batch.obs, i, step.obs, env)
        if has_next and (has_ends or not step.done[env]) and not _equal(batch.next_obs, i, step.next_obs, env):
            counts["next observations at episode ends" if step.done[env] else "next observations"] += 1
    return ", ".join(f"{n} {what} of {len(batch.serial)} wrong" for what, n in counts.items() if n)


def _equal(returned: Any, i: int, added: Any, env: int) -> bool:
    """Whether two observations are equal; those of a Discrete space have a shape only when they are returned."""
    equal = mapped(lambda ours, theirs: np.array_equal(np.ravel(ours[i]), np.ravel(theirs[env])), returned, added)
    return all(equal.values()) if isinstance(equal, dict) else equal
