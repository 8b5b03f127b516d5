"""Training makes payloads smaller, older payloads stay readable, and unused codecs are freed."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sb3_compressed import CompressedArray
from sb3_compressed.arrays.codec_training import CodecTrainer
from sb3_compressed.codecs import TrainableCodec, get_codec


def scenes(n_steps: int, n_envs: int = 2, seed: int = 0) -> NDArray[np.uint8]:
    """Return stacks of four frames of a game: a background of its own, on which two things move."""
    rng = np.random.default_rng(seed)
    background = np.repeat(rng.integers(0, 256, (1, 12, 24), np.uint8), 2, axis=1)
    frames = np.repeat(background, (n_steps + 3) * n_envs, axis=0).reshape(n_steps + 3, n_envs, 24, 24)
    for step, env in np.ndindex(n_steps + 3, n_envs):
        row, column = rng.integers(0, 20, 2)
        frames[step, env, row : row + 4, column : column + 4] = 255
    return np.stack([frames[i : i + n_steps] for i in range(4)], axis=2)  # [n_steps, n_envs, 4, 24, 24]


def codecs_of(array: CompressedArray) -> set[Any]:
    """Return the codecs that the slots refer to."""
    slots = [slot for slot in array.slots.ravel() if slot is not None]
    return {part for slot in slots for part in slot if not isinstance(part, bytes)}


@pytest.mark.parametrize("frame_stack", [4, "auto", None])
def test_payloads_get_smaller_and_all_of_them_stay_readable(frame_stack: Any) -> None:
    stacks = scenes(600)
    array = CompressedArray(stacks.shape, codec="zstd-dict", frame_stack=frame_stack)
    for row, stack in enumerate(stacks):
        array[row] = stack
    assert len(codecs_of(array)) >= 3
    np.testing.assert_array_equal(np.asarray(array), stacks)
    plain = CompressedArray(stacks.shape, codec="zstd", frame_stack=frame_stack)
    for row, stack in enumerate(stacks):
        plain[row] = stack
    assert array.nbytes < 0.75 * plain.nbytes
    newest, oldest = (sum(len(part) for part in array.slots[row, 0][1:]) for row in (-1, 8))  # when the layout is known
    assert newest < 0.5 * oldest


def test_training_keeps_payloads_and_frame_sharing() -> None:
    stacks = scenes(300, n_envs=1)
    array = CompressedArray(stacks.shape, codec="zstd-dict", frame_stack=4)
    for row, stack in enumerate(stacks):
        array[row] = stack
    payloads = [[part for part in slot if isinstance(part, bytes)] for slot in array.slots[:, 0]]
    for before, after in pairwise(payloads):
        assert [id(payload) for payload in before[1:]] == [id(payload) for payload in after[:-1]]
    mixed = [slot for slot in array.slots[:, 0] if len(slot) > 5]
    assert len(mixed) == 3 * (len(codecs_of(array)) - 1), "three observations show frames from before and after"


@pytest.mark.parametrize("way", [copy.deepcopy, lambda array: pickle.loads(pickle.dumps(array))])
def test_copies_include_the_trained_codec(way: Any) -> None:
    stacks = scenes(200)
    array = CompressedArray(stacks.shape, codec="zstd-dict", frame_stack=4)
    for row, stack in enumerate(stacks[:150]):
        array[row] = stack
    twin = way(array)
    assert twin.codec == array.codec
    for row, stack in enumerate(stacks[150:], 150):
        twin[row] = array[row] = stack
    np.testing.assert_array_equal(np.asarray(twin), stacks)
    assert twin.nbytes < 1.1 * array.nbytes


def test_a_codec_is_freed_with_its_last_payload() -> None:
    array = CompressedArray((50, 1, 4, 24, 24), codec="zstd-dict", frame_stack=4)
    stacks = scenes(2000, n_envs=1)
    known: weakref.WeakSet[Any] = weakref.WeakSet()
    for step, stack in enumerate(stacks):
        array[step % 50] = stack
        known.add(array.codec)
    gc.collect()
    assert set(known) == codecs_of(array) | {array.codec}
    assert len(known) <= 2


def test_samples_are_taken_at_growing_intervals_without_end() -> None:
    trainer = CodecTrainer()
    frame = np.zeros((1, 4), np.uint8)
    samples = []
    for n_frames in range(1, 60_000):
        sample = trainer.collect(frame + n_frames // 1000)
        if sample is not None:
            samples.append((n_frames, len(sample)))
    times = [n_frames for n_frames, _ in samples]
    assert times[:5] == [64, 64 + 256, 64 + 256 + 1024, 64 + 256 + 1024 + 4096, 64 + 256 + 1024 + 4096 + 16384]
    assert times[5] - times[4] == 16_384
    assert all(64 <= size <= CodecTrainer.MAX_FRAMES for _, size in samples)


def test_late_trainings_change_a_codec_only_if_frames_have_changed() -> None:
    trainer, codec = CodecTrainer(), get_codec("delta")
    assert isinstance(codec, TrainableCodec)

    def observe(frames: NDArray[np.uint8], codec: TrainableCodec) -> list[TrainableCodec]:
        codecs = [codec]
        for start in range(0, len(frames), 64):
            codecs.append(trainer.observe(codecs[-1], frames[start : start + 64]))
        return [after for before, after in pairwise(codecs) if after is not before]

    first, second = (scenes(12_000, seed=seed)[:, :, -1].reshape(-1, 24, 24) for seed in (0, 1))
    young = observe(first[:22_000], codec)
    assert len(young) == 4
    rng = np.random.default_rng(0)
    assert observe(rng.permutation(first), young[-1]) == observe(rng.permutation(first), young[-1]) == []
    *_, adapted = observe(rng.permutation(np.concatenate([second, second])), young[-1])
    frames = second[::500]
    assert sum(map(len, adapted.encode(frames))) < 0.7 * sum(map(len, young[-1].encode(frames)))


def test_huge_frames_are_not_sampled() -> None:
    trainer = CodecTrainer()
    assert all(trainer.collect(np.zeros((1, 1_000_000), np.uint8)) is None for _ in range(100))


@pytest.mark.parametrize("value", [0, 7])
def test_constant_frames_do_not_break_training(value: int) -> None:
    array = CompressedArray((400, 1, 4, 8, 8), codec="zstd-dict", frame_stack=4)
    for row in range(400):
        array[row] = np.full((4, 8, 8), value, np.uint8)
        array[row, 0] = np.full((4, 8, 8), row % 256, np.uint8)
    assert isinstance(array.codec, TrainableCodec)
    np.testing.assert_array_equal(array[:, 0, 0, 0, 0], np.arange(400) % 256)


@pytest.mark.parametrize("codec", ["delta", "zstd-dict"])
@pytest.mark.parametrize(
    "item_shape", [(), (1,), (2,), (3,), (4,), (7,), (8,), (15,), (16,), (17,), (0,), (4, 1), (4, 3)]
)
def test_items_of_any_size_survive_training(codec: str, item_shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 3, (400, 2, *item_shape), np.uint8)
    array = CompressedArray(values.shape, codec=codec)
    for row, items in enumerate(values):
        array[row] = items
    np.testing.assert_array_equal(np.asarray(array), values)


@pytest.mark.parametrize("first_shift", range(18, 32))
def test_a_layout_found_just_before_a_training_does_not_break_it(first_shift: int) -> None:
    # Then few frames of the new size were collected, of which zstd's trainer cannot take some numbers.
    rng = np.random.default_rng(0)
    array = CompressedArray((200, 1, 4))
    stack = np.zeros((1, 4), np.uint8)
    expected = np.zeros(array.shape, np.uint8)
    for row in range(200):
        if row < first_shift:
            stack = rng.integers(0, 256, (1, 4), dtype=np.uint8)
        else:
            stack = np.roll(stack, -1, axis=1)
            stack[:, -1] = rng.integers(256)
        array[row] = expected[row] = stack
    np.testing.assert_array_equal(np.asarray(array), expected)


def test_a_sample_of_thousands_of_frames_in_one_call_is_bounded() -> None:
    sample = CodecTrainer().collect(np.zeros((4096, 20, 20), np.uint8))
    assert sample is not None
    assert CodecTrainer.MIN_FRAMES <= len(sample) <= CodecTrainer.MAX_FRAMES
