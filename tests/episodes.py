"""Helpers for tests of datasets and recordings: comparisons of episodes."""

from __future__ import annotations

from typing import Any

from support import filled

from sb3_compressed.datasets import trajectories

__all__ = ["assert_same_arrays", "assert_same_episode", "assert_same_episodes", "filled"]


def assert_same_arrays(ours: Any, theirs: Any) -> None:
    """Assert that two arrays, or dicts of arrays, have equal dtypes, shapes and bytes."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            assert_same_arrays(ours[key], theirs[key])
    else:
        assert (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())


def assert_same_episode(ours: Any, theirs: Any) -> None:
    """Assert that all arrays of two episodes are equal, bit for bit."""
    for name in ("observations", "actions", "rewards", "terminations", "truncations"):
        assert_same_arrays(getattr(ours, name), getattr(theirs, name))


def assert_same_episodes(ours: Any, theirs: Any) -> None:
    """Assert that two buffers contain the same episodes, bit for bit."""
    for our_episode, their_episode in zip(trajectories(ours), trajectories(theirs), strict=True):
        assert_same_episode(our_episode, their_episode)
