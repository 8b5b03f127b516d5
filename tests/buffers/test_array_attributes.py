"""Plain arrays that a user assigns to a buffer are copied to the current ones, in memory and in folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from support import Stream, add_all, assert_same_batch, filled, same_draws

from sb3_compressed import (
    CompressedRolloutBuffer,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.arrays.array_like import ArrayLike


def both(stream: Stream | str, **options: Any) -> tuple[Any, Any]:
    """Return one of our buffers and one of SB3's with the same content."""
    theirs = filled(stream, 20, 30, DictReplayBuffer if stream == "console" else ReplayBuffer)
    return filled(stream, 20, 30, **options), theirs


def saved(buffer: Any, stored: bool, folder: Path) -> Any:
    """Return the buffer as it is loaded from its folder, or from a checkpoint."""
    if stored:
        buffer.close()
    else:
        save_checkpoint(buffer, folder)
    return load_checkpoint(folder, device="cpu")


@pytest.mark.parametrize("stream", ["atari", "pendulum", "acrobot"], indirect=True)
@pytest.mark.parametrize("stored", [False, True])
def test_assigning_an_array_writes_to_the_present_one(stored: bool, stream: Stream, tmp_path: Path) -> None:
    options = {"storage": tmp_path / "buffer"} if stored else {}
    ours, theirs = both(stream, **options)
    for name in ("observations", "next_observations"):
        for buffer in (ours, theirs):
            setattr(buffer, name, np.roll(np.array(getattr(buffer, name)), 3, axis=0))
    kept = ours.observations
    add_all(stream[-1][20:50], ours, theirs)
    assert ours.observations is kept or type(kept) is np.ndarray, "memory is saved as before"
    assert_same_batch(*same_draws(lambda: ours.sample(50), lambda: theirs.sample(50), seed=1))
    loaded = saved(ours, stored, tmp_path / "buffer")
    assert_same_batch(*same_draws(lambda: loaded.sample(50), lambda: theirs.sample(50), seed=1))


@pytest.mark.parametrize("stored", [False, True])
def test_assigning_to_a_key_writes_to_the_present_array(stored: bool, tmp_path: Path) -> None:
    ours, theirs = both("console", **({"storage": tmp_path / "buffer"} if stored else {}))
    for key in ("screen", "ram", "lives"):
        for buffer in (ours, theirs):
            buffer.observations[key] = np.array(buffer.observations[key])[::-1].copy()
    loaded = saved(ours, stored, tmp_path / "buffer")
    assert_same_batch(*same_draws(lambda: loaded.sample(50), lambda: theirs.sample(50), seed=1))


def test_assigning_an_array_of_another_shape_raises(stream: Stream) -> None:
    ours, _ = both(stream)
    with pytest.raises(ValueError, match="shape"):
        ours.observations = np.zeros((3, 4))
    assert isinstance(ours.observations, ArrayLike)
    assert np.array_equal(ours.observations[0], stream[-1][0].obs)


def test_rollouts_are_reset_as_by_sb3(stream: Stream) -> None:
    space, action_space, n_envs, _ = stream
    buffer = CompressedRolloutBuffer(5, space, action_space, "cpu", n_envs=n_envs)
    for _ in range(2):
        buffer.reset()
        assert buffer.observations.shape == (5, n_envs, *space.shape)  # type: ignore[misc]
    assert not hasattr(buffer, "next_observations")


def test_a_deleted_array_is_missing_until_it_is_assigned(stream: Stream) -> None:
    ours, _ = both(stream)
    kept = ours.observations
    del ours.observations
    with pytest.raises(AttributeError, match="observations"):
        ours.observations  # noqa: B018
    ours.observations = kept
    assert ours.observations is kept
