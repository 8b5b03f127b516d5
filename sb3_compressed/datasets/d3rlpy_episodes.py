"""Episodes of d3rlpy whose rows are read when they are needed, from memory or from a file.

An episode has one observation per step, so the one after the last step is missing. d3rlpy takes it for zeros if the
episode terminated, and otherwise has no transition for the last step.

Source: ``Episode`` and ``BasicTransitionPicker`` in https://github.com/takuseno/d3rlpy, ``d3rlpy/dataset``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.errors import CorruptStorage

__all__ = ["EpisodeSource", "Rows", "StoredEpisode", "damage_of", "episodes_in_memory", "rows_at_a_time"]

#: Bytes of observations that are in memory at a time, unless a single one takes more.
PIECE_NBYTES = 1 << 22
MAX_ROWS = 4096


def rows_at_a_time(row_nbytes: int) -> int:
    """Return the number of rows that are read or written at a time."""
    return max(1, min(PIECE_NBYTES // max(row_nbytes, 1), MAX_ROWS))


@contextmanager
def damage_of(name: str) -> Iterator[None]:
    """Raise errors of h5py as those of this package, but those of the system, such as a missing permission, as is.

    :raises CorruptStorage: with the name
    """
    try:
        yield
    except (KeyError, RuntimeError) as error:
        raise CorruptStorage(f"{name} is damaged: {error}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise CorruptStorage(f"{name} is damaged, or not an HDF5 file: {error}") from error


@dataclass(frozen=True)
class Rows:
    """The rows of an array or of an HDF5 dataset.

    :param values: ``(n, *item_shape)``
    :param name: where they are, for error messages
    """

    values: Any
    name: str

    @property
    def n(self) -> int:
        """The number of rows."""
        return len(self.values)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row."""
        return tuple(self.values.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a row."""
        dtype: np.dtype[Any] = self.values.dtype
        return dtype

    @property
    def row_nbytes(self) -> int:
        """The bytes of a row."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def read(self, first: int, last: int) -> NDArray[Any]:
        """Return the rows from ``first`` up to, but not including, ``last``.

        :raises CorruptStorage: if the file is damaged there
        """
        with damage_of(self.name):
            return np.asarray(self.values[first:last])


@dataclass(frozen=True)
class StoredEpisode:
    """The rows of an episode.

    :param observations: the parts of a tuple, or a single one
    :param is_tuple: whether the observations are tuples
    :param actions: actions
    :param rewards: rewards
    :param terminated: whether the episode terminated with the last row
    :param name: which episode it is, for error messages
    :raises CorruptStorage: if the columns have different lengths
    """

    observations: tuple[Rows, ...]
    is_tuple: bool
    actions: Rows
    rewards: Rows
    terminated: bool
    name: str

    def __post_init__(self) -> None:
        lengths = {rows.n for rows in (*self.observations, self.actions, self.rewards)}
        if len(lengths) > 1:
            raise CorruptStorage(f"{self.name} has columns of different lengths: {sorted(lengths)}")

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return self.actions.n

    @property
    def n_transitions(self) -> int:
        """The number of transitions, which have an observation after the step."""
        return self.n_rows if self.terminated else max(self.n_rows - 1, 0)


@dataclass(frozen=True)
class EpisodeSource:
    """Episodes that are opened one after the other, so that an iteration takes memory for one.

    :param n_episodes: their number
    :param get: opens one of them
    :param name: where they are, for error messages
    """

    n_episodes: int
    get: Callable[[int], StoredEpisode]
    name: str

    def __iter__(self) -> Iterator[StoredEpisode]:
        return map(self.get, range(self.n_episodes))


def episodes_in_memory(source: Any) -> EpisodeSource:
    """Return the episodes of a ``d3rlpy.dataset.ReplayBuffer``, or those of an iterable.

    :raises TypeError: if it is neither
    :raises ValueError: if arrays do not contain numbers
    """
    episodes = getattr(source, "episodes", source)
    if not isinstance(episodes, Iterable):
        raise TypeError(f"expected a path, a buffer of d3rlpy or its episodes, got {type(source).__name__}")
    stored = [_episode_in_memory(episode, f"episode {index}") for index, episode in enumerate(episodes)]
    return EpisodeSource(len(stored), stored.__getitem__, "the buffer of d3rlpy")


def _episode_in_memory(episode: Any, name: str) -> StoredEpisode:
    """Return an episode for one that has the attributes of ``d3rlpy.dataset.EpisodeBase``."""
    try:
        observations, terminated = episode.observations, bool(episode.terminated)
        actions, rewards = np.asarray(episode.actions), np.asarray(episode.rewards)
    except AttributeError as error:
        raise TypeError(f"{name} is a {type(episode).__name__}, not an episode of d3rlpy: {error}") from error
    is_tuple = isinstance(observations, list | tuple)
    parts = [np.asarray(part) for part in (observations if is_tuple else [observations])]
    for values in (*parts, actions, rewards):
        if values.dtype.kind not in "biuf" or not values.ndim:
            raise ValueError(f"{name} must have arrays of numbers, got {values.dtype} of shape {values.shape}")
    rows = [Rows(values, name) for values in (*parts, actions, rewards)]
    return StoredEpisode(tuple(rows[:-2]), is_tuple, rows[-2], rows[-1], terminated, name)
