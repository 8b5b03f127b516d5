"""Verify that buffers return what was added; a measurement of a wrong buffer is worthless."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from adapters.sb3_adapters import Batch, ReplayAdapter, RolloutAdapter
from sb3_compressed.common.tree_map import leaves, tree_map
from sb3_compressed.step import Step

__all__ = ["check_replay", "check_rollout", "compare_batch"]

BATCH_SIZE = 256


def check_replay(replay: ReplayAdapter, steps: Iterator[Step], rows: int, *, has_ends: bool = True) -> str:
    """Fill a ring twice, sampling regularly, and return a description of wrong data, or an empty string.

    Transitions are identified by their rewards, which are serial numbers.

    :param rows: steps in the buffer
    :param has_ends: whether next observations at episode ends must be terminal observations
    """
    added: deque[Step] = deque(maxlen=rows)
    for i in range(2 * rows):
        step = next(steps)
        replay.add(step)
        added.append(step)
        if i > 8 and i % max(rows // 8, 1) == 0:
            wrong = compare_batch(replay.read(replay.sample(BATCH_SIZE)), added, has_ends=has_ends)
            if wrong:
                return f"after {i + 1} steps: {wrong}"
    return ""


def check_rollout(rollout: RolloutAdapter, steps: Iterator[Step], rows: int) -> str:
    """Fill and read a rollout buffer twice and return a description of wrong data, or an empty string."""
    for _ in range(2):
        added: deque[Step] = deque(maxlen=rows)
        rollout.buffer.reset()
        for _ in range(rows):
            step = next(steps)
            rollout.add(step)
            added.append(step)
        for batch in rollout.buffer.get(BATCH_SIZE):
            if wrong := compare_batch(rollout.read(batch), added):
                return wrong
    return ""


def compare_batch(batch: Batch, added: deque[Step], *, has_ends: bool = True) -> str:
    """Compare a batch with consecutive steps that contain it, and return a description of wrong data.

    :param has_ends: whether next observations at episode ends must be terminal observations
    """
    first, n_envs = int(added[0].reward[0]), len(added[0].reward)
    counts = dict.fromkeys(("observations", "next observations", "next observations at episode ends", "unknown"), 0)
    for i, serial in enumerate(batch.serial):
        row, env = divmod(int(serial) - first, n_envs)
        if not 0 <= row < len(added):
            counts["unknown"] += 1
            continue
        step = added[row]
        counts["observations"] += not _equal(batch.obs, i, step.obs, env)
        has_next = batch.next_obs is not None and (has_ends or not step.done[env])
        if has_next and not _equal(batch.next_obs, i, step.next_obs, env):
            counts["next observations at episode ends" if step.done[env] else "next observations"] += 1
    return ", ".join(f"{n} {what} of {len(batch.serial)} wrong" for what, n in counts.items() if n)


def _equal(returned: Any, i: int, added: Any, env: int) -> bool:
    """Compare observations; those of Discrete spaces gain an axis in the buffer."""

    def equal(ours: Any, theirs: Any) -> bool:
        return np.array_equal(np.ravel(ours[i]), np.ravel(theirs[env]))

    return all(leaves(tree_map(equal, returned, added)))
