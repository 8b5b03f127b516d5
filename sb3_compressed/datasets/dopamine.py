"""Import checkpoints of Dopamine's replay buffer, such as the DQN Replay data set."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, pairwise
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed.buffers.replay import CompressedReplayBuffer
from sb3_compressed.common.paths import user_path
from sb3_compressed.common.progress import progress_bar as shown_progress
from sb3_compressed.datasets.dopamine_files import Checkpoint, checkpoint_numbers, open_checkpoint
from sb3_compressed.datasets.import_target import import_target
from sb3_compressed.errors import StorageError

__all__ = ["import_dopamine"]

#: Frames that are decompressed at a time, and transitions that are added at a time.
CHUNK_SIZE = 64


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

    >>> import gzip
    >>> import tempfile
    >>> import numpy as np
    >>> from sb3_compressed.datasets import import_dopamine
    >>> rows = {
    ...     "observation": np.ones((10, 84, 84), np.uint8),
    ...     "action": np.full(10, 5, np.int32),
    ...     "reward": np.ones(10, np.float32),
    ...     "terminal": np.arange(10) % 5 == 4,
    ... }
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, values in rows.items():
    ...         with gzip.open(f"{folder}/$store$_{name}_ckpt.0.gz", "wb") as file:
    ...             np.save(file, values)
    ...     buffer = import_dopamine(folder, progress_bar=False)
    >>> buffer.size(), buffer.observation_space.shape, buffer.action_space
    (7, (4, 84, 84), Discrete(6))

    :param folder: the folder with the files, all of one run
    :param buffer: a buffer of one environment; ``None`` for a new :class:`~sb3_compressed.CompressedReplayBuffer` with
        space for all transitions
    :param checkpoints: numbers of the checkpoints to import, ascending; ``None`` for all
    :param frame_stack: number of frames of an observation
    :param n_padding: rows of zeros before each episode, which is one less than the stack size of the agent that wrote
        the files; ``None`` for ``frame_stack - 1``
    :param n_actions: number of actions of the game; ``None`` for that of the buffer, or for the largest one in the
        files, plus one
    :param n_steps: number of transitions after which to stop; ``None`` for all
    :param progress_bar: whether to show a progress bar
    :param options: further arguments of the new buffer, such as ``storage=<folder>``
    :return: the buffer
    :raises CheckpointNotFound: if there are no such files, or one of a checkpoint is missing; the message names it
    :raises CorruptStorage: if a file is damaged. A wrong checksum is found at the end of the file, when its transitions
        have been added to ``buffer`` already
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
    if buffer is not None and isinstance(buffer.action_space, spaces.Discrete):
        n_actions = n_actions or int(buffer.action_space.n)
    n_used = _count_actions(segments, n_actions)
    action_space = spaces.Discrete(n_actions or n_used)
    observation_space = spaces.Box(0, 255, (frame_stack, *segments[0].checkpoint.frame_shape), np.uint8)
    buffer_size = min(n_rows, n_steps or n_rows)
    with (
        import_target(
            buffer, CompressedReplayBuffer, buffer_size, observation_space, action_space, **options
        ) as target,
        shown_progress(n_rows, "importing", is_shown=progress_bar) as advance,
    ):
        rows = _without_padding(_read(segments, advance), frame_stack - 1 if n_padding is None else n_padding)
        steps = _steps(_stacked(rows, frame_stack), n_steps, marks_cuts=target.handle_timeout_termination)
        while part := [*islice(steps, CHUNK_SIZE)]:
            target.extend(*zip(*part, strict=True))
    return target


class Segment(NamedTuple):
    """The rows of a checkpoint that were not in an earlier one.

    :param checkpoint: the checkpoint
    :param first: its first row that was not in an earlier checkpoint
    :param begins: whether this row is the first one of the run
    :param continues: whether it follows the last row of the previous segment
    """

    checkpoint: Checkpoint
    first: int
    begins: bool
    continues: bool

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
            if 0 <= n_shared <= min(previous.n_rows, checkpoint.n_rows):
                first, continues = n_shared, True
            else:  # rows are missing in between
                checkpoint = found
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


class Row(NamedTuple):
    """A row of the files.

    :param frame: ``(height, width)``
    :param begins: whether it is known to begin an episode
    :param continues: whether it follows the previous row
    """

    frame: NDArray[np.uint8]
    action: int
    reward: float
    is_terminal: bool
    begins: bool
    continues: bool

    @property
    def may_be_padding(self) -> bool:
        return not (self.action or self.reward or self.is_terminal or self.frame.any())


def _read(segments: Sequence[Segment], advance: Callable[[int], None]) -> Iterator[Row]:
    """Yield all rows."""
    for checkpoint, first, begins, continues in segments:
        actions, rewards = checkpoint.column("action")[first:], checkpoint.column("reward")[first:]
        columns = zip(actions, rewards, checkpoint.terminals()[first:], strict=True)
        for frames in checkpoint.frames(first, CHUNK_SIZE):
            for frame, row in zip(frames, columns):  # the frames end first
                yield Row(frame, *row, begins, continues)
                begins, continues = False, True
            advance(len(frames))


def _without_padding(rows: Iterable[Row], n_padding: int) -> Iterator[Row]:
    """Yield the rows of episodes; they begin after ``n_padding`` rows of zeros, or after a terminal one."""
    padding: list[Row] = []
    follows_end = False
    for row in rows:
        if not row.continues:
            yield from padding
            padding = []
        elif follows_end:
            row = row._replace(begins=True)
        if padding or row.begins or not row.continues:
            if len(padding) < n_padding and row.may_be_padding:
                padding.append(row)
                follows_end = False
                continue
            if len(padding) == n_padding > 0:
                padding, row = [], row._replace(begins=True)
            yield from padding
            padding = []
        yield row
        follows_end = row.is_terminal
    yield from padding


class Transition(NamedTuple):
    """The row of a step, with the stacks ``(1, frame_stack, height, width)`` before and after it.

    :param follows: whether it follows the previous transition
    """

    obs: NDArray[np.uint8]
    next_obs: NDArray[np.uint8]
    row: Row
    follows: bool


def _stacked(rows: Iterable[Row], frame_stack: int) -> Iterator[Transition]:
    """Yield the transitions that have all their frames; those of a terminal one end with zeros."""
    frames: deque[NDArray[np.uint8]] = deque(maxlen=frame_stack)
    obs: NDArray[np.uint8] | None = None
    previous, follows = None, False
    for row in rows:
        if row.begins or not row.continues:
            frames.clear()
            frames.extend([np.zeros_like(row.frame)] * (frame_stack - 1) * row.begins)
            obs, follows = None, False
        frames.append(row.frame)
        next_obs = _stack(frames) if len(frames) == frame_stack else None
        if obs is not None and next_obs is not None and previous is not None:
            yield Transition(obs, next_obs, previous, follows)
            follows = True
        if row.is_terminal and next_obs is not None:
            frames.append(np.zeros_like(row.frame))
            yield Transition(next_obs, _stack(frames), row, follows)
        obs, previous = next_obs, row


def _stack(frames: Collection[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    return np.concatenate([*frames]).reshape(1, len(frames), *next(iter(frames)).shape)  # np.stack takes longer


def _steps(transitions: Iterable[Transition], n_steps: int | None, *, marks_cuts: bool) -> Iterator[tuple[Any, ...]]:
    """Yield up to ``n_steps`` transitions as arguments of ``ReplayBuffer.add``.

    :param marks_cuts: whether one that is followed by no other is truncated. SB3 takes any end for a terminal one
        without ``handle_timeout_termination``
    """
    for step, following in pairwise(chain(islice(transitions, n_steps), [None])):
        assert step is not None
        is_last = following is None or not following.follows
        is_cut = is_last and marks_cuts and not step.row.is_terminal
        actions, rewards = np.array([step.row.action], np.int64), np.array([step.row.reward], np.float32)
        dones = np.array([step.row.is_terminal or is_cut])
        yield step.obs, step.next_obs, actions, rewards, dones, [{"TimeLimit.truncated": is_cut}]
