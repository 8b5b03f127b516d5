"""A process that adds to a buffer in a folder, or saves a buffer to one, until it is killed.

    python writer.py storage FOLDER
    python writer.py checkpoint FOLDER
    python writer.py prioritized FOLDER  # storage, with priorities that it updates
    python writer.py golden FOLDER  # ends by itself, for tests/storage/test_golden.py

It prints the number of the step after each ``add``, or each save. A step's number is its reward and its action, and
determines its pixels, so that a reader of the folder can derive its expected content.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import programs
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.storage.commit_writer import CommitWriter

SPACE, BUTTONS = spaces.Box(0, 255, (4, 24, 24), np.uint8), spaces.Discrete(1000)
ROWS, N_ENVS = 60, 2
EPISODE = 17  # steps
STEPS_A_SAVE = 7
GOLDEN_STEPS = 70


def frame(number: int, env: int) -> NDArray[np.uint8]:
    """Return the newest frame of the observation with a number."""
    rng = np.random.default_rng((number // 9, env))
    picture = np.repeat(rng.integers(0, 256, (24, 6), np.uint8), 4, axis=1)
    picture[number % 24] = number % 251
    return picture


def observation(number: int) -> NDArray[np.uint8]:
    """Return the observation before a step, ``(n_envs, 4, 24, 24)``."""
    numbers = [max(number - age, number - number % EPISODE) for age in (3, 2, 1, 0)]
    return np.stack([[frame(n, env) for n in numbers] for env in range(N_ENVS)])


def next_observation(number: int) -> NDArray[np.uint8]:
    """Return the observation after a step."""
    is_end = (number + 1) % EPISODE == 0
    return np.full((N_ENVS, 4, 24, 24), number % 256, np.uint8) if is_end else observation(number + 1)


def add_step(buffer: Any, number: int) -> None:
    """Add the step with a number."""
    numbers = np.full(N_ENVS, number, np.float32)
    done = np.full(N_ENVS, (number + 1) % EPISODE == 0)
    infos = [{"TimeLimit.truncated": bool(number % 2)}] * N_ENVS
    action = np.full((N_ENVS, 1), number % 1000)
    buffer.add(observation(number), next_observation(number), action, numbers, done, infos)


def new_buffer(**options: Any) -> CompressedReplayBuffer:
    """Return a buffer of the kind that is written."""
    return CompressedReplayBuffer(ROWS * N_ENVS, SPACE, BUTTONS, n_envs=N_ENVS, device="cpu", **options)


def filled(n_steps: int, **options: Any) -> CompressedReplayBuffer:
    """Return such a buffer with the first steps."""
    buffer = new_buffer(**options)
    for number in range(1, n_steps + 1):
        add_step(buffer, number)
    return buffer


def newest(buffer: Any) -> int:
    """Return the number of the newest step in a buffer, 0 if there is none; the first is 1."""
    return int(buffer.rewards[(buffer.pos - 1) % ROWS, 0]) if buffer.size() else 0


def hold_that_it_is_whole(buffer: Any) -> int:
    """Compare the content of a buffer with the steps that were added; return the number of the last one."""
    last = newest(buffer)
    n_rows = min(last, ROWS)
    assert (buffer.pos, buffer.full) == (last % ROWS, last >= ROWS)
    for number in range(last - n_rows + 1, last + 1):
        row = (number - 1) % ROWS
        assert (buffer.rewards[row] == number).all(), (number, buffer.rewards[row])
        assert (buffer.actions[row] == number % 1000).all()
        is_end = (number + 1) % EPISODE == 0
        assert (buffer.dones[row] == is_end).all()
        assert (buffer.timeouts[row] == number % 2).all()
        np.testing.assert_array_equal(buffer.observations[row], observation(number))
        np.testing.assert_array_equal(buffer.next_observations[row], next_observation(number))
    return last


def td_errors(numbers: Any) -> NDArray[np.int64]:
    """Return the TD errors of steps at each flush."""
    errors: NDArray[np.int64] = np.asarray(numbers) % 97 + 1
    return errors


def update_and_flush(buffer: Any) -> None:
    """Set all priorities, and then, after the flush, lose some."""
    last = newest(buffer)
    n_rows = min(last, ROWS)
    numbers = np.repeat(np.arange(last - n_rows, last), N_ENVS)  # of the steps, from 0
    indices = numbers % ROWS * N_ENVS + np.tile(np.arange(N_ENVS), n_rows)
    buffer.update_priorities(indices, td_errors(numbers + 1))
    buffer.flush()
    buffer.update_priorities(indices[::2], np.full(n_rows, 1000.0))


def start(way: str, folder: Path) -> programs.Process:
    """Start the process."""
    code = "import pathlib, sys, writer; writer.main(sys.argv[1], pathlib.Path(sys.argv[2]))"
    return programs.start(code, way, folder)


def main(way: str, folder: Path) -> None:
    """Add or save until killed."""
    CommitWriter.SEGMENT_NBYTES = 30_000  # many segments
    if way == "golden":
        filled(GOLDEN_STEPS, storage=folder).close()
        return
    exists = folder.is_dir() and any(folder.glob("*.log"))
    if way in ("storage", "prioritized"):
        sampler = {} if way == "storage" else {"sampler": "prioritized"}
        buffer = new_buffer(storage=folder, storage_mode="resume" if exists else "create", **sampler)
    else:
        buffer = CompressedReplayBuffer.from_checkpoint(folder, device="cpu") if exists else new_buffer()
        buffer.save_checkpoint(folder)
    number = newest(buffer)
    os.write(1, b"ready %d\n" % number)
    while True:
        for _ in range(STEPS_A_SAVE if way == "checkpoint" else 1):
            number += 1
            add_step(buffer, number)
        if way == "checkpoint":
            buffer.save_checkpoint(folder)
        if way == "prioritized" and number % STEPS_A_SAVE == 0:
            update_and_flush(buffer)
        os.write(1, b"%d\n" % number)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
