"""Import checkpoints of Dopamine's replay buffer, such as the DQN Replay data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed.buffers.replay import CompressedReplayBuffer
from sb3_compressed.buffers.replay_mixin import CompressedReplay
from sb3_compressed.common.paths import user_path
from sb3_compressed.common.progress import progress_bar as shown_progress
from sb3_compressed.datasets.dopamine_files import Checkpoint, checkpoint_numbers, open_checkpoint
from sb3_compressed.errors import StorageError

__all__ = ["import_dopamine"]

#: Frames that are decompressed at a time.
CHUNK_SIZE = 256


def import_dopamine(
    folder: str | PathLike[str],
    buffer: ReplayBuffer | None = None,
    *,
    checkpoints: Sequence[int] | None = None,
    frame_stack: int = 4,
    n_padding: int | None = None,
    n_actions: int | None = None,
    n_steps: int | None = None,
    progress_bar: bool = True,
    **options: Any,
) -> ReplayBuffer:
    """Add the transitions of Dopamine's checkpoint files to a replay buffer, oldest first and in bounded memory.

    The DQN Replay data set (Agarwal et al., 2020, https://arxiv.org/abs/1907.04543) consists of
    such files, 50 checkpoints ``$store$_{observation,action,reward,terminal}_ckpt.N.gz`` of each run. They contain
    single frames; this stacks them into observations ``(frame_stack, height, width)`` as Dopamine does, with zeros
    before the first frame of an episode:

    - The next observation of a transition is the stack of the following frame. The files lack the frame that follows
      a terminal transition; its next observation ends with zeros, as in Dopamine's batches, and is not used by any
      algorithm that respects ``dones``.
    - Rows of zeros that Dopamine writes before each episode are recognized, and not imported as transitions.
    - Each file is a ring, whose position ``add_count_ckpt.N.gz`` contains; without this file, rows are imported in the
      order of the files. Rows that two checkpoints share are imported once, and an episode that continues in the next
      checkpoint stays whole.
    - Where rows are missing, the transitions whose stack or next observation would be incomplete are not imported:
      ``frame_stack - 1`` after the gap, one before. The last transition before a gap, and the last one of all, is
      stored as truncated by a time limit, so that n-step returns do not continue across it.

    >>> import tempfile
    >>> import numpy as np
    >>> from gymnasium import spaces
    >>> from sb3_compressed import CompressedReplayBuffer
    >>> from sb3_compressed.datasets import export_dopamine, import_dopamine
    >>> buffer = CompressedReplayBuffer(100, spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6))
    >>> frames = np.zeros((15, 84, 84), np.uint8)
    >>> for step in range(10):
    ...     stacks = frames[None, step : step + 4], frames[None, step + 1 : step + 5]
    ...     buffer.add(*stacks, np.array([5]), np.array([1.0]), np.array([step == 4]), [{}])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     numbers = export_dopamine(buffer, folder, progress_bar=False)
    ...     imported = import_dopamine(folder, progress_bar=False)
    >>> numbers, imported.size(), imported.action_space
    ([0], 10, Discrete(6))

    :param folder: the folder with the files, all of one run
    :param buffer: a buffer of one environment; ``None`` for a new :class:`~sb3_compressed.CompressedReplayBuffer` with
        space for all transitions
    :param checkpoints: numbers of the checkpoints to import, ascending; ``None`` for all
    :param frame_stack: number of frames of an observation
    :param n_padding: rows of zeros before each episode, which is one less than the stack size of the agent that wrote
        the files; ``None`` for ``frame_stack - 1``
    :param n_actions: number of actions of the game; ``None`` for the largest one in the files, plus one
    :param n_steps: number of transitions after which to stop; ``None`` for all
    :param progress_bar: whether to show a progress bar
    :param options: further arguments of the new buffer, such as ``storage=<folder>``
    :return: the buffer
    :raises CheckpointNotFound: if there are no such files, or one of a checkpoint is missing; the message names it
    :raises CorruptStorage: if a file is damaged. A wrong checksum is found at the end of the file, when its transitions
        have been added already
    :raises StorageError: if the files do not fit together
    :raises ValueError: if the buffer has other spaces, or several environments
    """
    path = user_path(folder)
    for name, value, minimum in (("frame_stack", frame_stack, 1), ("n_padding", n_padding, 0), ("n_steps", n_steps, 1)):
        if value is not None and value < minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {value}")
    numbers = checkpoint_numbers(path) if checkpoints is None else sorted(set(checkpoints))
    segments = _segments([open_checkpoint(path, number) for number in numbers])
    n_rows = sum(segment.n_rows for segment in segments)
    if not n_rows:
        raise StorageError(f"{path} contains no transitions")
    used = _count_actions(segments, n_actions)
    if buffer is None:
        observation_space = spaces.Box(0, 255, (frame_stack, *segments[0].checkpoint.frame_shape), np.uint8)
        buffer_size = options.pop("buffer_size", min(n_rows, n_steps or n_rows))
        buffer = CompressedReplayBuffer(buffer_size, observation_space, spaces.Discrete(n_actions or used), **options)
    else:
        _require_fitting(buffer, (frame_stack, *segments[0].checkpoint.frame_shape), used)
    n_padding = frame_stack - 1 if n_padding is None else n_padding
    adder = _Adder(buffer, frame_stack, segments[0].checkpoint.frame_shape, _chunk_size(n_padding), n_steps)
    with shown_progress(n_rows, "importing", is_shown=progress_bar) as advance:
        for rows in _read(segments, n_padding):
            for part in _episode_parts(rows, n_padding):
                adder.add(part)
                if adder.is_done:
                    return buffer
            advance(len(rows.frames))
    return buffer


@dataclass(frozen=True)
class Segment:
    """The rows of a checkpoint that precede no other and were not in an earlier one.

    :param checkpoint: the checkpoint
    :param first: its first row that was not in an earlier checkpoint
    :param begins_episode: whether this row is the first one of the run
    :param continues: whether it follows the last row of the previous segment
    :param is_continued: whether the next segment continues this one
    """

    checkpoint: Checkpoint
    first: int
    begins_episode: bool
    continues: bool
    is_continued: bool = False

    @property
    def n_rows(self) -> int:
        return self.checkpoint.n_rows - self.first


def _segments(checkpoints: Sequence[Checkpoint]) -> list[Segment]:
    """Return the rows of all checkpoints without those that an earlier one contains already."""
    segments: list[Segment] = []
    previous: Checkpoint | None = None
    for found in checkpoints:
        if found.frame_shape != checkpoints[0].frame_shape:
            raise StorageError(
                f"{found.path('observation')} has frames of shape {found.frame_shape}, but checkpoint "
                f"{checkpoints[0].number} has frames of shape {checkpoints[0].frame_shape}"
            )
        checkpoint = _with_total_count(found, previous)
        first, continues = 0, False
        if previous is not None and checkpoint.add_count is not None and previous.add_count is not None:
            n_shared = previous.add_count - (checkpoint.add_count - checkpoint.n_rows)
            if 0 <= n_shared <= previous.n_rows and _share_rows(previous, checkpoint, n_shared):
                first, continues = n_shared, True
            else:  # rows are missing in between, or it is of another run
                checkpoint = found
        if continues:
            segments[-1] = replace(segments[-1], is_continued=True)
        is_first = checkpoint.add_count is not None and checkpoint.add_count <= checkpoint.capacity
        segments.append(Segment(checkpoint, first, is_first and not continues, continues))
        previous = checkpoint
    return segments


def _with_total_count(checkpoint: Checkpoint, previous: Checkpoint | None) -> Checkpoint:
    """Return the last checkpoint of a run with the number of all rows that were added.

    ``log_final_buffer`` of https://github.com/google-research/batch_rl, which wrote the data set, stores the position
    in the ring instead.
    """
    if previous is None or previous.add_count is None or checkpoint.add_count is None:
        return checkpoint
    n_missing = previous.add_count - checkpoint.add_count
    if n_missing <= 0:
        return checkpoint
    laps = -(-n_missing // checkpoint.capacity)
    return replace(checkpoint, add_count=checkpoint.add_count + laps * checkpoint.capacity)


def _share_rows(previous: Checkpoint, checkpoint: Checkpoint, n_shared: int) -> bool:
    """Return whether a checkpoint begins with the last rows of the previous one."""
    if not n_shared:
        return True
    if n_shared > checkpoint.n_rows:
        return False
    return all(
        np.array_equal(previous.column(name)[-n_shared:], checkpoint.column(name)[:n_shared])
        for name in ("action", "reward", "terminal")
    )


def _count_actions(segments: Sequence[Segment], n_actions: int | None) -> int:
    """Return the largest action plus one."""
    used = 0
    for segment in segments:
        actions = segment.checkpoint.column("action")
        if not len(actions):
            continue
        low, high = int(actions.min()), int(actions.max())
        if low < 0 or (n_actions is not None and high >= n_actions):
            limit = "" if n_actions is None else f" to {n_actions - 1}"
            value = low if low < 0 else high
            raise StorageError(
                f"{segment.checkpoint.path('action')} contains action {value}, expected 0{limit or ' or more'}"
            )
        used = max(used, high + 1)
    return used


def _require_fitting(buffer: ReplayBuffer, shape: tuple[int, ...], n_actions: int) -> None:
    space, actions = buffer.observation_space, buffer.action_space
    fits = isinstance(space, spaces.Box) and space.shape == shape and space.dtype == np.uint8
    if buffer.n_envs != 1 or not fits or not isinstance(actions, spaces.Discrete) or actions.n < n_actions:
        raise ValueError(
            f"the buffer must have n_envs=1, uint8 observations of shape {shape} and at least {n_actions} discrete "
            f"actions, got n_envs={buffer.n_envs}, {space} and {actions}"
        )


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of the files, or of one episode.

    :param frames: ``(n_rows, height, width)``
    :param actions: ``(n_rows,)``
    :param rewards: ``(n_rows,)``
    :param terminals: ``(n_rows,)``
    :param begins_episode: whether the first row is known to begin an episode
    :param continues: whether the rows follow the previous ones
    :param is_continued: whether further rows follow
    """

    frames: NDArray[np.uint8]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    terminals: NDArray[np.bool_]
    begins_episode: bool
    continues: bool
    is_continued: bool

    def part(self, first: int, last: int, *, begins_episode: bool) -> Rows:
        """Return some of the rows."""
        return Rows(
            self.frames[first:last],
            self.actions[first:last],
            self.rewards[first:last],
            self.terminals[first:last],
            begins_episode,
            self.continues or first > 0,
            self.is_continued or last < len(self.frames),
        )


def _read(segments: Sequence[Segment], n_padding: int) -> Iterator[Rows]:
    """Yield all rows in pieces; the first rows of an episode, including its padding, are never split."""
    out = np.empty((_chunk_size(n_padding), *segments[0].checkpoint.frame_shape), np.uint8)
    follows_end = False
    for segment in segments:
        checkpoint = segment.checkpoint
        actions = checkpoint.column("action")[segment.first :].astype(np.int64)
        rewards = checkpoint.column("reward")[segment.first :].astype(np.float32)
        terminals = checkpoint.flags("terminal")[segment.first :]
        bounds = _bounds(terminals, n_padding)
        sizes = np.diff(bounds).tolist()
        begins_episode, continues = segment.begins_episode, segment.continues
        for (first, last), frames in zip(pairwise(bounds), checkpoint.frames(segment.first, sizes, out), strict=True):
            yield Rows(
                frames,
                actions[first:last],
                rewards[first:last],
                terminals[first:last],
                begins_episode or (continues and follows_end),
                continues,
                last < len(terminals) or segment.is_continued,
            )
            begins_episode, continues, follows_end = False, True, bool(terminals[last - 1])


def _chunk_size(n_padding: int) -> int:
    return max(CHUNK_SIZE, n_padding + 1)


def _bounds(terminals: NDArray[np.bool_], n_padding: int) -> list[int]:
    """Return where pieces of rows begin and end: with the padding of an episode, its first frame."""
    bounds = [0]
    while bounds[-1] < len(terminals):
        last = bounds[-1] + _chunk_size(n_padding)
        window = max(last - n_padding - 1, bounds[-1])
        ends = np.flatnonzero(terminals[window:last])
        bounds.append(min(window + int(ends[0]) + 1 if len(ends) else last, len(terminals)))
    return bounds


def _episode_parts(rows: Rows, n_padding: int) -> Iterator[Rows]:
    """Yield the rows of each episode, without padding."""
    bounds = [0, *(np.flatnonzero(rows.terminals[:-1]) + 1).tolist(), len(rows.frames)]
    for first, last in pairwise(bounds):
        is_begin = first > 0 or rows.begins_episode
        may_begin = is_begin or not rows.continues
        if may_begin and last - first > n_padding and _is_padding(rows, first, first + n_padding):
            first, is_begin = first + n_padding, is_begin or n_padding > 0
        yield rows.part(first, last, begins_episode=is_begin)


def _is_padding(rows: Rows, first: int, last: int) -> bool:
    columns = rows.actions, rows.rewards, rows.terminals, rows.frames
    return not any(values[first:last].any() for values in columns)


class _Adder:
    """Stacks frames and adds transitions to a buffer.

    The window contains the frames before the next transition, its own frame, and those that follow; so stacks are
    views.
    """

    def __init__(
        self, buffer: ReplayBuffer, frame_stack: int, frame_shape: tuple[int, ...], chunk_size: int, n_steps: int | None
    ) -> None:
        self.is_done = False
        self._buffer, self._remaining, self._frame_stack = buffer, n_steps, frame_stack
        n = frame_stack + chunk_size + 1  # the frames before, and a frame of zeros at the end of an episode
        self._frames = np.zeros((n, *frame_shape), np.uint8)
        self._actions, self._rewards = np.zeros(n, np.int64), np.zeros(n, np.float32)
        self._n = 0
        self._joint_commit = buffer.joint_commit if isinstance(buffer, CompressedReplay) else nullcontext
        strides = self._frames.strides
        self._stacks = np.lib.stride_tricks.as_strided(
            self._frames,
            (n - frame_stack + 1, 1, frame_stack, *frame_shape),
            (strides[0], 0, *strides),
            writeable=False,
        )

    def add(self, rows: Rows) -> None:
        """Add the transitions of rows of one episode; the last one waits for the next frame."""
        n_before = self._frame_stack - 1
        if rows.begins_episode:
            self._clear(n_before)
        elif not rows.continues:
            self._clear(0)
        first, n = self._n, self._n + len(rows.frames)
        self._frames[first:n] = rows.frames
        self._actions[first:n], self._rewards[first:n] = rows.actions, rows.rewards
        has_ended = bool(rows.terminals[-1])
        if has_ended:
            self._frames[n] = 0
            n += 1
        self._add_until(n - 1, has_ended=has_ended, is_cut=not rows.is_continued)
        self._n = 0 if has_ended else self._keep(n)

    def _clear(self, n_zeros: int) -> None:
        self._frames[:n_zeros] = 0
        self._n = n_zeros

    def _keep(self, n: int) -> int:
        """Move the last frames to the beginning, and return their number."""
        n_kept = min(n, self._frame_stack)
        for values in (self._frames, self._actions, self._rewards):
            values[:n_kept] = values[n - n_kept : n].copy()
        return n_kept

    def _add_until(self, end: int, *, has_ended: bool, is_cut: bool) -> None:
        n_before = self._frame_stack - 1
        if self._remaining is not None:
            n_added = max(end - n_before, 0)
            if n_added >= self._remaining:
                has_ended = has_ended and n_added == self._remaining
                end, is_cut, self.is_done = n_before + self._remaining, True, True
            self._remaining -= min(n_added, self._remaining)
        # A terminal transition is not cut. SB3 takes any end for a terminal one without handle_timeout_termination.
        is_cut = is_cut and not has_ended and self._buffer.handle_timeout_termination
        with self._joint_commit(len(self._frames)):
            self._add_steps(end, has_ended=has_ended, is_cut=is_cut)

    def _add_steps(self, end: int, *, has_ended: bool, is_cut: bool) -> None:
        buffer, stacks, actions, rewards = self._buffer, self._stacks, self._actions, self._rewards
        n_before = self._frame_stack - 1
        going_on, infos = np.zeros(1, np.bool_), [{"TimeLimit.truncated": False}]
        last = end - 1
        for i in range(n_before, end):
            at = i - n_before
            if i == last and (has_ended or is_cut):
                done, infos = np.ones(1, np.bool_), [{"TimeLimit.truncated": is_cut}]
            else:
                done = going_on
            buffer.add(stacks[at], stacks[at + 1], actions[i : i + 1], rewards[i : i + 1], done, infos)
