"""Export replay buffers as checkpoints of Dopamine's replay buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed.common.paths import user_path
from sb3_compressed.common.progress import progress_bar as shown_progress
from sb3_compressed.datasets.dopamine_files import checkpoint_path, npy_writer
from sb3_compressed.datasets.trajectory import Trajectory, trajectories
from sb3_compressed.errors import StorageError

__all__ = ["export_dopamine"]

#: The arrays of a checkpoint with one element for each row.
COLUMNS = {"observation": np.uint8, "action": np.int32, "reward": np.float32, "terminal": np.uint8}
#: The names of all files of checkpoints.
CHECKPOINTS = "*_ckpt.*.gz"
#: Steps that are decoded at a time.
CHUNK_SIZE = 512


def export_dopamine(buffer: ReplayBuffer, folder: str | PathLike[str], *, progress_bar: bool = True) -> list[int]:
    """Write a replay buffer as checkpoints in Dopamine's format, in bounded memory.

    :func:`import_dopamine` restores all transitions, bit for bit, except the last observation of an episode that
    terminated, which the format does not contain. Dopamine's ``OutOfGraphReplayBuffer.load`` reads the checkpoints; its
    ``replay_capacity`` must be the number of rows of their files.

    The format has no flag for truncated episodes. So each checkpoint contains consecutive episodes of one environment
    up to one that was truncated or has not ended; there are as many checkpoints as such episodes.

    :param buffer: the buffer, with observations ``(frame_stack, height, width)`` or ``(height, width, frame_stack)`` of
        uint8, and discrete actions; SB3's own buffers work, too
    :param folder: a folder without checkpoints; it is created if necessary
    :param progress_bar: whether to show a progress bar
    :return: the numbers of the checkpoints
    :raises StorageError: if the folder contains checkpoints already; nothing is left of an export that fails
    :raises ValueError: if the buffer is empty, has other spaces, or its observations are not stacks of consecutive
        frames with zeros before the first one of an episode, which ``VecFrameStack`` creates
    """
    space, path = buffer.observation_space, user_path(folder)
    shape = space.shape or ()
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(shape) != 3 or np.argmin(shape) == 1:
        raise ValueError(f"Dopamine's format contains stacks of grayscale frames of uint8, got {space}")
    if not isinstance(buffer.action_space, spaces.Discrete):
        raise ValueError(f"Dopamine's format contains discrete actions, got {buffer.action_space}")
    if not buffer.size():
        raise ValueError("cannot export an empty buffer; add transitions first")
    is_new = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    if found := next(path.glob(CHECKPOINTS), None):
        raise StorageError(f"{path} contains checkpoints already, such as {found.name}")
    try:
        return _write_checkpoints(buffer, path, progress_bar=progress_bar)
    except BaseException:  # a part of the checkpoints would pass for all, and prevent the next attempt
        for file in path.glob(CHECKPOINTS):
            file.unlink(missing_ok=True)
        if is_new:
            with suppress(OSError):  # something else is in it by now
                path.rmdir()
        raise


def _write_checkpoints(buffer: ReplayBuffer, path: Path, *, progress_bar: bool) -> list[int]:
    """Write the checkpoints of a buffer to a folder without any, and return their numbers."""
    add_count, numbers = 0, []
    with shown_progress(buffer.size() * buffer.n_envs, "exporting", is_shown=progress_bar) as advance:
        for number, run in enumerate(_runs(buffer)):
            history = _frames_first(run[0].part(0, 1).observations)[0, :-1]
            n_rows = sum(len(history) + len(episode) + (not episode.has_terminated) for episode in run)
            # Unless the first row begins a run, the count is that of a ring that has overwritten earlier rows.
            add_count = (add_count // n_rows + 2) * n_rows if add_count or history.any() else n_rows
            with ExitStack() as files:
                shapes = (n_rows, *history.shape[1:]), (n_rows,), (n_rows,), (n_rows,)
                writers = [
                    files.enter_context(npy_writer(checkpoint_path(path, name, number), shape, dtype))
                    for (name, dtype), shape in zip(COLUMNS.items(), shapes, strict=True)
                ]
                for episode in run:
                    _write_episode(episode, writers, advance, may_have_history=episode is run[0])
            _write_counters(path, number, add_count, n_rows, frame_stack=len(history) + 1)
            numbers.append(number)
    return numbers


def _runs(buffer: ReplayBuffer) -> Iterator[list[Trajectory]]:
    """Yield episodes of one environment that follow each other; all but the last one terminated."""
    run: list[Trajectory] = []
    for episode in trajectories(buffer):
        if run and (episode.env != run[-1].env or not run[-1].has_terminated):
            yield run
            run = []
        run.append(episode)
    yield run


def _frames_first(observations: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return stacked observations as ``(n, frame_stack, height, width)``."""
    return observations if np.argmin(observations.shape[1:]) == 0 else np.moveaxis(observations, -1, 1)


def _write_episode(
    episode: Trajectory,
    writers: Sequence[Callable[[Any], object]],
    advance: Callable[[int], None],
    *,
    may_have_history: bool,
) -> None:
    """Write the frames before the first step, each step, and the next frame of an episode that has not terminated.

    :raises ValueError: if the observations are not stacks of consecutive frames, with zeros before the first one
        unless there may be a history
    """

    def write(*columns: Any) -> None:
        for append, values in zip(writers, columns, strict=True):
            append(values)

    is_first = True
    for part, is_last in episode.parts(CHUNK_SIZE):
        stacks, n_steps = _frames_first(part.observations), len(part.rewards)
        has_terminated = is_last and bool(part.terminations[-1])
        if has_terminated:
            stacks = stacks[:-1]
        if not np.array_equal(stacks[1:, :-1], stacks[:-1, 1:]):
            raise ValueError(
                f"environment {episode.env} has observations that are not stacks of consecutive frames, which "
                "Dopamine's format contains"
            )
        if is_first:
            history, is_first = stacks[0, :-1], False
            if history.any() and not may_have_history:
                raise ValueError(
                    f"environment {episode.env} has an episode whose first observation contains earlier frames, "
                    "which must be zeros in Dopamine's format"
                )
            write(history, *[np.zeros(len(history))] * 3)
        write(stacks[:n_steps, -1], part.actions, part.rewards, part.terminations)
        if is_last and not has_terminated:
            write(stacks[-1:, -1], [0], [0], [0])
        advance(n_steps)


def _write_counters(path: Path, number: int, add_count: int, n_rows: int, frame_stack: int) -> None:
    """Write the number of rows ever added, and the rows around the ring's position, which Dopamine does not sample."""
    invalid = (add_count - 1 + np.arange(frame_stack + 1)) % n_rows  # for an update horizon of one step
    for name, values in (("add_count", np.array(add_count)), ("invalid_range", invalid)):
        with npy_writer(checkpoint_path(path, name, number), values.shape, np.int64) as append:
            append(values)
