"""Helpers of tests that measure memory in a separate process."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_compressed import CompressedReplayBuffer


def memory_of_process(kind: str) -> int:
    """Return a memory statistic of this process from Linux in bytes, e.g. ``VmHWM`` for the peak.

    ``resource.getrusage`` is no alternative: its peak is at least that of the parent process.
    """
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith(f"{kind}:")).split()[1]) * 1024


def with_one_episode(n_steps: int, **options: Any) -> CompressedReplayBuffer:
    """Return a full buffer with one episode of stacks of four 84x84 frames."""
    space, buttons = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(2)
    buffer = CompressedReplayBuffer(n_steps, space, buttons, device="cpu", **options)
    frames = np.zeros((1, 4, 84, 84), np.uint8)
    for step in range(n_steps):
        following = np.roll(frames, -1, axis=1)
        following[:, -1] = step % 256
        buffer.add(frames, following, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
        frames = following
    return buffer
