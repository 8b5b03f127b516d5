"""Imports of Dopamine's checkpoints stack frames as Dopamine does."""

from __future__ import annotations

import gzip
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dopamine_ring import Ring, write_array
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed import CompressedNStepReplayBuffer, CompressedReplayBuffer
from sb3_compressed.datasets import import_dopamine, trajectories
from sb3_compressed.datasets.dopamine_files import NpyReader, checkpoint_path
from sb3_compressed.errors import CheckpointNotFound, CorruptStorage, StorageError


def imported(folder: Path, buffer: ReplayBuffer | None = None, **options: Any) -> Any:
    if buffer is None:
        options |= {"device": "cpu"}
    return import_dopamine(folder, buffer, progress_bar=False, **options)


def assert_contains(buffer: Any, expected: list[tuple[Any, ...]], cuts: tuple[int, ...] = (-1,)) -> None:
    """Assert that a buffer contains transitions.

    :param cuts: those after which rows are missing, which are truncated unless they are terminal
    """
    n = len(expected)
    assert buffer.pos == n or (buffer.full and buffer.buffer_size == n)
    obs, next_obs, actions, rewards, dones = (np.array(values) for values in zip(*expected, strict=True))
    np.testing.assert_array_equal(buffer.observations[:n][:, 0], obs)
    np.testing.assert_array_equal(buffer.next_observations[:n][:, 0], next_obs)
    np.testing.assert_array_equal(buffer.actions[:n, 0, 0], actions)
    np.testing.assert_array_equal(buffer.rewards[:n, 0], rewards)
    is_cut = np.zeros(n, np.bool_)
    is_cut[list(cuts)] = True
    np.testing.assert_array_equal(buffer.dones[:n, 0], (dones == 1) | is_cut)
    np.testing.assert_array_equal(buffer.timeouts[:n, 0], (dones == 0) & is_cut)


@pytest.mark.parametrize(
    ("n_steps", "chunk_size"), [(1, 256), (2, 7), *((n_steps, 7) for n_steps in range(84, 89)), (197, 1), (450, 256)]
)
def test_imported_transitions_are_those_in_the_ring(
    tmp_path: Path, n_steps: int, chunk_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sb3_compressed.datasets.dopamine.CHUNK_SIZE", chunk_size)
    ring = Ring(100)
    ring.play(n_steps, np.random.default_rng(n_steps))
    ring.save(tmp_path, 0)
    expected = ring.transitions(max(0, len(ring.rows) - ring.capacity))
    if not expected:  # the only frame has no next one
        assert imported(tmp_path).size() == 0
        return
    assert_contains(imported(tmp_path, n_actions=6), expected)


@pytest.mark.parametrize(("stack", "padding"), [(1, 0), (2, 3), (4, 0), (6, 3)])
def test_any_number_of_frames_is_stacked_whatever_the_padding_in_the_files(
    tmp_path: Path, stack: int, padding: int
) -> None:
    ring = Ring(300, padding)
    ring.play(150, np.random.default_rng(0))
    ring.save(tmp_path, 0)
    buffer = imported(tmp_path, frame_stack=stack, n_padding=padding, n_actions=18)
    assert buffer.observation_space.shape == (stack, *ring.shape)
    assert buffer.action_space == spaces.Discrete(18)
    assert_contains(buffer, ring.transitions(stack=stack))


def logged(ring: Ring, folder: Path, n_steps: int, rng: np.random.Generator) -> None:
    """Play and write checkpoints as the logger of the data set does.

    It writes whenever one row of the ring is not overwritten yet, and at the end, with the position in the ring as the
    count.
    """
    number = 0
    for _ in range(n_steps):
        ring.play(1, rng)
        if len(ring.rows) % ring.capacity == ring.capacity - 1:
            ring.save(folder, number)
            number += 1
    ring.save(folder, number, count=len(ring.rows) % ring.capacity)


def test_episodes_continue_in_the_next_checkpoint_of_the_data_set(tmp_path: Path) -> None:
    ring, rng = Ring(100), np.random.default_rng(0)
    logged(ring, tmp_path, 450, rng)
    assert len([*tmp_path.glob("add_count*")]) == 1 + (len(ring.rows) + 1) // 100, "choose another seed"
    assert_contains(imported(tmp_path, n_actions=6), ring.transitions())


def test_rows_in_two_checkpoints_are_imported_once(tmp_path: Path) -> None:
    ring, rng = Ring(100), np.random.default_rng(1)
    for number in range(6):
        ring.play(40, rng)
        ring.save(tmp_path, number)
    assert_contains(imported(tmp_path), ring.transitions())
    assert_contains(imported(tmp_path, checkpoints=[4, 5]), ring.transitions(first_row(ring, tmp_path, 4)))


@pytest.mark.parametrize("n_rows", [1, 3])
def test_padding_may_continue_in_the_next_checkpoint(n_rows: int, tmp_path: Path) -> None:
    ring, rng = Ring(100), np.random.default_rng(0)
    ring.play(96 - n_rows, rng, end=0)
    ring.play(1, rng, end=1)
    assert len(ring.rows) == 100 - n_rows
    ring.play(40, rng, end=0)
    replace(ring, rows=ring.rows[:100]).save(tmp_path, 0)
    ring.save(tmp_path, 1)
    assert_contains(imported(tmp_path), ring.transitions())


def first_row(ring: Ring, folder: Path, number: int) -> int:
    with gzip.open(checkpoint_path(folder, "add_count", number)) as file:
        return int(np.load(file)) - ring.capacity


def test_transitions_without_all_their_frames_are_not_imported(tmp_path: Path) -> None:
    ring, rng = Ring(50), np.random.default_rng(2)
    counts = []
    for number in range(3):
        ring.play(100, rng, end=0)
        ring.save(tmp_path, number)
        counts.append(len(ring.rows))
    parts = [ring.transitions(count - 50, count) for count in counts]
    assert [len(part) for part in parts] == [46, 46, 46], "three frames before the first, one after the last"
    buffer = imported(tmp_path)
    assert_contains(buffer, [*parts[0], *parts[1], *parts[2]], (45, 91, 137))
    assert len([*trajectories(buffer)]) == 3


def test_without_a_count_rows_are_imported_in_the_order_of_the_file(tmp_path: Path) -> None:
    ring = Ring(100)
    ring.play(200, np.random.default_rng(0))
    ring.rows, ring.begins = ring.rows[:100], [begin for begin in ring.begins if begin < 100]
    ring.save(tmp_path, 0)
    checkpoint_path(tmp_path, "add_count", 0).unlink()
    assert_contains(imported(tmp_path), ring.transitions())


def test_import_stops_after_n_steps(tmp_path: Path) -> None:
    ring = Ring(500)
    ring.play(300, np.random.default_rng(0))
    ring.save(tmp_path, 0)
    expected = ring.transitions()
    for n_steps in (1, 5, *[i + 1 for i, step in enumerate(expected) if step[4]][:2], 290):
        buffer = imported(tmp_path, n_steps=n_steps)
        assert buffer.buffer_size == n_steps
        assert_contains(buffer, expected[:n_steps])


def test_import_adds_to_an_existing_buffer(tmp_path: Path) -> None:
    ring = Ring(200)
    ring.play(80, np.random.default_rng(0))
    ring.save(tmp_path, 0)
    space = spaces.Box(0, 255, (4, *ring.shape), np.uint8)
    expected = ring.transitions()
    for cls in (ReplayBuffer, CompressedReplayBuffer, CompressedNStepReplayBuffer):
        buffer = cls(200, space, spaces.Discrete(6), device="cpu")
        assert imported(tmp_path, buffer) is buffer
        assert_contains(buffer, expected)
    small = CompressedReplayBuffer(30, space, spaces.Discrete(6), device="cpu", storage=tmp_path / "small")
    imported(tmp_path, small)
    rows = (small.pos + np.arange(30)) % 30
    np.testing.assert_array_equal(small.observations[rows][:, 0], [step[0] for step in expected[-30:]])
    several = CompressedReplayBuffer(90, space, spaces.Discrete(6), device="cpu", n_envs=3)
    few_actions = CompressedReplayBuffer(90, space, spaces.Discrete(2), device="cpu")
    other_space = CompressedReplayBuffer(
        90, spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6), device="cpu"
    )
    for wrong in (several, few_actions, other_space):
        with pytest.raises(ValueError, match=r"the buffer must have n_envs=1, |contains action"):
            imported(tmp_path, wrong)
        assert not wrong.size()


# -- errors --------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ring = Ring(100)
    for number in range(2):
        ring.play(80, np.random.default_rng(number))
        ring.save(tmp_path, number)
    return tmp_path


@pytest.mark.parametrize(("name", "number"), [("observation", 0), ("action", 1)])
def test_errors_name_the_file_that_is_missing_or_damaged(folder: Path, name: str, number: int) -> None:
    path = checkpoint_path(folder, name, number)
    intact = path.read_bytes()

    def error(kind: type[Exception]) -> str:
        with pytest.raises(kind) as caught:
            imported(folder, storage=folder / "buffer")
        assert not (folder / "buffer").exists(), "nothing is left, so it can be tried again"
        return str(caught.value)

    path.write_bytes(intact[: len(intact) * 2 // 3])
    assert error(CorruptStorage).startswith(f"{path} is damaged")
    path.write_bytes(intact[:-8] + bytes([intact[-8] ^ 1]) + intact[-7:])
    assert error(CorruptStorage).startswith(f"{path} is damaged"), "the checksum is wrong"
    array = gzip.decompress(intact)
    others = [b"no npy", array + b"more", array[:-100], array[:-1], array.replace(b"NUMPY\1", b"NUMPY\4", 1)]
    for content in (b"", b"no gzip", *map(gzip.compress, others)):
        path.write_bytes(content)
        assert error(CorruptStorage).startswith(f"{path} is damaged")
    write_array(path, np.frombuffer(array[-90:], np.uint8))
    with NpyReader(path) as reader, pytest.raises(CorruptStorage, match="ends too early"):
        reader.skip_rows(91)
    with gzip.open(path, "wb") as file:
        pickle.dump({"any": "object"}, file)
    assert error(CorruptStorage).startswith(f"{path} is damaged"), "never unpickled"
    write_array(path, np.zeros(()))
    assert error(StorageError).startswith(f"{path} contains")
    path.unlink()
    assert error(CheckpointNotFound) == f"{path} is missing"


def test_files_that_do_not_fit_together_are_rejected(folder: Path) -> None:
    path = checkpoint_path(folder, "reward", 1)
    write_array(path, np.zeros(99, np.float32))
    with pytest.raises(StorageError, match=r"reward_ckpt\.1\.gz has 99 rows, but .* has 100"):
        imported(folder)
    write_array(path, np.zeros(100, np.float32))
    write_array(checkpoint_path(folder, "observation", 1), np.zeros((100, 9, 9), np.uint8))
    with pytest.raises(
        StorageError, match=r"observation_ckpt\.1\.gz has frames of shape \(9, 9\), but checkpoint 0 has"
    ):
        imported(folder)
    write_array(checkpoint_path(folder, "observation", 1), np.zeros((100, 12, 10), np.uint16))
    with pytest.raises(StorageError, match=r"observation_ckpt\.1\.gz contains uint16"):
        imported(folder)
    write_array(checkpoint_path(folder, "observation", 1), np.zeros((12, 100, 10), np.uint8).T)
    with pytest.raises(CorruptStorage, match=r"observation_ckpt\.1\.gz is damaged, .*: unsupported array of shape"):
        imported(folder)
    write_array(checkpoint_path(folder, "observation", 1), np.zeros((100, 0, 10), np.uint8))
    with pytest.raises(StorageError, match=r"observation_ckpt\.1\.gz is empty"):
        imported(folder)
    assert imported(folder, checkpoints=[0]).size() > 0


def test_other_invalid_input_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"action_ckpt\.\d\.gz contains action 5, expected 0 to 2"):
        imported(folder, n_actions=3)
    with pytest.raises(CheckpointNotFound, match=r"ckpt\.7\.gz is missing"):
        imported(folder, checkpoints=[7])
    for name in ("frame_stack", "n_steps"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            imported(folder, None, **{name: 0})
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointNotFound, match="contains no checkpoints of Dopamine"):
        imported(tmp_path / "empty")
    with pytest.raises(CheckpointNotFound, match="is not a folder"):
        imported(tmp_path / "missing")
    for count in (np.array(-1), np.array(1 << 62), np.array(1.5), np.zeros(2, np.int64)):
        write_array(checkpoint_path(folder, "add_count", 0), count)
        with pytest.raises(StorageError, match=r"add_count_ckpt\.0\.gz contains"):
            imported(folder)
    second = imported(folder, checkpoints=[1])
    write_array(checkpoint_path(folder, "add_count", 0), np.array(0))
    np.testing.assert_array_equal(imported(folder).observations, second.observations)
    for number in range(2):
        write_array(checkpoint_path(folder, "add_count", number), np.array(0))
    with pytest.raises(StorageError, match="contains no transitions"):
        imported(folder)


def test_flags_of_rows_that_were_never_written_are_an_error(tmp_path: Path) -> None:
    ring = Ring(100)
    ring.play(50, np.random.default_rng(0))
    ring.save(tmp_path, 0, count=100)
    flags = np.zeros(100, np.uint8)
    flags[99] = 0xA5
    write_array(checkpoint_path(tmp_path, "terminal", 0), flags)
    with pytest.raises(CorruptStorage, match=r"terminal.* contains 165"):
        imported(tmp_path)
