"""Ctrl-C at each bytecode of a save or flush: the buffer can be saved again, and nobody else may replace the folder."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import FACTOR
from gymnasium import spaces
from interrupts import Bytecode, bytecodes, evenly, interrupt

from sb3_compressed import CompressedReplayBuffer, StorageError, load_checkpoint, save_checkpoint

SPACE, BUTTONS = spaces.Box(0, 255, (4, 12, 12), np.uint8), spaces.Discrete(2)
FRAMES = np.random.default_rng(0).integers(0, 256, (40, 1, 4, 12, 12), np.uint8)
#: At how many bytecodes each save is interrupted; at all of them in ``make bounds``, which takes an hour.
N_INTERRUPTS = 15 if FACTOR is None else 1 << 20

# An interrupted constructor of a file leaves the file to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect such files before another test, which does not ignore the warning."""
    yield
    gc.collect()


def new(**options: Any) -> CompressedReplayBuffer:
    return CompressedReplayBuffer(16, SPACE, BUTTONS, "cpu", compression_method="zstd3", frame_stack=4, **options)


def add(buffer: CompressedReplayBuffer, first: int, last: int) -> None:
    for step in range(first, last):
        reward, done = np.array([float(step)]), np.array([step % 7 == 6])
        buffer.add(FRAMES[step], FRAMES[step + 1], np.array([[step % 2]]), reward, done, [{}])


def assert_saved(folder: Path, buffer: CompressedReplayBuffer) -> None:
    loaded = load_checkpoint(folder, device="cpu")
    assert (loaded.pos, loaded.full) == (buffer.pos, buffer.full)
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        np.testing.assert_array_equal(np.asarray(getattr(loaded, name)), np.asarray(getattr(buffer, name)))
    if buffer.sampler is not None:
        assert loaded.sampler is not None
        for name, value in buffer.sampler.state_dict().items():
            np.testing.assert_array_equal(loaded.sampler.state_dict()[name], value)


def first_save(folder: Path) -> CompressedReplayBuffer:
    buffer = new()
    add(buffer, 0, 10)
    return buffer


def later_save(folder: Path) -> CompressedReplayBuffer:
    buffer = new(sampler="prioritized")
    add(buffer, 0, 10)
    buffer.save_checkpoint(folder)
    add(buffer, 10, 19)
    return buffer


def save_of_a_loaded_buffer(folder: Path) -> CompressedReplayBuffer:
    add(buffer := new(), 0, 10)
    buffer.save_checkpoint(folder)
    loaded: CompressedReplayBuffer = load_checkpoint(folder, device="cpu")
    add(loaded, 10, 13)
    return loaded


def save_of_new_arrays(folder: Path) -> CompressedReplayBuffer:
    loaded = save_of_a_loaded_buffer(folder)
    loaded.rewards = loaded.rewards + 1  # so that the whole buffer is written again
    return loaded


@pytest.mark.parametrize("prepare", [first_save, later_save, save_of_new_arrays, save_of_a_loaded_buffer])
def test_an_interrupted_save_can_be_repeated(prepare: Callable[[Path], CompressedReplayBuffer], tmp_path: Path) -> None:
    def run(folder: Path, at: Bytecode | None) -> list[Bytecode]:
        buffer = prepare(folder)
        if at is None:
            return bytecodes(lambda: buffer.save_checkpoint(folder))
        error = interrupt(lambda: buffer.save_checkpoint(folder), at)
        add(buffer, 20, 22)
        buffer.save_checkpoint(folder)
        assert_saved(folder, buffer)
        with pytest.raises(StorageError, match="already"):
            save_checkpoint(new(), folder)
        del error
        return []

    interrupt_evenly(run, tmp_path, at_least=3000)


def interrupt_evenly(run: Callable[[Path, Bytecode | None], list[Bytecode]], folder: Path, at_least: int) -> None:
    """Call a function without an interrupt, which returns the bytecodes, and then with one at each of some."""
    run(folder / "imports", None)
    found = run(folder / "complete", None)
    assert len(found) > at_least
    for number, at in enumerate(evenly(found, N_INTERRUPTS)):
        run(folder / str(number), at)


def test_a_save_after_an_interrupted_one_does_not_replace_another_buffer(tmp_path: Path) -> None:
    def run(folder: Path, at: Bytecode | None) -> list[Bytecode]:
        buffer = first_save(folder)
        if at is None:
            return bytecodes(lambda: buffer.save_checkpoint(folder))
        error = interrupt(lambda: buffer.save_checkpoint(folder), at)
        other = new()
        add(other, 3, 9)
        other.save_checkpoint(folder, overwrite=True)
        with pytest.raises(StorageError, match="buffer"):
            buffer.save_checkpoint(folder)
        assert_saved(folder, other)
        del error
        return []

    interrupt_evenly(run, tmp_path, at_least=3000)
