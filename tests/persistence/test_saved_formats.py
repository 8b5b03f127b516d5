"""What is saved can be loaded: assigned arrays of other dtypes are cast, and what cannot be loaded is not saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stored import ROWS, add, hold_equal, new
from support import Stream

from sb3_compressed import (
    CompressedHerReplayBuffer,
    CompressedReplayBuffer,
    StorageError,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.commit_writer import CommitWriter
from sb3_compressed.storage.lock import FolderLock

PLAIN = ("actions", "rewards", "dones", "timeouts")
KINDS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "float64": lambda array: array.astype(np.float64),
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "int8": lambda array: array.astype(np.int8),
    "list": lambda array: array.astype(np.int8).tolist(),
    "view": lambda array: np.asfortranarray(array)[::-1],
}


def saved(buffer: Any, folder: Path) -> Any:
    """Return the buffer as it is loaded from its folder, or from a checkpoint."""
    if buffer.is_in_memory:
        save_checkpoint(buffer, folder)
    else:
        buffer.close()
    return load_checkpoint(folder, device="cpu")


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("name", ["actions", "rewards"])  # of integers, and of floats as all others
@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_other_dtypes_are_saved_as_sb3s(
    kind: str, name: str, stored: bool, stream: Stream, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"storage": tmp_path / "folder"} if stored else {}
    buffer = new(stream, **options)
    add(stream[-1][:30], buffer)
    if not stored:
        save_checkpoint(buffer, tmp_path / "folder")  # the arrays are replaced between two saves
    own = getattr(buffer, name)
    given = KINDS[kind](own)
    expected = np.asarray(given).astype(own.dtype)
    setattr(buffer, name, given)
    if isinstance(given, np.ndarray):
        add(stream[-1][30:31], buffer)
    loaded = saved(buffer, tmp_path / "folder")
    assert getattr(loaded, name).dtype == getattr(buffer, name).dtype == own.dtype
    assert np.array_equal(getattr(loaded, name)[:30], expected[:30])
    hold_equal(loaded, buffer)


@pytest.mark.parametrize("stream", ["bits"], indirect=True)
def test_episodes_of_hindsight_replay(stream: Stream, tmp_path: Path) -> None:
    buffer = new(stream, buffer_class=CompressedHerReplayBuffer)
    add(stream[-1][:60], buffer)
    for name in ("ep_start", "ep_length", "_current_ep_start"):
        setattr(buffer, name, getattr(buffer, name).astype(np.float64))
    save_checkpoint(buffer, tmp_path)
    assert buffer.ep_start.dtype == np.int64
    hold_equal(load_checkpoint(tmp_path, device="cpu", env=buffer.env), buffer)


Change = Callable[[Any], None]
INVALID: dict[str, tuple[Change, str]] = {
    "shape": (lambda buffer: setattr(buffer, "rewards", np.zeros(ROWS)), "rewards: it has the shape"),
    "axis": (lambda buffer: setattr(buffer, "rewards", buffer.rewards[..., None]), "rewards: it has the shape"),
    "rows": (lambda buffer: setattr(buffer, "actions", buffer.actions[:-1]), "actions: it has the shape"),
    "objects": (lambda buffer: setattr(buffer, "dones", buffer.dones.astype(object)), "dones: .*dtype"),
    "strings": (lambda buffer: setattr(buffer, "dones", buffer.dones.astype(str)), "dones: .*dtype"),
    "fractions": (lambda buffer: setattr(buffer, "actions", buffer.actions + 0.5), "actions: .*would become"),
    "nothing": (lambda buffer: setattr(buffer, "timeouts", None), "timeouts"),
    "deleted": (lambda buffer: delattr(buffer, "rewards"), "rewards"),
    "deleted observations": (lambda buffer: delattr(buffer, "observations"), "observations"),
    "pos": (lambda buffer: setattr(buffer, "pos", ROWS + 1), f"pos must be an integer from 0 to {ROWS - 1}"),
    "negative pos": (lambda buffer: setattr(buffer, "pos", -1), "pos must be an integer from 0"),
    "space": (
        lambda buffer: setattr(buffer, "observation_space", spaces.Box(0, 255, (1, 84, 84), np.uint8)),
        "observation_space",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_what_could_not_be_loaded_is_not_saved(case: str, stream: Stream, tmp_path: Path) -> None:
    change, message = INVALID[case]
    buffer = new(stream)
    add(stream[-1][:30], buffer)
    save_checkpoint(buffer, tmp_path / "good")
    loaded = load_checkpoint(tmp_path / "good", device="cpu")
    change(buffer)
    for folder in (tmp_path / "good", tmp_path / "new"):
        with pytest.raises(StorageError, match=f"nothing was saved.*{message}"):
            save_checkpoint(buffer, folder)
    hold_equal(load_checkpoint(tmp_path / "good", device="cpu"), loaded)


@pytest.mark.parametrize("case", ["pos", "negative pos"])
def test_what_could_not_be_loaded_is_not_written_to_a_folder(case: str, stream: Stream, tmp_path: Path) -> None:
    change, message = INVALID[case]
    buffer = new(stream, storage=tmp_path)
    add(stream[-1][:30], buffer)
    buffer.flush()
    change(buffer)
    with pytest.raises(StorageError, match=message):
        buffer.flush()
    buffer.pos = 30
    buffer.close()
    assert load_checkpoint(tmp_path, device="cpu").pos == 30


@pytest.mark.parametrize("case", ["shape", "axis", "rows", "objects", "fractions", "nothing"])
def test_what_does_not_fit_a_folder_is_refused_by_the_next_add(case: str, stream: Stream, tmp_path: Path) -> None:
    buffer = new(stream, storage=tmp_path)
    add(stream[-1][:30], buffer)
    kept = {name: getattr(buffer, name) for name in PLAIN}
    INVALID[case][0](buffer)
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match=r"rewards|actions|dones|timeouts"):
            add(stream[-1][30:31], buffer)
    vars(buffer).update(kept)
    add(stream[-1][30:60], buffer)
    expected = new(stream)
    add(stream[-1][:60], expected)
    hold_equal(saved(buffer, tmp_path), expected)


def test_unknown_keys_are_refused(tmp_path: Path) -> None:
    space = spaces.Dict(cam=spaces.Box(0, 255, (4, 36, 36), np.uint8), vec=spaces.Box(-1, 1, (3,), np.float32))
    buffer = new((space, spaces.Discrete(2), 1, []))
    buffer.observations["depth"] = np.zeros((ROWS, 1, 4))
    with pytest.raises(StorageError, match="depth"):
        save_checkpoint(buffer, tmp_path)


class OfTwoRewards(ReplayBuffer):
    """A user's class with other arrays, whose constructor runs within ours."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rewards = np.zeros((self.buffer_size, self.n_envs, 2), np.float64)


class CompressedOfTwoRewards(CompressedReplayBuffer, OfTwoRewards):
    """Both."""

    @staticmethod
    def _maybe_cast_dtype(dtype: Any) -> Any:
        return np.dtype(np.float64)


def test_a_users_class_with_arrays_of_other_shapes_and_dtypes(stream: Stream, tmp_path: Path) -> None:
    buffer = new(stream, buffer_class=CompressedOfTwoRewards)
    buffer.rewards[:], buffer.actions[:] = 1 / 3, 1 / 7
    kept = buffer.rewards, buffer.actions
    save_checkpoint(buffer, tmp_path)
    assert buffer.rewards is kept[0]
    assert buffer.actions is kept[1]
    loaded = CompressedOfTwoRewards.from_checkpoint(tmp_path, device="cpu")
    for name in ("rewards", "actions"):
        assert getattr(loaded, name).dtype == np.float64
        assert np.array_equal(getattr(loaded, name), getattr(buffer, name))


@pytest.mark.parametrize("rows", [ROWS, ROWS // 2])
@pytest.mark.parametrize("stream", ["atari", "pendulum"], indirect=True)
def test_checkpoints_of_other_dtypes_that_version_030_wrote(rows: int, stream: Stream, tmp_path: Path) -> None:
    """It saved assigned arrays as they were. Here, a class whose constructor creates these arrays does."""
    buffer = new(stream, buffer_class=AsAssigned)
    add(stream[-1][:30], buffer)
    buffer.actions[:5] = buffer.actions[:5] + 0.25
    buffer.save_checkpoint(tmp_path)
    metadata = ArrayStore.open(tmp_path, lock=FolderLock(tmp_path))
    metadata.metadata["class"] = "CompressedReplayBuffer"
    CommitWriter(metadata).write_snapshot()
    metadata.close()
    loaded = load_checkpoint(tmp_path, device="cpu", buffer_size=rows * stream[2])
    for name in PLAIN:
        dtype = np.float64 if name == "actions" and stream[1].dtype == np.int64 else getattr(new(stream), name).dtype
        assert getattr(loaded, name).dtype == dtype
        assert np.array_equal(getattr(loaded, name)[:30], getattr(buffer, name)[:30].astype(dtype))
    if isinstance(buffer.observations, np.ndarray):
        assert np.array_equal(loaded.observations[:30], buffer.observations[:30].astype(np.float32))
    save_checkpoint(loaded, tmp_path)
    hold_equal(load_checkpoint(tmp_path, device="cpu", buffer_size=rows * stream[2]), loaded)


class AsAssigned(CompressedReplayBuffer):
    """A class whose arrays are of float64."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in PLAIN:
            setattr(self, name, getattr(self, name).astype(np.float64))
        if isinstance(self.observations, np.ndarray):
            self.observations = self.observations.astype(np.float64)
            self.next_observations = self.next_observations.astype(np.float64)
