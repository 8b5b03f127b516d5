"""Buffers that follow a folder while another one adds to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import writer

from sb3_compressed import StorageError, load_checkpoint
from sb3_compressed.storage.commit_writer import CommitWriter


def add_steps(buffer: Any, first: int, last: int) -> None:
    for number in range(first, last):
        writer.add_step(buffer, number)


def test_whole_laps_between_two_refreshes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the segment of what was the last row is deleted."""
    for name in ("MIN_SEGMENT_NBYTES", "SEGMENT_NBYTES"):
        monkeypatch.setattr(CommitWriter, name, 10_000)
    buffer = writer.new_buffer(storage=tmp_path)
    add_steps(buffer, 1, 10)
    follower = load_checkpoint(tmp_path, device="cpu", follow=True)
    number = 10
    for n_steps in (5, 3 * writer.ROWS, 3, 2 * writer.ROWS, writer.ROWS + 1):
        add_steps(buffer, number, number + n_steps)
        number += n_steps
        assert follower.refresh()
        assert (follower.pos, follower.full) == (buffer.pos, buffer.full)
        for name in ("observations", "next_observations"):
            np.testing.assert_array_equal(getattr(follower, name), np.asarray(getattr(buffer, name)))
    buffer.close()
    follower.close()


def test_arrays_that_were_replaced_are_not_refreshed(tmp_path: Path) -> None:
    """Rewards of earlier rows would be those of other observations."""
    buffer = writer.new_buffer(storage=tmp_path)
    add_steps(buffer, 1, 10)
    follower = load_checkpoint(tmp_path, device="cpu", follow=True)
    own = follower.rewards
    follower.rewards = own.clip(-1, 1)
    add_steps(buffer, 10, 20)
    with pytest.raises(StorageError, match=r"rewards.*deepcopy"):
        follower.refresh()
    follower.rewards = own
    assert follower.refresh()
    np.testing.assert_array_equal(follower.rewards, buffer.rewards)
    buffer.close()
    follower.close()
