"""Import episodes of d3rlpy, a library for offline reinforcement learning: https://github.com/takuseno/d3rlpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed.buffers.replay import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_compressed.common import action_scaling
from sb3_compressed.common.paths import user_path
from sb3_compressed.common.progress import progress_bar as shown_progress
from sb3_compressed.common.spaces import Key, space_parts, unbounded_space
from sb3_compressed.datasets.d3rlpy_episodes import (
    EpisodeSource,
    Rows,
    StoredEpisode,
    episodes_in_memory,
    rows_at_a_time,
)
from sb3_compressed.datasets.d3rlpy_files import (
    MAX_FRAME_STACK,
    Description,
    open_file,
    read_description,
    read_episodes,
)
from sb3_compressed.datasets.import_target import import_target
from sb3_compressed.datasets.trajectory import TrajectoryPart, add_steps
from sb3_compressed.errors import StorageError

__all__ = ["import_d3rlpy"]

#: More discrete actions are assumed to be a mistake, unless their number is passed.
MAX_N_ACTIONS = 1 << 20

Part = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of a part of the observations."""


def import_d3rlpy(
    source: Any,
    buffer: ReplayBuffer | None = None,
    *,
    frame_stack: int | None = None,
    keys: Sequence[str] | None = None,
    n_actions: int | None = None,
    action_range: tuple[float, float] | None = None,
    scale_actions: bool = False,
    n_steps: int | None = None,
    progress_bar: bool = True,
    **options: Any,
) -> ReplayBuffer:
    """Add the transitions of d3rlpy's episodes to a replay buffer, in bounded memory.

    The buffer contains the transitions that d3rlpy's ``BasicTransitionPicker`` returns, or with ``frame_stack`` its
    ``FrameStackTransitionPicker``, in the order of the episodes:

    - The next observation of a transition that terminated an episode consists of zeros, since episodes do not contain
      the observation after their last step. Algorithms that respect ``dones`` do not use it.
    - The last step of an episode that did not terminate, for example because of a time limit, has no next observation,
      and is no transition. The one before it is stored as truncated.
    - Rewards are stored as float32, as SB3 does.

    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> from sb3_compressed.datasets import import_d3rlpy
    >>> episode = SimpleNamespace(  # of d3rlpy.dataset.Episode
    ...     observations=np.zeros((5, 1, 84, 84), np.uint8),
    ...     actions=np.array([[0], [3], [1], [2], [0]]),
    ...     rewards=np.zeros((5, 1), np.float32),
    ...     terminated=True,
    ... )
    >>> buffer = import_d3rlpy([episode], frame_stack=4, progress_bar=False)
    >>> buffer.size(), buffer.observation_space.shape, buffer.action_space
    (5, (4, 84, 84), Discrete(4))

    :param source: the path of a file that ``ReplayBuffer.dump`` of d3rlpy or
        :func:`~sb3_compressed.datasets.export_d3rlpy` wrote; or a ``d3rlpy.dataset.ReplayBuffer``
        in memory, or a sequence of episodes
    :param buffer: a buffer of one environment; ``None`` for a new compressed buffer with space for all transitions
    :param frame_stack: number of frames of an observation, if episodes contain single frames ``(channels, ...)``;
        zeros precede the first one of an episode. By default the number in a file of ``export_d3rlpy``, otherwise 1
    :param keys: keys of a Dict space for the parts of tuples. By default those of the buffer or in a file of
        ``export_d3rlpy``, otherwise ``observation_0``, ``observation_1``...
    :param n_actions: number of discrete actions. By default the number in a file of ``export_d3rlpy``, otherwise the
        largest action plus one. Integers are discrete actions, and so are floats if this is passed
    :param action_range: lowest and highest value of continuous actions. By default the range in a file of
        ``export_d3rlpy``, otherwise (-1, 1)
    :param scale_actions: whether to map continuous actions from the range of their space to [-1, 1], as SB3's
        off-policy algorithms store them
    :param n_steps: number of transitions after which to stop; ``None`` for all
    :param progress_bar: whether to show a progress bar
    :param options: further arguments of the new buffer, such as ``storage=<folder>``
    :return: the buffer
    :raises ImportError: if h5py is not installed: ``pip install '.[d3rlpy]'``
    :raises CheckpointNotFound: if there is no such file
    :raises CorruptStorage: if it is damaged; only compressed observations have checksums
    :raises StorageError: if d3rlpy did not write it, or there are no transitions
    :raises TypeError: if the source is of another kind
    :raises ValueError: if the buffer has other spaces, or several environments; if episodes differ in their shapes; or
        if actions are outside their range
    """
    for name, value in (("frame_stack", frame_stack), ("n_actions", n_actions), ("n_steps", n_steps)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if frame_stack is not None and frame_stack > MAX_FRAME_STACK:
        raise ValueError(f"frame_stack must be at most {MAX_FRAME_STACK}, got {frame_stack}")
    with _open(source) as (episodes, description):
        content = _examine(episodes)
        given = _Spaces(content, description, frame_stack, keys, n_actions, action_range)
        n_all = min(content.n_transitions, n_steps or content.n_transitions)
        if buffer is not None:
            given.require_fitting(buffer)
        with import_target(buffer, _new_buffer, given, n_all, scale_actions=scale_actions, **options) as target:
            reader = _Reader(target, given.names(target.observation_space), given.frame_stack, scale=scale_actions)
            with shown_progress(n_all, "importing", is_shown=progress_bar) as advance:
                for steps in reader.steps(episodes, n_all):
                    add_steps(target, steps)
                    advance(len(steps.rewards))
    return target


def _new_buffer(given: _Spaces, n_steps: int, *, scale_actions: bool, **options: Any) -> ReplayBuffer:
    """Return a buffer for the spaces of a data set, with room for a number of transitions by default."""
    observation_space, action_space = given.observation_space(), given.action_space()
    if scale_actions:
        _require_bounds(action_space)
    cls = CompressedDictReplayBuffer if isinstance(observation_space, spaces.Dict) else CompressedReplayBuffer
    return cls(options.pop("buffer_size", n_steps), observation_space, action_space, **options)


@contextmanager
def _open(source: Any) -> Iterator[tuple[EpisodeSource, Description | None]]:
    if not isinstance(source, str | PathLike):
        yield episodes_in_memory(source), None
        return
    path = user_path(source)
    with open_file(path) as file:
        episodes = read_episodes(file, path)
        first = next(iter(episodes), None)
        yield episodes, None if first is None else read_description(file, path, first)


# -- spaces -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Content:
    """What all episodes have in common.

    :param parts: shape and dtype of each part of the observations
    :param is_tuple: whether they are tuples
    :param actions: shape and dtype of actions
    :param low: the lowest value in all actions
    :param high: the highest one
    :param n_transitions: number of transitions
    """

    parts: list[Part]
    is_tuple: bool
    actions: Part
    low: float
    high: float
    n_transitions: int


def _examine(episodes: EpisodeSource) -> _Content:
    """Read all actions, and the shapes of everything else.

    :raises StorageError: if there are no transitions
    :raises ValueError: if episodes differ
    """
    content: _Content | None = None
    for episode in episodes:
        parts = [(rows.shape, rows.dtype) for rows in episode.observations]
        of_episode = parts, episode.is_tuple, (episode.actions.shape or (1,), episode.actions.dtype)
        if content is None:
            content = _Content(*of_episode, np.inf, -np.inf, 0)
        if (content.parts, content.is_tuple, content.actions) != of_episode:
            raise ValueError(
                f"{episode.name} has observations {parts} and actions {of_episode[2]}, but the first episode has "
                f"{content.parts} and {content.actions}"
            )
        if int(np.prod(episode.rewards.shape, dtype=np.int64)) != 1:
            raise ValueError(f"{episode.name} has rewards of shape {episode.rewards.shape}, expected one per step")
        low, high = content.low, content.high
        n_at_a_time = rows_at_a_time(episode.actions.row_nbytes)
        for first in range(0, episode.n_transitions, n_at_a_time):
            used = episode.actions.read(first, min(first + n_at_a_time, episode.n_transitions))
            if used.dtype.kind == "f" and np.isnan(used).any():
                raise ValueError(f"{episode.name} has actions that are not a number (NaN)")
            if used.size:
                low, high = min(low, float(used.min())), max(high, float(used.max()))
        content = _Content(*of_episode, low, high, content.n_transitions + episode.n_transitions)
    if content is None or not content.n_transitions:
        raise StorageError(f"{episodes.name} contains no transitions")
    return content


class _Spaces:
    """The spaces of episodes, from what the caller passed, what an export wrote, and the arrays themselves."""

    def __init__(
        self,
        content: _Content,
        description: Description | None,
        frame_stack: int | None,
        keys: Sequence[str] | None,
        n_actions: int | None,
        action_range: tuple[float, float] | None,
    ) -> None:
        described = None if description is None else description.frame_stack
        self.frame_stack = frame_stack or described or 1
        self._content, self._description, self._keys = content, description, keys
        self._described_space = None if description is None else description.observation_space
        self._n_actions, self._action_range = n_actions, action_range
        if self.frame_stack > 1 and not all(shape for shape, _ in content.parts):
            raise ValueError(f"single numbers cannot be stacked: pass frame_stack=1, got {self.frame_stack}")
        if keys is not None and not content.is_tuple:
            raise ValueError(f"keys are for tuples of observations, got {list(keys)} for single ones")
        if keys is not None and (len(keys) != len(content.parts) or len({*keys}) < len(keys)):
            raise ValueError(f"expected {len(content.parts)} different keys, got {list(keys)}")
        self._parts: list[Part] = [
            ((shape[0] * self.frame_stack, *shape[1:]) if self.frame_stack > 1 else shape, dtype)
            for shape, dtype in content.parts
        ]

    def names(self, space: spaces.Space[Any] | None = None) -> list[Key]:
        """Return the key of each part, ``None`` for a single part without a key.

        :param space: the space of the buffer, if there is one
        """
        if not self._content.is_tuple:
            return [None]
        if self._keys is not None:
            return [*self._keys]
        # The order of the parts is that of the exported space, whatever the order in this one.
        known_spaces = [each for each in (self._described_space, space) if isinstance(each, spaces.Dict)]
        for known in known_spaces:
            if len(known) == len(self._parts) and (space is None or {*known} == {*space_parts(space)}):
                return [*known]
        return [f"observation_{number}" for number in range(len(self._parts))]

    def observation_space(self) -> spaces.Space[Any]:
        """Return the space of a new buffer."""
        described = self._described_space
        if described is not None and self._keys is None and self._fits(described):
            return described
        found = [unbounded_space(*part) for part in self._parts]
        if not self._content.is_tuple:
            return found[0]
        return spaces.Dict([(str(name), part) for name, part in zip(self.names(), found, strict=True)])

    def action_space(self) -> spaces.Space[Any]:
        """Return the action space of a new buffer.

        :raises ValueError: if the actions are not in it
        """
        (shape, dtype), low, high = self._content.actions, self._content.low, self._content.high
        if self._n_actions is None and self._action_range is None and self._description is not None:
            described = self._description.action_space
            if not self._fit_actions(described):
                raise StorageError(f"actions from {low:g} to {high:g} of shape {shape} are not in {described}")
            return described
        if dtype.kind == "f" and self._n_actions is None:
            allowed = self._action_range or (-1.0, 1.0)
            if not allowed[0] <= low <= high <= allowed[1]:
                raise ValueError(
                    f"actions are from {low} to {high}, outside of {list(allowed)}: pass action_range=(low, high), "
                    "or n_actions if they are discrete"
                )
            return spaces.Box(*allowed, shape, np.float32 if dtype == np.float32 else np.float64)
        if self._action_range is not None:
            raise ValueError(f"action_range is for continuous actions, got {dtype} actions")
        if self._n_actions is None and high >= MAX_N_ACTIONS:
            raise ValueError(f"the largest action is {high:g}: pass n_actions if that is correct")
        n_actions = self._n_actions or int(high) + 1
        if shape != (1,) or low < 0 or high >= n_actions:
            raise ValueError(
                f"discrete actions must be single numbers from 0 to {n_actions - 1}, got {low:g} to {high:g} with "
                f"shape {shape}"
            )
        return spaces.Discrete(n_actions)

    def require_fitting(self, buffer: ReplayBuffer) -> None:
        """Raise if the buffer has other spaces.

        :raises ValueError: with both
        """
        actions, (shape, _) = buffer.action_space, self._content.actions
        if buffer.n_envs != 1 or not self._fits(buffer.observation_space) or not self._fit_actions(actions):
            parts = ", ".join(f"{dtype} of shape {shape}" for shape, dtype in self._parts)
            raise ValueError(
                f"the buffer must have n_envs=1, observations {parts} and actions of shape {shape} from "
                f"{self._content.low:g} to {self._content.high:g}, got n_envs={buffer.n_envs}, "
                f"{buffer.observation_space} and {actions}"
            )

    def _fit_actions(self, space: spaces.Space[Any]) -> bool:
        """Return whether the actions are in a space; those of a Box may be scaled to [-1, 1]."""
        shape, _ = self._content.actions
        if isinstance(space, spaces.Discrete):
            return shape == (1,) and 0 <= self._content.low <= self._content.high < space.n
        return isinstance(space, spaces.Box) and (space.shape or (1,)) == shape

    def _fits(self, space: spaces.Space[Any]) -> bool:
        names, parts = self.names(space), space_parts(space)
        if {*names} != {*parts}:
            return False
        return all(_same_items(parts[name], part) for name, part in zip(names, self._parts, strict=True))


def _same_items(space: spaces.Space[Any], part: Part) -> bool:
    """Return whether items of a space are stored like this; single numbers may be arrays of one element."""
    shape, dtype = part
    return (space.shape or (1,)) == (shape or (1,)) and np.dtype(space.dtype) == dtype


def _require_bounds(space: spaces.Space[Any]) -> None:
    """Raise if actions cannot be scaled.

    :raises ValueError: with the space
    """
    if not isinstance(space, spaces.Box) or not space.is_bounded():
        raise ValueError(f"scale_actions is for continuous actions with bounds, got {space}")


# -- transitions ------------------------------------------------------------------------------------------------------


class _Reader:
    """Reads transitions of episodes as they are added to a buffer.

    :param names: the key of each part of the observations
    :param scale: whether to scale actions
    """

    def __init__(self, buffer: ReplayBuffer, names: list[Key], frame_stack: int, *, scale: bool) -> None:
        self._buffer, self._names, self._frame_stack = buffer, names, frame_stack
        self._spaces, self._scale = space_parts(buffer.observation_space), scale
        if scale:
            _require_bounds(buffer.action_space)

    def steps(self, episodes: EpisodeSource, n_transitions: int) -> Iterator[TrajectoryPart]:
        """Yield the first transitions of episodes in pieces."""
        remaining = n_transitions
        for episode in episodes:
            n = min(episode.n_transitions, remaining)
            n_at_a_time = rows_at_a_time(sum(rows.row_nbytes for rows in episode.observations) * self._frame_stack)
            for first in range(0, n, n_at_a_time):
                last = min(first + n_at_a_time, n)
                yield self._read(episode, first, last, is_end=last == n)
            remaining -= n
            if not remaining:
                return

    def _read(self, episode: StoredEpisode, first: int, last: int, *, is_end: bool) -> TrajectoryPart:
        """Return some transitions.

        :param is_end: whether the last one is followed by another episode, or by nothing
        """
        terminations, truncations = np.zeros((2, last - first), np.bool_)
        terminations[-1] = is_end and last == episode.n_rows
        # SB3 takes any end for a terminal one without handle_timeout_termination.
        truncations[-1] = is_end and not terminations[-1] and self._buffer.handle_timeout_termination
        observations: dict[Key, NDArray[Any]] = {}
        for name, rows in zip(self._names, episode.observations, strict=True):
            stacks = _stacks(rows, first, last + 1, self._frame_stack)
            if terminations[-1]:
                stacks[-1] = 0
            observations[name] = stacks.reshape(len(stacks), *(self._spaces[name].shape or ()))
        return TrajectoryPart(
            observations if isinstance(self._buffer.observation_space, spaces.Dict) else observations[None],
            self._actions(episode, first, last),
            episode.rewards.read(first, last).reshape(-1).astype(np.float32),
            terminations,
            truncations,
        )

    def _actions(self, episode: StoredEpisode, first: int, last: int) -> NDArray[Any]:
        actions = episode.actions.read(first, last).reshape(last - first, -1)
        space = self._buffer.action_space
        if isinstance(space, spaces.Discrete):
            if actions.dtype.kind == "f" and (actions != np.floor(actions)).any():
                raise ValueError(f"{episode.name} has actions that are no integers: omit n_actions")
            return actions.astype(np.int64)
        actions = actions.reshape(last - first, *(space.shape or ()))
        if self._scale and isinstance(space, spaces.Box):
            actions = action_scaling.scale_actions(actions, space).astype(actions.dtype)
        return actions


def _stacks(rows: Rows, first: int, last: int, n_frames: int) -> NDArray[Any]:
    """Return rows, each after the ``n_frames - 1`` before it, with zeros outside of the episode."""
    begin = first - (n_frames - 1)
    frames = np.zeros((last - begin, *rows.shape), rows.dtype)
    read = rows.read(max(begin, 0), min(last, rows.n))
    frames[max(begin, 0) - begin :][: len(read)] = read
    if n_frames == 1:
        return frames
    windows = np.lib.stride_tricks.sliding_window_view(frames, n_frames, axis=0)
    return np.array(np.moveaxis(windows, -1, 1)).reshape(last - first, n_frames * rows.shape[0], *rows.shape[1:])
