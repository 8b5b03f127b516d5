"""Nothing is left of a new buffer whose import fails; one that existed before keeps what it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from numbered import COUNTER, IMAGES, add_steps

from sb3_compressed import CompressedReplayBuffer, load_checkpoint
from sb3_compressed.datasets.import_target import import_target


def interrupted(buffer: Any, **options: Any) -> None:
    """Import ten steps, then be ended by Ctrl-C."""
    with import_target(buffer, CompressedReplayBuffer, 40, IMAGES, COUNTER, device="cpu", **options) as target:
        add_steps(target, range(10))
        raise KeyboardInterrupt


def fail(buffer: Any = None, **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(buffer, **options)


def stored(folder: Path) -> None:
    buffer = CompressedReplayBuffer(40, IMAGES, COUNTER, "cpu", storage=folder)
    add_steps(buffer, range(5))
    buffer.close()


@pytest.mark.parametrize("is_empty_folder", [False, True])
def test_nothing_is_left_of_a_new_buffer_and_the_import_can_be_tried_again(
    is_empty_folder: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "buffer"
    if is_empty_folder:
        folder.mkdir()
    for _ in range(2):
        fail(storage=folder)
        assert not folder.exists()
    with import_target(None, CompressedReplayBuffer, 40, IMAGES, COUNTER, device="cpu", storage=folder) as buffer:
        add_steps(buffer, range(7))
    assert buffer.size() == 7
    buffer.close()  # type: ignore[attr-defined]
    assert load_checkpoint(folder, device="cpu").size() == 7


def test_a_part_of_a_dataset_does_not_replace_a_buffer(tmp_path: Path) -> None:
    stored(tmp_path / "buffer")
    fail(storage=tmp_path / "buffer", storage_mode="overwrite")
    assert not (tmp_path / "buffer").exists(), "what was there has been replaced, and this is a part only"


def test_a_resumed_folder_keeps_its_transitions(tmp_path: Path) -> None:
    stored(tmp_path / "buffer")
    fail(storage=tmp_path / "buffer", storage_mode="resume")
    assert load_checkpoint(tmp_path / "buffer", device="cpu").size() == 15


def test_a_folder_that_contains_a_buffer_stays(tmp_path: Path) -> None:
    stored(tmp_path / "buffer")
    with (
        pytest.raises(ValueError, match="already contains a buffer"),
        import_target(None, CompressedReplayBuffer, 40, IMAGES, COUNTER, storage=tmp_path / "buffer"),
    ):
        pass
    assert load_checkpoint(tmp_path / "buffer", device="cpu").size() == 5


def test_a_buffer_that_does_not_fit_is_an_error() -> None:
    for buffer in (CompressedReplayBuffer(40, COUNTER, COUNTER), CompressedReplayBuffer(40, IMAGES, COUNTER, n_envs=2)):
        with pytest.raises(ValueError, match="the buffer must have n_envs=1"):
            interrupted(buffer)


def test_a_given_buffer_keeps_what_was_added() -> None:
    buffer = CompressedReplayBuffer(40, IMAGES, COUNTER, "cpu")
    fail(buffer)
    assert buffer.size() == 10
