"""What programs share that tell how much memory they take, each in a process of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_compressed import CompressedReplayBuffer


def memory_of_process(kind: str) -> int:
    """Return what Linux tells of the memory of this process, as its peak, ``VmHWM``, in bytes.

    The peak that ``resource.getrusage`` tells is at least that of the process which started this one.
    """
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith(f"{kind}:")).split()[1]) * 1024


def with_one_episode(n_steps: int, **options: Any) -> CompressedReplayBuffer:
    """Return a buffer that is full of one episode of stacks of frames, 84 by 84 pixels each."""
    space, buttons = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(2)
    buffer = CompressedReplayBuffer(n_steps, space, buttons, device="cpu", **options)
    frames = np.zeros((1, 4, 84, 84), np.uint8)
    for step in range(n_steps):
        following = np.roll(frames, -1, axis=1)
        following[:, -1] = step % 256
        buffer.add(frames, following, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
        frames = following
    return buffer
