"""Helpers for tests of buffers that are saved or stored: new ones for a stream, adding steps, and equality."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from conftest import Stream
from gymnasium import spaces
from support import Transition, assert_same_batch, same_draws

from sb3_compressed import CompressedDictReplayBuffer, CompressedReplayBuffer

__all__ = ["ROWS", "add", "hold_equal", "new"]

ROWS = 90


def new(stream: Stream, rows: int = ROWS, buffer_class: Any = None, **options: Any) -> Any:
    """Return an empty buffer for the environment of a stream."""
    space, action_space, n_envs, _ = stream
    if buffer_class is None:
        buffer_class = CompressedDictReplayBuffer if isinstance(space, spaces.Dict) else CompressedReplayBuffer
    return buffer_class(rows * n_envs, space, action_space, device="cpu", n_envs=n_envs, **options)


def add(transitions: Iterable[Transition], *buffers: Any) -> None:
    """Add transitions to each of some buffers."""
    for transition in transitions:
        for buffer in buffers:
            transition.add_to(buffer)


def hold_equal(ours: Any, theirs: Any) -> None:
    """Assert that two buffers have the same position and draw the same batch."""
    assert (type(ours), ours.pos, ours.full) == (type(theirs), theirs.pos, theirs.full)
    if ours.size():
        assert_same_batch(*same_draws(lambda: ours.sample(200), lambda: theirs.sample(200), seed=3))
