"""Handlers of signals that use a buffer while they interrupt a method of it: as in SB3, both calls are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import FACTOR
from gymnasium import spaces
from interrupts import bytecodes, call_within, evenly
from numpy.typing import NDArray

from sb3_compressed import CompressedDictReplayBuffer, CompressedNStepReplayBuffer, CompressedReplayBuffer

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
    found = bytecodes(sample)
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
