"""Export replay buffers to d3rlpy: https://github.com/takuseno/d3rlpy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed.common import action_scaling
from sb3_compressed.common.paths import user_path
from sb3_compressed.common.progress import progress_bar as shown_progress
from sb3_compressed.common.spaces import space_parts
from sb3_compressed.common.warning import warn_user
from sb3_compressed.datasets.d3rlpy_episodes import rows_at_a_time
from sb3_compressed.datasets.d3rlpy_files import Description, episode_writer, import_h5py
from sb3_compressed.datasets.trajectory import Trajectory, trajectories

if TYPE_CHECKING:
    import d3rlpy

__all__ = ["export_d3rlpy", "to_d3rlpy"]


def export_d3rlpy(
    buffer: ReplayBuffer,
    path: str | PathLike[str],
    *,
    frame_stack: int | None = None,
    gzip_level: int | None = None,
    unscale_actions: bool = False,
    progress_bar: bool = True,
) -> int:
    """Write the episodes of a replay buffer to an HDF5 file of d3rlpy, in bounded memory.

    ``d3rlpy.dataset.ReplayBuffer.load`` reads the file, and so does :func:`~sb3_compressed.datasets.import_d3rlpy`,
    which restores all transitions, bit for bit, except the last observation of an episode that terminated: d3rlpy takes
    it for zeros. An episode that did not terminate gets a further row with its last observation, an action of zeros and
    a reward of zero, so that d3rlpy has a transition for its last step. d3rlpy does not distinguish episodes that were
    truncated from those that have not ended.

    The parts of Dict observations become those of d3rlpy's tuples, in the order of the space.

    >>> import tempfile
    >>> import numpy as np
    >>> from gymnasium import spaces
    >>> from sb3_compressed import CompressedReplayBuffer
    >>> from sb3_compressed.datasets import export_d3rlpy, import_d3rlpy
    >>> buffer = CompressedReplayBuffer(
    ...     100, spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6)
    ... )
    >>> frames = np.zeros((15, 84, 84), np.uint8)
    >>> for step in range(10):
    ...     stacks = frames[None, step : step + 4], frames[None, step + 1 : step + 5]
    ...     buffer.add(*stacks, np.array([5]), np.array([1.0]), np.array([step == 4]), [{}])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     n_episodes = export_d3rlpy(buffer, f"{folder}/pong.h5", frame_stack=4, progress_bar=False)
    ...     imported = import_d3rlpy(f"{folder}/pong.h5", progress_bar=False)
    >>> n_episodes, imported.size(), imported.action_space
    (2, 10, Discrete(6))

    :param buffer: the buffer; SB3's own buffers work, too
    :param path: a new file
    :param frame_stack: number of frames of the observations, to store each frame once, which takes a fraction of the
        space: pass ``FrameStackTransitionPicker(frame_stack)`` to d3rlpy. ``None`` to store observations as they are.
        Where the ring has overwritten the beginning of an episode, its first ``frame_stack - 1`` observations lose
        their older frames, because d3rlpy takes these for zeros; a warning states how many
    :param gzip_level: compress observations with HDF5's gzip filter at this level, 0 to 9, which d3rlpy reads as well.
        ``None`` for no compression, as in files that d3rlpy writes
    :param unscale_actions: whether to map actions of a Box space from [-1, 1], to which SB3's off-policy algorithms
        scale them, to the range of the space
    :param progress_bar: whether to show a progress bar
    :return: the number of episodes
    :raises ImportError: if h5py is not installed: ``pip install '.[d3rlpy]'``
    :raises StorageError: if the file exists
    :raises OSError: if it cannot be written; 32 MB of the disk stay free, since HDF5 crashes on a full one
    :raises ValueError: if the buffer is empty or has actions that d3rlpy does not support; or, with ``frame_stack``, if
        observations are not stacks of consecutive frames, with zeros before the first one of an episode, which
        ``VecFrameStack`` creates
    """
    import_h5py()
    _validate(buffer, frame_stack)
    if gzip_level is not None and not 0 <= gzip_level <= 9:
        raise ValueError(f"gzip_level must be from 0 to 9, got {gzip_level}")
    space = buffer.observation_space
    description = Description(space, buffer.action_space, frame_stack)
    rows = _RowsOf(buffer, frame_stack, unscale_actions=unscale_actions)
    n_episodes = 0
    with (
        episode_writer(user_path(path), description, gzip_level) as writer,
        shown_progress(buffer.size() * buffer.n_envs, "exporting", is_shown=progress_bar) as advance,
    ):
        for episode in trajectories(buffer):
            write = writer.add(
                rows.parts,
                *rows.actions_and_rewards(episode),
                is_tuple=isinstance(space, spaces.Dict),
                terminated=episode.has_terminated,
            )
            for first, parts in rows.observations(episode):
                write(first, parts)
                advance(min(len(parts[0]), len(episode) - first))
            n_episodes += 1
    rows.warn()
    return n_episodes


def to_d3rlpy(
    buffer: ReplayBuffer, *, frame_stack: int | None = None, unscale_actions: bool = False
) -> d3rlpy.dataset.ReplayBuffer:
    """Return the episodes of a replay buffer as a buffer of d3rlpy, which contains them uncompressed in memory.

    Its episodes are those that :func:`export_d3rlpy` writes, and with ``frame_stack`` it stacks frames on sampling.

    :param buffer: the buffer; SB3's own buffers work, too
    :param frame_stack: as for :func:`export_d3rlpy`
    :param unscale_actions: as for :func:`export_d3rlpy`
    :raises ImportError: if d3rlpy is not installed: ``pip install d3rlpy``
    :raises ValueError: as for :func:`export_d3rlpy`
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of gym, which d3rlpy imports
            from d3rlpy import dataset
            from d3rlpy.constants import ActionSpace
    except ImportError as error:
        raise ImportError(f"d3rlpy cannot be imported: {error}; pip install d3rlpy") from error
    _validate(buffer, frame_stack)
    rows = _RowsOf(buffer, frame_stack, unscale_actions=unscale_actions)
    episodes = []
    for each in trajectories(buffer):
        actions, rewards = rows.actions_and_rewards(each)
        parts = [np.empty((len(actions), *shape), dtype) for shape, dtype in rows.parts]
        for first, some in rows.observations(each):
            for part, values in zip(parts, some, strict=True):
                part[first : first + len(values)] = values
        observations = parts if isinstance(buffer.observation_space, spaces.Dict) else parts[0]
        episodes.append(dataset.Episode(observations, actions, rewards, each.has_terminated))
    rows.warn()
    space, stacks = buffer.action_space, frame_stack or 1
    is_discrete = isinstance(space, spaces.Discrete)
    return dataset.ReplayBuffer(
        dataset.InfiniteBuffer(),
        episodes=episodes,
        transition_picker=dataset.FrameStackTransitionPicker(stacks) if stacks > 1 else None,
        trajectory_slicer=dataset.FrameStackTrajectorySlicer(stacks) if stacks > 1 else None,
        # Otherwise it would take continuous actions that happen to be integers for discrete ones.
        action_space=ActionSpace.DISCRETE if is_discrete else ActionSpace.CONTINUOUS,
        action_size=int(space.n if is_discrete else np.prod(space.shape or ())),  # type: ignore[attr-defined]
    )


def _validate(buffer: ReplayBuffer, frame_stack: int | None) -> None:
    if not buffer.size():
        raise ValueError("cannot export an empty buffer; add transitions first")
    actions = buffer.action_space
    if not isinstance(actions, spaces.Box) and not (isinstance(actions, spaces.Discrete) and actions.start == 0):
        raise ValueError(f"d3rlpy supports continuous actions, and discrete ones that start at 0, got {actions}")
    if frame_stack is None:
        return
    if frame_stack < 1:
        raise ValueError(f"frame_stack must be at least 1, got {frame_stack}")
    for space in space_parts(buffer.observation_space).values():
        if not space.shape or space.shape[0] % frame_stack:
            raise ValueError(
                f"the first axis of observations must consist of {frame_stack} stacked frames, got {space}: pass "
                "frame_stack=None to store observations as they are"
            )


class _RowsOf:
    """The rows of d3rlpy's episodes for those of a buffer.

    :param parts: shape and dtype of each part of an observation
    """

    def __init__(self, buffer: ReplayBuffer, frame_stack: int | None, *, unscale_actions: bool) -> None:
        self._space, self._action_space = buffer.observation_space, buffer.action_space
        self._n_frames, self._unscale, self._n_without_history = frame_stack or 1, unscale_actions, 0
        self.parts: list[tuple[tuple[int, ...], np.dtype[Any]]] = []
        for space in space_parts(self._space).values():
            shape = space.shape or (1,)  # d3rlpy has no single numbers
            if self._n_frames > 1:
                shape = shape[0] // self._n_frames, *shape[1:]
            self.parts.append((shape, np.dtype(space.dtype)))

    def actions_and_rewards(self, episode: Trajectory) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Return actions ``(n_rows, *action_shape)`` and rewards ``(n_rows, 1)``, with zeros in a further row."""
        actions = episode.actions
        if self._unscale:
            actions = action_scaling.unscale_actions(actions, self._action_space)
        rows = actions.reshape(len(episode), *(self._action_space.shape or (1,))), episode.rewards.reshape(-1, 1)
        if episode.has_terminated:
            return rows
        return np.concatenate([rows[0], np.zeros_like(rows[0][:1])]), np.pad(rows[1], ((0, 1), (0, 0)))

    def observations(self, episode: Trajectory) -> Iterator[tuple[int, list[NDArray[Any]]]]:
        """Yield the rows of observations in pieces, each with the number of its first row.

        :raises ValueError: if observations are not stacks of frames
        """
        nbytes = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in self.parts)
        n_at_a_time = rows_at_a_time(nbytes * self._n_frames)
        first = 0
        for part, is_last in episode.parts(n_at_a_time):
            decoded = part.observations
            observations = [decoded[key] for key in self._space] if isinstance(self._space, spaces.Dict) else [decoded]
            n = len(part.rewards) + (is_last and not episode.has_terminated)
            flat = [each[:n].reshape(n, -1) for each in observations]
            if self._n_frames > 1:
                # The first observation of the next part also has to follow.
                n_stacks = n + (not is_last)
                stacks = [each[:n_stacks].reshape(n_stacks, self._n_frames, -1) for each in observations]
                self._validate_stacks(stacks, episode, is_first=first == 0)
                flat = [each[:n, -1] for each in stacks]
            yield first, [rows.reshape(n, *shape) for rows, (shape, _) in zip(flat, self.parts, strict=True)]
            first += n

    def _validate_stacks(self, parts: list[NDArray[Any]], episode: Trajectory, *, is_first: bool) -> None:
        """Raise if observations ``(n, n_frames, frame_size)`` do not follow from their newest frames."""
        for stacks in parts:
            if stacks[1:, :-1].tobytes() != stacks[:-1, 1:].tobytes():
                raise ValueError(
                    f"environment {episode.env} has observations that are not stacks of {self._n_frames} consecutive "
                    "frames: pass frame_stack=None to store them as they are"
                )
        if not is_first or not any(stacks[0, :-1].view(np.uint8).any() for stacks in parts):
            return
        if episode.has_begin:
            raise ValueError(
                f"environment {episode.env} has an episode whose first observation contains earlier frames, which must "
                "be zeros for d3rlpy: pass frame_stack=None to store observations as they are"
            )
        self._n_without_history += min(self._n_frames - 1, len(episode))

    def warn(self) -> None:
        """Warn if observations lost frames."""
        if self._n_without_history:
            warn_user(
                f"{self._n_without_history} observations lose their older frames, because the ring has overwritten the "
                "beginning of these episodes, and d3rlpy has zeros there; frame_stack=None stores them"
            )
