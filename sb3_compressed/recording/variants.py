"""Recordings that keep less, for code that is to be the same whatever of it is recorded."""

from __future__ import annotations

from typing import Any, ClassVar

from gymnasium import spaces

from sb3_compressed.datasets.episodes import Trajectory
from sb3_compressed.recording.record_buffer import RecordBuffer

__all__ = ["DummyRecordBuffer", "FramelessRecordBuffer"]


class FramelessRecordBuffer(RecordBuffer):
    """A recording of actions, rewards and features, without observations: they are not even looked at.

    Features alone are the observations of :attr:`buffer`; without them, those have no elements.

    Arguments: those of :class:`RecordBuffer`.
    """

    keeps_observations: ClassVar[bool] = False


class DummyRecordBuffer(FramelessRecordBuffer):
    """A recording that takes the same calls and keeps nothing: its buffer stays empty, no folder is made.

    >>> from gymnasium import spaces
    >>> from sb3_compressed.recording import DummyRecordBuffer, RecordBuffer
    >>> wanted = False
    >>> recording = (RecordBuffer if wanted else DummyRecordBuffer)(spaces.Discrete(16), spaces.Discrete(4))
    >>> recording.record([0], [1], [4], [0.0], [False], [{}])
    >>> len(recording)
    0

    Arguments: those of :class:`RecordBuffer`.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        buffer_size: int | None = None,
        *,
        n_envs: int = 1,
        feature_space: int | spaces.Space[Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(observation_space, action_space, n_envs, n_envs=n_envs, feature_space=feature_space)

    def record(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def add_episode(self, episode: Trajectory) -> None:
        """Do nothing."""
