"""Helpers for tests of datasets and recordings: filled buffers, and comparisons of episodes."""

from __future__ import annotations

from typing import Any

from conftest import Stream
from gymnasium import spaces

from sb3_compressed import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_compressed.datasets import trajectories


def filled(stream: Stream, n_steps: int = 60, n_rows: int = 100, cls: Any = None, **options: Any) -> Any:
    """Return a buffer of ``n_rows`` rows with the first steps of a stream, compressed unless a class is passed."""
    space, action_space, n_envs, transitions = stream
    if cls is None:
        cls = CompressedDictReplayBuffer if isinstance(space, spaces.Dict) else CompressedReplayBuffer
    buffer = cls(n_rows * n_envs, space, action_space, device="cpu", n_envs=n_envs, **options)
    for transition in transitions[:n_steps]:
        transition.add_to(buffer)
    return buffer


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
