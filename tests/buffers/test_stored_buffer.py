"""A stored buffer is described as the buffer that its class opens, and imports neither SB3, torch nor numba."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from programs import fresh_outcome
from small_samplers import ValidSampler
from support import add_all, filled, recorded

import sb3_compressed
from sb3_compressed import (
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    CorruptStorage,
    StorageError,
    save_checkpoint,
)
from sb3_compressed.buffers import replay, stored_buffer
from sb3_compressed.buffers.description import describe
from sb3_compressed.buffers.loading import open_to_read
from sb3_compressed.buffers.stored_buffer import StoredBuffer, open_to_describe
from sb3_compressed.datasets import trajectories
from sb3_compressed.datasets.episode_statistics import episode_statistics
from sb3_compressed.storage.array_store import ArrayStore

ROWS = 60
HER: dict[str, Any] = {"cls": CompressedHerReplayBuffer, "env": None}
#: Names of environments, and arguments.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "images": ("atari", {}),
    "channel-last": ("atari-channel-last", {}),
    "whole observations": ("atari", {"frame_stack": None}),
    "explicit stack": ("atari", {"frame_stack": 4, "compression_method": "zstd3"}),
    "dictionary": ("atari", {"compression_method": "zstd-dict"}),
    "optimized": ("atari", {"optimize_memory_usage": True}),
    "optimized by SB3": ("atari", {"optimize_memory_usage": True, "handle_timeout_termination": False}),
    "narrow": ("pendulum", {"dtypes": np.float16, "compression_method": "none"}),
    "vectors": ("pendulum", {}),
    "numbers": ("discrete", {}),
    "Dict": ("console", {}),
    "codecs by key": ("console", {"compression_method": {"screen": "zstd3"}}),
    "hindsight": ("goal-bits", HER),
    "n steps": ("atari", {"cls": CompressedNStepReplayBuffer, "n_steps": 3, "gamma": 0.9}),
    "prioritized": ("atari", {"sampler": "prioritized"}),
    "a user's sampler": ("pendulum", {"sampler": ValidSampler()}),
}


def described(buffer: Any) -> dict[str, Any]:
    episodes = [*trajectories(buffer)]
    rows = [(each.env, each.rows.tolist(), each.has_begin, each.has_end) for each in episodes]
    return {**describe(buffer), "statistics": episode_statistics(episodes), "episodes": rows}


def assert_described_alike(folder: Path) -> dict[str, Any]:
    """Assert that a folder is described as the buffer that its class opens."""
    stored, opened = open_to_describe(folder), open_to_read(folder)
    assert type(stored) is StoredBuffer
    ours, expected = described(stored), described(opened)
    assert ours == expected
    stored.close()
    opened.close()
    return ours


@pytest.mark.filterwarnings("ignore::sb3_compressed.LossyDtypeWarning")
@pytest.mark.parametrize(
    ("kind", "n_added"), [*((kind, 100) for kind in KINDS), ("images", 0), ("images", 25), ("Dict", 0), ("Dict", 25)]
)
def test_a_folder_is_described_as_the_buffer(kind: str, n_added: int, tmp_path: Path) -> None:
    name, options = KINDS[kind]
    buffer = filled(name, n_added, ROWS, num_threads=1, **options)
    save_checkpoint(buffer, tmp_path / "saved")
    found = assert_described_alike(tmp_path / "saved")
    assert found["class"] == type(buffer).__name__
    assert found["transitions"] == min(n_added, ROWS) * buffer.n_envs
    buffer = filled(name, n_added, ROWS, num_threads=1, **options, storage=tmp_path / "storage")
    assert_described_alike(tmp_path / "storage")  # while the buffer is open
    buffer.close()
    assert_described_alike(tmp_path / "storage")


def test_all_classes_are_known() -> None:
    names = [name for name in sb3_compressed.buffers.__all__ if name.endswith("ReplayBuffer")]
    assert sorted(stored_buffer.CLASSES) == sorted({*names} - {"MixedReplayBuffer"})
    # Pickles up to version 0.3 import all of them from one module.
    assert all(getattr(replay, name) is getattr(sb3_compressed, name) for name in stored_buffer.CLASSES)


def test_episodes_across_files_are_found_without_decoding(tmp_path: Path) -> None:
    buffer = filled("atari", 20, ROWS, storage=tmp_path)
    transitions = recorded("atari")[3]
    buffer._storage.store.write_snapshot()  # the next observation is stored in another file than the one before
    add_all(transitions[20:40], buffer)
    found = assert_described_alike(tmp_path)
    n_ends = sum(int(transition.done.sum()) for transition in transitions[:40])
    assert len(found["episodes"]) == n_ends + sum(not end for *_, end in found["episodes"])
    buffer.close()
    done = fresh_outcome(
        """
import sys
from pathlib import Path
from sb3_compressed.buffers.stored_buffer import open_to_describe
from sb3_compressed.datasets.trajectory import trajectories
print(len([*trajectories(open_to_describe(Path(sys.argv[1])))]))
""",
        tmp_path,
    )
    assert done.stdout.split() == [str(len(found["episodes"]))], done.stderr


# -- what its class opens ------------------------------------------------------------------------------------


class MyBuffer(CompressedReplayBuffer):
    """A class from outside the package."""


def test_what_it_cannot_read_has_the_errors_of_the_class(tmp_path: Path) -> None:
    save_checkpoint(filled("pendulum", 5, cls=MyBuffer), tmp_path / "mine")
    with pytest.raises(StorageError, match=r"MyBuffer\.from_checkpoint"):
        open_to_describe(tmp_path / "mine")
    with pytest.raises(StorageError, match="nothing"):
        open_to_describe(tmp_path / "nothing")
    ArrayStore.create(tmp_path / "empty", {}, {}, {}).close()
    with pytest.raises(StorageError, match="no buffer"):
        open_to_describe(tmp_path / "empty")


def test_arrays_that_do_not_fit_are_reported(tmp_path: Path) -> None:
    buffer = filled("pendulum", 5, ROWS, storage=tmp_path)
    buffer.close()
    store = ArrayStore.open(tmp_path, writable=True)
    arrays = {**store.arrays, "rewards": np.zeros((ROWS, 7), np.float32)}
    specs = {
        name: type(spec)(arrays[name].shape, spec.dtype, spec.is_table, spec.is_ring)
        for name, spec in store.specs.items()
    }
    store.replace_arrays(store.metadata, specs, arrays)
    store.write_snapshot()
    store.close()
    with pytest.raises((StorageError, CorruptStorage), match="rewards"):
        open_to_describe(tmp_path)


def test_spaces_without_kernels_have_the_shapes_of_sb3(tmp_path: Path) -> None:
    from stable_baselines3.common.preprocessing import get_obs_shape

    from sb3_compressed.common.spaces import space_shape

    for space in (
        spaces.Box(0, 1, (3, 4)), spaces.Box(0, 1, ()), spaces.Discrete(5), spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(7), spaces.MultiBinary([2, 3]),
    ):  # fmt: skip
        assert space_shape(space) == get_obs_shape(space)
