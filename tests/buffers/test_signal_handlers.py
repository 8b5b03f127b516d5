"""Handlers of signals that use a buffer while they interrupt a method of it: as in SB3, both calls are right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import FACTOR
from gymnasium import spaces
from interrupts import bytecodes, call_within, evenly
from numpy.typing import NDArray

from sb3_compressed import CompressedDictReplayBuffer, CompressedNStepReplayBuffer, CompressedReplayBuffer
from sb3_compressed.arrays import memory_log, slot_copying

N_ROWS, N_FRAMES = 150, 600
SPACE = spaces.Box(0, 255, (4, 84, 84), np.uint8)
KINDS = ["replay", "zstd3", "dict", "n-step", "prioritized", "folder"]


@pytest.fixture(scope="module")
def film() -> NDArray[np.uint8]:
    """Noise, each frame with its number in two pixels: segments are full soon."""
    frames = np.random.default_rng(0).integers(0, 256, (N_FRAMES + 5, 84, 84), np.uint8)
    frames[:, 0, :2] = np.stack(np.divmod(np.arange(len(frames)), 256), -1)
    return frames


class Adder:
    """Adds numbered transitions to a buffer."""

    def __init__(self, kind: str, film: NDArray[np.uint8], folder: Path) -> None:
        options: dict[str, Any] = {"device": "cpu", "compression_method": "zstd3"}
        cls: Any = {"dict": CompressedDictReplayBuffer, "n-step": CompressedNStepReplayBuffer}.get(
            kind, CompressedReplayBuffer
        )
        if kind == "replay":
            options["compression_method"] = "auto"
        if kind == "n-step":
            options["n_steps"] = 3
        if kind == "prioritized":
            options["sampler"] = kind
        if kind == "folder":
            options["storage"] = folder / kind
        space: Any = spaces.Dict({"image": SPACE}) if kind == "dict" else SPACE
        self.buffer = cls(N_ROWS, space, spaces.Discrete(3), **options)
        self.kind, self.film, self.number = kind, film, 0
        self.add(N_ROWS + 20)

    def add(self, n_steps: int) -> None:
        for step in range(self.number, self.number + n_steps):
            first = step % N_FRAMES
            obs, next_obs = self.film[first : first + 4][np.newaxis], self.film[first + 1 : first + 5][np.newaxis]
            both: Any = [{"image": obs}, {"image": next_obs}] if self.kind == "dict" else [obs, next_obs]
            self.buffer.add(*both, np.full((1, 1), 0), np.full(1, float(first)), np.zeros(1), [{}])
        self.number += n_steps

    def assert_consistent(self, batch: Any, *, is_whole: bool) -> None:
        """Assert that observations are those that were added, if need be in the row of their reward."""
        obs = batch.observations["image"] if self.kind == "dict" else batch.observations
        for item, reward in zip(obs.numpy(), batch.rewards.numpy().ravel(), strict=True):
            number = int(item[0, 0, 0]) * 256 + int(item[0, 0, 1])
            np.testing.assert_array_equal(item, self.film[number : number + 4])
            assert number == reward or not is_whole or self.kind == "n-step"


@pytest.mark.parametrize("kind", KINDS)
def test_sample_within_sample(kind: str, film: NDArray[np.uint8], tmp_path: Path) -> None:
    adder, batches = Adder(kind, film, tmp_path), list[Any]()

    def sample() -> None:
        batches.append(adder.buffer.sample(16))

    for _ in range(3):  # so that the memory of two batches is reused, as below
        batches.clear()
        sample()
        sample()
    batches.clear()
    # What these two do depends on which parts threads of the pool have begun.
    found = [at for at in bytecodes(sample) if at[0].co_name not in ("run_in_caller", "close")]
    for at in evenly(found, 25 if FACTOR is None else len(found)):
        batches.clear()
        call_within(sample, at, sample)
        assert batches
        for batch in batches:
            adder.assert_consistent(batch, is_whole=True)


@pytest.mark.parametrize("kind", KINDS)
def test_sample_within_add(kind: str, film: NDArray[np.uint8], tmp_path: Path) -> None:
    adder, batches = Adder(kind, film, tmp_path), list[Any]()
    found = bytecodes(lambda: adder.add(1))
    for at in evenly(found, 25 if FACTOR is None else len(found)):
        batches.clear()
        call_within(lambda: adder.add(1), at, lambda: batches.append(adder.buffer.sample(16)))
        for batch in batches:  # as in SB3, it may have half of the new row
            adder.assert_consistent(batch, is_whole=False)
        adder.assert_consistent(adder.buffer.sample(16), is_whole=True)


@pytest.mark.parametrize("kind", KINDS)
def test_adding_all_rows_within_sample(kind: str, film: NDArray[np.uint8], tmp_path: Path) -> None:
    """What is read was overwritten meanwhile, and the memory of it was freed."""
    adder, batches = Adder(kind, film, tmp_path), list[Any]()

    def sample() -> None:
        batches.append(adder.buffer.sample(16))

    sample()
    reading = {"read", "read_into", "gather", "_references_at"}
    found = [at for at in bytecodes(sample) if at[0].co_name in reading]
    for at in evenly(found, 15 if FACTOR is None else len(found)):
        call_within(sample, at, lambda: adder.add(N_ROWS + 50))
        adder.assert_consistent(batches.pop(), is_whole=False)
        adder.assert_consistent(adder.buffer.sample(16), is_whole=True)


SMALL = spaces.Box(0, 255, (4, 10, 10), np.uint8)
Arrays = tuple[Any, Any]
"""Observations and next observations: of a buffer, or ndarrays of the same content."""


def small_stacks(first: int, n: int) -> NDArray[np.uint8]:
    """Return stacks of noise that follow each other, ``(n, 1, 4, 10, 10)``."""
    frames = np.random.default_rng(0).integers(0, 256, (400, 10, 10), np.uint8)
    return np.stack([frames[at : at + 4] for at in range(first, first + n)])[:, np.newaxis]


def filled() -> tuple[CompressedReplayBuffer, Arrays]:
    """Return a buffer of noise, and what it contains."""
    buffer = CompressedReplayBuffer(
        60, SMALL, spaces.Discrete(3), device="cpu", compression_method="zstd3", frame_stack=4
    )
    expected = small_stacks(0, 60), small_stacks(1, 60)
    zeros = np.zeros((60, 1))
    buffer.extend(*expected, zeros[..., np.newaxis], zeros, zeros, timeouts=zeros)
    return buffer, expected


def overwrite_most(arrays: Arrays) -> None:
    """Leave most of the memory unused, so that slots are moved when it is asked for, and not before."""
    for array, plain in zip(arrays, (5, 6), strict=True):
        array[6:50] = plain


def encode(arrays: Arrays) -> None:
    following = small_stacks(60, 2)
    if isinstance(arrays[0], np.ndarray):
        arrays[0][0], arrays[1][0] = following
    else:
        references = arrays[0].stream.append(*following)
        arrays[0].write_encoded(0, references[0])
        arrays[1].write_encoded(0, references[1])


def encode_what_is_repeated(arrays: Arrays) -> None:
    last = small_stacks(60, 1)[0]
    if isinstance(arrays[0], np.ndarray):
        arrays[0][0] = arrays[1][0] = last
    else:
        for array, references in zip(arrays, arrays[0].stream.append(last, last), strict=True):
            array.write_encoded(0, references)


def assign_row(arrays: Arrays) -> None:
    arrays[0][7] = small_stacks(100, 1)[0]


def assign_rows(arrays: Arrays) -> None:
    arrays[0][10:30] = small_stacks(100, 20)


def assign_what_is_shared(arrays: Arrays) -> None:
    arrays[1][52:58] = small_stacks(53, 6)


def assign_one_to_all(arrays: Arrays) -> None:
    arrays[0][3:9] = small_stacks(100, 1)[0, 0]


def read_rows(arrays: Arrays) -> None:
    np.testing.assert_array_equal(np.asarray(arrays[0][50:]), small_stacks(50, 10))


def ask_for_memory(arrays: Arrays) -> None:
    assert arrays[1].nbytes


@pytest.mark.parametrize(
    "use",
    [
        encode, encode_what_is_repeated, assign_row, assign_rows, assign_what_is_shared, assign_one_to_all,
        read_rows, ask_for_memory,
    ],
)  # fmt: skip
def test_asking_for_memory_within_a_use_of_arrays(use: Callable[[Arrays], None], monkeypatch: Any) -> None:
    """It moves slots, but none that are used: those of new rows, and what the interrupted call itself moves."""
    for name, nbytes in {"MIN_NBYTES": 1 << 12, "MAX_NBYTES": 1 << 14, "MAX_UNUSED_NBYTES": 0}.items():
        monkeypatch.setattr(memory_log, name, nbytes)
    before, expected = filled()

    def mostly_unused() -> Arrays:
        buffer = copy.deepcopy(before)
        arrays = buffer.observations, buffer.next_observations
        overwrite_most(arrays)
        return arrays

    arrays = mostly_unused()
    # What allocates segments depends on the memory that earlier calls have freed.
    found = [at for at in bytecodes(lambda: use(arrays)) if at[0].co_name not in {"new_block", "is_unshared"}]
    overwrite_most(expected)
    use(expected)
    holders = "compressed_array.py", "assignment.py", "observation_stream.py", "frame_dedup.py", "slot_log.py"
    holding = [at for at in found if at[0].co_filename.endswith(holders)]
    points = [*evenly(found, 30), *evenly(holding, 60)] if FACTOR is None else found
    for at in points:
        arrays = mostly_unused()
        call_within(lambda arrays=arrays: use(arrays), at, lambda arrays=arrays: arrays[0].nbytes)  # type: ignore[misc]
        for _ in range(2):
            for array, values in zip(arrays, expected, strict=True):
                np.testing.assert_array_equal(array, values)
            assert arrays[0].nbytes < 40_000  # once nothing is used


@pytest.mark.parametrize("is_copied", [True, False])
def test_copying_or_reading_all_within_an_add_that_begins_a_segment(is_copied: bool, monkeypatch: Any) -> None:
    """A copy ends the segment that was begun; a first read caches the codec."""
    for module, name in ((memory_log, "MIN_NBYTES"), (memory_log, "MAX_NBYTES"), (slot_copying, "CALL_NBYTES")):
        monkeypatch.setattr(module, name, 256)  # so that several calls copy what the new row continues
    before = CompressedReplayBuffer(60, SMALL, spaces.Discrete(3), device="cpu", compression_method="delta")
    stacks = small_stacks(0, 52)

    def add(buffer: CompressedReplayBuffer, row: int) -> None:
        buffer.add(stacks[row], stacks[row + 1], np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])

    for row in range(50):
        add(before, row)

    buffer = copy.deepcopy(before)  # of which the next add begins a segment
    files = "slot_log.py", "slot_copying.py", "memory_log.py"
    found = [at for at in bytecodes(lambda: add(buffer, 50)) if at[0].co_filename.endswith(files)]
    found = evenly(found, 200 if FACTOR is None else len(found))
    for at in found:
        buffer, others = copy.deepcopy(before), list[Any]()

        def use(buffer: CompressedReplayBuffer = buffer, others: list[Any] = others) -> None:
            others.append(copy.deepcopy(buffer) if is_copied else buffer.observations[:50])

        call_within(lambda buffer=buffer: add(buffer, 50), at, use)  # type: ignore[misc]
        np.testing.assert_array_equal(buffer.observations[:51], stacks[:51])
        np.testing.assert_array_equal(buffer.next_observations[:51], stacks[1:])
        [other] = others
        np.testing.assert_array_equal(other.observations[:50] if is_copied else other, stacks[:50])
