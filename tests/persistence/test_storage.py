"""Buffers with ``storage=<folder>`` equal buffers in memory, survive their process, and reject what they cannot do."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import Stream
from gymnasium import spaces
from programs import run
from stable_baselines3 import DQN
from stored import ROWS, add, hold_equal, new
from support import atari_env

from sb3_compressed import (
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    StorageError,
    load_checkpoint,
)
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.commit_writer import CommitWriter


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommitWriter, "SEGMENT_NBYTES", 100_000)


@pytest.mark.parametrize("stream", ["atari", "console", "pendulum", "discrete"], indirect=True)
def test_buffer_in_a_folder_equals_one_in_memory_and_can_be_resumed(stream: Stream, tmp_path: Path) -> None:
    stored, held = new(stream, storage=tmp_path), new(stream)
    for number, transition in enumerate(stream[-1]):
        for buffer in (stored, held):
            transition.add_to(buffer)
        if number in (20, ROWS - 1, 150):
            hold_equal(stored, held)
            stored.close()
            with pytest.raises(StorageError, match="reading only"):
                transition.add_to(stored)
            hold_equal(stored, held)
            stored = new(stream, storage=tmp_path, storage_mode="resume")
            hold_equal(stored, held)
    hold_equal(stored, held)
    hold_equal(load_checkpoint(tmp_path, device="cpu"), held)


@pytest.mark.parametrize("codec", ["none", "rle", "delta", "zstd-dict"])  # the last two are trained
def test_folders_store_every_kind_of_codec(codec: str, stream: Stream, tmp_path: Path) -> None:
    stored = new(stream, compression_method=codec, storage=tmp_path)
    held = new(stream, compression_method=codec)
    add(stream[-1][:120], stored, held)
    hold_equal(stored, held)
    stored.close()
    resumed = new(stream, compression_method=codec, storage=tmp_path, storage_mode="resume")
    hold_equal(resumed, held)
    loaded = CompressedReplayBuffer.from_checkpoint(tmp_path, device="cpu")
    hold_equal(loaded, held)
    assert loaded.compression_method == codec
    assert resumed.observations.codec == loaded.observations.codec == stored.observations.codec


def test_frames_are_stored_once_also_after_resuming(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommitWriter, "SEGMENT_NBYTES", 64 << 20)
    n_envs, transitions = stream[2:]
    sizes = []
    stored = new(stream, storage=tmp_path, compression_method="none", rows=300)
    for number, transition in enumerate(transitions[:300]):
        transition.add_to(stored)
        if number in (199, 299):
            stored.close()
            sizes.append(sum(path.stat().st_size for path in tmp_path.glob("*.log")))
            stored = new(stream, storage=tmp_path, storage_mode="resume", compression_method="none", rows=300)
    frame_nbytes = 84 * 84
    n_ends = sum(int(transition.done.sum()) for transition in transitions[200:300])
    # One new frame for each transition, and whole stacks at ends of episodes, and at most one when resuming.
    assert (sizes[1] - sizes[0]) / frame_nbytes < (100 + 4) * n_envs * 1.1 + 8 * n_ends


def test_training_is_bit_identical_in_a_folder(tmp_path: Path) -> None:
    weights = []
    for options in ({}, {"storage": tmp_path}):
        model = DQN(
            "CnnPolicy", atari_env("Pong", 1), buffer_size=60, learning_starts=20, train_freq=10, seed=0, device="cpu",
            replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs=options,
        ).learn(120)  # fmt: skip
        weights.append([value.numpy().tobytes() for value in model.policy.state_dict().values()])
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("way", "n_steps", "size"), [("load", 60, 37), ("load", 130, 150), ("resume", 60, 150), ("resume", 130, 37)]
)
def test_buffer_of_another_size_gets_the_newest_transitions_that_fit(
    way: str, n_steps: int, size: int, stream: Stream, tmp_path: Path
) -> None:
    stored = new(stream, storage=tmp_path)
    add(stream[-1][:n_steps], stored)
    stored.close()
    if way == "load":
        resized = CompressedReplayBuffer.from_checkpoint(tmp_path, buffer_size=size * stream[2], device="cpu")
    else:
        n_removed = min(n_steps, ROWS) - size
        with pytest.warns(UserWarning, match="do not fit") if n_removed > 0 else nullcontext() as caught:
            resized = new(stream, rows=size, storage=tmp_path, storage_mode="resume")
        if caught:
            assert f"the oldest {n_removed * stream[2]} transitions" in str(caught[0].message)
    kept = min(n_steps, ROWS, size)
    held = new(stream, rows=size)
    add(stream[-1][n_steps - kept : n_steps], held)
    hold_equal(resized, held)
    add(stream[-1][n_steps : n_steps + 50], resized, held)
    hold_equal(resized, held)
    if way == "resume":
        resized.close()
        hold_equal(new(stream, rows=size, storage=tmp_path, storage_mode="resume"), held)


def test_folder_with_a_buffer_raises_and_names_the_choices(stream: Stream, tmp_path: Path) -> None:
    stored = new(stream, storage=tmp_path)
    stream[-1][0].add_to(stored)
    stored.close()
    with pytest.raises(StorageError, match=r"'resume' .* 'overwrite'"):
        new(stream, storage=tmp_path)
    assert new(stream, storage=tmp_path, storage_mode="resume").size() == 1
    assert new(stream, storage=tmp_path, storage_mode="overwrite").size() == 0


def test_buffers_that_cannot_be_stored_or_opened_raise_with_the_reason(stream: Stream, tmp_path: Path) -> None:
    space, action_space, n_envs, _ = stream
    with pytest.raises(StorageError, match="there is no folder"):
        new(stream, storage=tmp_path / "missing", storage_mode="resume")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StorageError, match=r"contains other files, such as notes\.txt"):
        new(stream, storage=tmp_path)
    with pytest.raises(StorageError, match="contains no buffer"):
        CompressedReplayBuffer.from_checkpoint(tmp_path)
    with pytest.raises(StorageError, match="for storage=<folder>"):
        new(stream, storage_mode="resume")
    with pytest.raises(StorageError, match="rollout"):
        CompressedRolloutBuffer(8, space, action_space, "cpu", n_envs=n_envs, storage=tmp_path)
    in_memory = new(stream)
    copy_checkpoint = partial(in_memory.copy_checkpoint, tmp_path / "copy")
    for call, word in ((in_memory.flush, "memory"), (in_memory.refresh, "refreshed"), (copy_checkpoint, "saved")):
        with pytest.raises(StorageError, match=word):
            call()
    folder = tmp_path / "buffer"
    stored = new(stream, storage=folder)
    with pytest.raises(StorageError, match="another buffer"):
        new(stream, storage=folder, storage_mode="resume")
    stored.close()
    with pytest.raises(StorageError, match=rf"n_envs is {n_envs} in the folder and 1 here"):
        CompressedReplayBuffer(100, space, action_space, device="cpu", storage=folder, storage_mode="resume")
    with pytest.raises(StorageError, match=r"stored as .*delta.* and as .*zstd"):
        new(stream, storage=folder, storage_mode="resume", compression_method="zstd")
    with pytest.raises(StorageError, match=r"action_space is Discrete\(4\) in the folder and Discrete\(9\) here"):
        CompressedReplayBuffer(100, space, spaces.Discrete(9), n_envs=n_envs, storage=folder, storage_mode="resume")
    other = spaces.Box(0, 255, (4, 80, 80), np.uint8)
    with pytest.raises(StorageError, match=r"observation_space is Box\(.*84.*in the folder and Box\(.*80.*here"):
        CompressedReplayBuffer(100, other, action_space, n_envs=n_envs, storage=folder, storage_mode="resume")
    assert new(stream, storage=folder, storage_mode="resume").size() == 0, "the folder is unchanged"


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import writer
from sb3_compressed import CompressedReplayBuffer
folder = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
buffer = writer.new_buffer(storage=folder)
for number in range(1, 20):
    writer.add_step(buffer, number)
end = buffer._storage.store.log.last.end
for room in (0, 40, 50_000, *range(200, 3000, 300)):
    before = writer.newest(buffer)
    resource.setrlimit(resource.RLIMIT_FSIZE, (end + room, resource.RLIM_INFINITY))
    failed = False
    try:
        writer.add_step(buffer, writer.newest(buffer) + 1)
    except OSError as error:
        failed = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(room, failed)
    assert writer.hold_that_it_is_whole(buffer) == before + (not failed), "a failed add adds nothing"
    assert writer.newest(CompressedReplayBuffer.from_checkpoint(folder, device="cpu")) == writer.newest(buffer)
    end = buffer._storage.store.log.last.end
for _ in range(3):  # there is free space again
    writer.add_step(buffer, writer.newest(buffer) + 1)
last = writer.hold_that_it_is_whole(buffer)
assert writer.hold_that_it_is_whole(CompressedReplayBuffer.from_checkpoint(folder, device="cpu")) == last
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the size of files cannot be limited there")
def test_full_disk_raises_and_loses_nothing(tmp_path: Path) -> None:
    outcomes = dict(line.split() for line in run(FULL_DISK, tmp_path / "buffer").splitlines())
    assert outcomes["0"] == "True", "without free space it failed"
    assert len({*outcomes.values()}) == 2, "with free space it did not"


def test_an_add_that_fails_in_the_middle_is_undone(stream: Stream, tmp_path: Path) -> None:
    stored, held = new(stream, storage=tmp_path), new(stream)
    add(stream[-1][:120], stored, held)
    too_large = replace(stream[-1][120], reward=np.array([1.0, 1e300, 1.0, 1.0]))
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        too_large.add_to(stored)
    hold_equal(stored, held)
    add(stream[-1][120:130], stored, held)
    hold_equal(stored, held)
    stored.close()
    hold_equal(load_checkpoint(tmp_path, device="cpu"), held)


def test_opening_a_folder_runs_no_stored_code(stream: Stream, tmp_path: Path) -> None:
    stored = new(stream, storage=tmp_path)
    add(stream[-1][:30], stored)
    stored.close()
    content = b"".join(path.read_bytes() for path in tmp_path.glob("*.log"))
    assert b"\x80\x04\x95" not in content, "no pickle"
    store = ArrayStore.open(tmp_path)
    assert json.dumps(store.metadata), "metadata is plain data"
    store.close()


BOUNDED = """
import resource, sys
import numpy as np
from gymnasium import spaces
from memory import memory_of_process
from sb3_compressed import CompressedReplayBuffer
space, buttons = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(2)
def stack(number):
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (1, 4, 84, 84), np.uint8)  # noise: nothing to share or compress
size = 1_500
buffer = CompressedReplayBuffer(size, space, buttons, device="cpu", compression_method="none", storage=sys.argv[1])
zero = np.zeros(1)
buffer.add(stack(0), stack(1), zero, zero, zero, [{}])
before = memory_of_process("RssAnon")
# From here on there is memory for a small part of it; memory-mapped files do not count.
_, hard = resource.getrlimit(resource.RLIMIT_DATA)
resource.setrlimit(resource.RLIMIT_DATA, (memory_of_process("VmData") + 32_000_000, hard))
for number in range(1, size):
    buffer.add(stack(number), stack(number + 1), zero, zero, zero, [{}])
numbers = np.random.default_rng(0).integers(0, size, 200)
for number in numbers:
    assert (buffer.observations[number] == stack(number)).all()
    assert (buffer.next_observations[number] == stack(number + 1)).all()
print(memory_of_process("RssAnon") - before, 2 * size * 4 * 84 * 84)
"""


@pytest.mark.slow
def test_buffer_in_a_folder_can_be_larger_than_the_memory(tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("the memory of a process is read from /proc, as on Linux")
    taken, raw = map(int, run(BOUNDED, tmp_path / "b").split())
    assert taken < raw / 5
