"""``joint_commit``: the steps of a block are committed to the folder together, or not at all."""

from __future__ import annotations

import dis
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Stream
from drawn_examples import FACTOR
from episodes import filled
from interrupts import Bytecode, bytecodes, evenly, interrupt
from programs import environment_with, run_python

from sb3_compressed import load_checkpoint
from sb3_compressed.errors import StorageError
from sb3_compressed.storage.commit_writer import CommitWriter

#: At how many bytecodes of the block, and of everything, the block is interrupted.
N_INTERRUPTS = 12 if FACTOR is None else 40
ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def assert_same_content(ours: Any, theirs: Any) -> None:
    assert (ours.pos, ours.full) == (theirs.pos, theirs.full)
    for name in ARRAYS:
        if hasattr(theirs, name):
            np.testing.assert_array_equal(np.asarray(getattr(ours, name)), np.asarray(getattr(theirs, name)))


def full(*_: Any) -> None:
    raise OSError("no space left on device")


def add(buffer: Any, stream: Stream, first: int, last: int) -> None:
    for transition in stream[3][first:last]:
        transition.add_to(buffer)


@pytest.mark.parametrize("optimize_memory_usage", [False, True])
@pytest.mark.parametrize("n_steps", [1, 30, 49, 50, 60])
def test_folder_and_buffer_equal_those_of_single_commits(
    stream: Stream, tmp_path: Path, n_steps: int, optimize_memory_usage: bool
) -> None:
    options = {"optimize_memory_usage": optimize_memory_usage}
    expected = filled(stream, 170, 50, **options)
    buffer = filled(stream, 50, 50, storage=tmp_path / "buffer", **options)
    for first in range(50, 170, n_steps):
        with buffer.joint_commit(n_steps):
            add(buffer, stream, first, min(first + n_steps, 170))
    assert_same_content(buffer, expected)
    shutil.copytree(tmp_path / "buffer", tmp_path / "killed")  # what a killed process leaves
    assert_same_content(load_checkpoint(tmp_path / "killed", device="cpu"), expected)
    buffer.close()
    assert_same_content(load_checkpoint(tmp_path / "buffer", device="cpu"), expected)


def test_kill_within_the_block_leaves_what_was_before_it(stream: Stream, tmp_path: Path) -> None:
    expected = filled(stream, 60, 50)
    buffer = filled(stream, 60, 50, storage=tmp_path / "buffer")
    with buffer.joint_commit(20):
        add(buffer, stream, 60, 80)
        shutil.copytree(tmp_path / "buffer", tmp_path / "killed")
    assert_same_content(load_checkpoint(tmp_path / "killed", device="cpu"), expected)


def test_steps_before_an_exception_are_undone(stream: Stream, tmp_path: Path) -> None:
    buffer = filled(stream, 60, 50, storage=tmp_path / "buffer")

    def add_and_fail() -> None:
        with buffer.joint_commit(20):
            add(buffer, stream, 60, 70)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        add_and_fail()
    assert_same_content(buffer, filled(stream, 60, 50))
    stream[3][60].add_to(buffer)
    expected = filled(stream, 61, 50)
    assert_same_content(buffer, expected)
    shutil.copytree(tmp_path / "buffer", tmp_path / "killed")
    assert_same_content(load_checkpoint(tmp_path / "killed", device="cpu"), expected)


def test_failed_commit_leaves_the_buffer_as_it_was_before_the_block(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = filled(stream, 60, 50, storage=tmp_path / "buffer")

    with monkeypatch.context() as patch:
        patch.setattr(CommitWriter, "commit", full)
        with pytest.raises(OSError, match="no space left"), buffer.joint_commit(45):
            add(buffer, stream, 60, 100)
    assert_same_content(buffer, filled(stream, 60, 50))
    stream[3][60].add_to(buffer)
    buffer.close()
    assert_same_content(load_checkpoint(tmp_path / "buffer", device="cpu"), filled(stream, 61, 50))
    with pytest.raises(StorageError, match="nothing was added"), buffer.joint_commit(1):
        pass


def test_a_failed_commit_leaves_the_sampler_as_it_was(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = filled(stream, 40, 50, storage=tmp_path / "buffer", sampler="prioritized")
    indices = np.arange(40 * buffer.n_envs)
    buffer.sample(4)
    buffer.update_priorities(indices, 1.0 + indices)
    before = buffer.sampler.state_dict()["priorities"].copy()

    with monkeypatch.context() as patch:
        patch.setattr(CommitWriter, "commit", full)
        with pytest.raises(OSError, match="no space left"), buffer.joint_commit(30):
            add(buffer, stream, 40, 60)
    buffer.sample(4)
    np.testing.assert_array_equal(buffer.sampler.state_dict()["priorities"], before)


def test_a_block_within_a_block_belongs_to_it_and_is_not_flushed(stream: Stream, tmp_path: Path) -> None:
    buffer = filled(stream, 60, 50, storage=tmp_path / "buffer")
    with buffer.joint_commit(30):
        add(buffer, stream, 60, 70)
        with buffer.joint_commit(10):
            add(buffer, stream, 70, 80)
        with pytest.raises(StorageError, match="flush"):
            buffer.flush()
        shutil.copytree(tmp_path / "buffer", tmp_path / "killed")
    assert_same_content(load_checkpoint(tmp_path / "killed", device="cpu"), filled(stream, 60, 50))
    assert_same_content(load_checkpoint(tmp_path / "buffer", device="cpu"), filled(stream, 80, 50))


def test_more_steps_than_announced_are_an_error(stream: Stream, tmp_path: Path) -> None:
    buffer = filled(stream, 60, 50, storage=tmp_path / "buffer")
    with pytest.raises(StorageError, match="announced"), buffer.joint_commit(3):
        add(buffer, stream, 60, 64)
    buffer.flush()
    expected = filled(stream, 60, 50)
    assert_same_content(buffer, expected)
    assert_same_content(load_checkpoint(tmp_path / "buffer", device="cpu"), expected)


def test_block_does_nothing_for_a_buffer_in_memory(stream: Stream) -> None:
    buffer = filled(stream, 60, 50)
    with buffer.joint_commit(10):
        stream[3][60].add_to(buffer)
    assert_same_content(buffer, filled(stream, 61, 50))


def follows_a_call(at: Bytecode) -> bool:
    """Return whether Python handles signals before a bytecode, as it does after each call."""
    code, offset = at
    before = [each.opname for each in dis.get_instructions(code) if each.offset < offset]
    return bool(before) and before[-1].startswith("CALL")


@pytest.mark.slow
def test_after_an_interrupted_block_every_add_is_committed(stream: Stream, tmp_path: Path) -> None:
    def with_some_rows(name: str) -> Any:
        return filled(stream, 60, 50, storage=tmp_path / name)

    def add_block(buffer: Any) -> None:
        with buffer.joint_commit(3):
            add(buffer, stream, 60, 63)

    for name in ("first", "second"):  # the first one runs what no later one does, such as imports
        buffer = with_some_rows(name)
        found = [at for at in bytecodes(lambda: add_block(buffer)) if follows_a_call(at)]  # noqa: B023  # as below
    own = [at for at in found if at[0].co_name in ("__enter__", "__exit__", "begin_joint_rows", "end_joint_rows")]
    assert len(own) > 8
    for number, at in enumerate([*evenly(own, N_INTERRUPTS), *evenly(found, N_INTERRUPTS)]):
        buffer = with_some_rows(str(number))
        error = interrupt(lambda: add_block(buffer), at)  # noqa: B023  # it is called at once
        for step in range(buffer.pos + 50, 65):
            stream[3][step].add_to(buffer)
        shutil.copytree(tmp_path / str(number), tmp_path / "killed", dirs_exist_ok=False)  # what a kill leaves
        assert_same_content(load_checkpoint(tmp_path / "killed", device="cpu"), filled(stream, 65, 50))
        shutil.rmtree(tmp_path / "killed")
        buffer.close()
        del error  # its traceback kept the block until here, as in a notebook


@pytest.mark.slow
@pytest.mark.parametrize("method", ["extend", "joint_commit"])
def test_a_full_disk_leaves_the_buffer_as_it_was_before_the_block(method: str, tmp_path: Path) -> None:
    script = """
import resource, shutil, signal, sys
import numpy as np
import writer
from sb3_compressed import load_checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder, method = sys.argv[1:]
buffer = writer.new_buffer(storage=folder)
for number in range(1, 10):
    writer.add_step(buffer, number)
end = buffer._storage.store.log.last.end
noise = np.random.default_rng(0).integers(0, 256, (40, *buffer.observations.shape[1:]), np.uint8)
zeros = np.zeros((40, buffer.n_envs))
def add_noise():
    if method == "extend":
        buffer.extend(noise, noise, zeros, zeros, zeros == 1, timeouts=zeros == 1)
        return
    with buffer.joint_commit(40):
        for step in range(40):
            buffer.add(noise[step], noise[step], zeros[step], zeros[step], zeros[step] == 1, [{}] * buffer.n_envs)
resource.setrlimit(resource.RLIMIT_FSIZE, (end + 25 * noise[0].nbytes, resource.RLIM_INFINITY))
try:
    add_noise()
    raise SystemExit("it did not fail")
except OSError as error:
    pass
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert writer.hold_that_it_is_whole(buffer) == 9
writer.add_step(buffer, 10)
shutil.copytree(folder, folder + "-killed")
assert writer.hold_that_it_is_whole(load_checkpoint(folder + "-killed", device="cpu")) == 10
add_noise()
assert buffer.pos == 50
"""
    done = run_python(["-c", script, tmp_path / "b", method], environment_with())
    assert done.returncode == 0, done.stderr
