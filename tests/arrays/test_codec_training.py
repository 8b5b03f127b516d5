"""Training makes payloads smaller, older payloads stay readable, and unused codecs are freed."""

from __future__ import annotations

import gc
import pickle
import threading
import warnings
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from gathering import loaded_slots
from numpy.typing import NDArray
from slot_objects import slots_at

from sb3_compressed import CompressedArray
from sb3_compressed.arrays import memory_log
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.codecs.zstd_dict import ZstdDict
from sb3_compressed.common import memory_warning


def dictionary_of(array: CompressedArray) -> bytes:
    """Return the dictionary of the array's codec."""
    assert isinstance(array.codec, Delta | ZstdDict)
    return array.codec.dictionary


def scenes(n_steps: int, n_envs: int = 2, seed: int = 0) -> NDArray[np.uint8]:
    """Return stacks of four frames of a game: a background of its own, on which two things move."""
    rng = np.random.default_rng(seed)
    background = np.repeat(rng.integers(0, 256, (1, 12, 24), np.uint8), 2, axis=1)
    frames = np.repeat(background, (n_steps + 3) * n_envs, axis=0).reshape(n_steps + 3, n_envs, 24, 24)
    for step, env in np.ndindex(n_steps + 3, n_envs):
        row, column = rng.integers(0, 20, 2)
        frames[step, env, row : row + 4, column : column + 4] = 255
    return np.stack([frames[i : i + n_steps] for i in range(4)], axis=2)  # [n_steps, n_envs, 4, 24, 24]


def write_rows(array: CompressedArray, stacks: NDArray[np.uint8], start: int = 0) -> None:
    for row in range(start, len(stacks)):
        array[row] = stacks[row]


def codecs_of(array: CompressedArray) -> set[Any]:
    """Return the codecs that the slots refer to."""
    slots = [slot for slot in loaded_slots(array)[0].ravel() if slot is not None]
    return {part for slot in slots for part in slot if not isinstance(part, bytes)}


@pytest.mark.parametrize("frame_stack", ["auto", None])
def test_payloads_get_smaller_and_all_of_them_stay_readable(frame_stack: Any) -> None:
    stacks = scenes(600)
    array = CompressedArray(stacks.shape, codec="zstd-dict", frame_stack=frame_stack, num_threads=1)
    write_rows(array, stacks)
    assert len(codecs_of(array)) >= 3
    np.testing.assert_array_equal(np.asarray(array), stacks)
    plain = CompressedArray(stacks.shape, codec="zstd", frame_stack=frame_stack)
    write_rows(plain, stacks)
    assert array.nbytes < 0.75 * plain.nbytes
    newest, oldest = (
        sum(len(part) for part in slots_at(array, row)[0][1:]) for row in (-1, 8)
    )  # when the layout is known
    assert newest < 0.5 * oldest


def test_a_codec_is_freed_with_its_last_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_log, "MIN_NBYTES", 1 << 10)  # payloads are freed by segments
    array = CompressedArray((50, 1, 4, 24, 24), codec="zstd-dict", frame_stack=4, num_threads=1)
    stacks = scenes(2000, n_envs=1)
    known: weakref.WeakSet[Any] = weakref.WeakSet()
    for step, stack in enumerate(stacks):
        array[step % 50] = stack
        known.add(array.codec)
    gc.collect()
    assert len(known) <= 2


@pytest.mark.parametrize("codec", ["delta", "zstd-dict"])
@pytest.mark.parametrize("item_shape", [(), (7,), (16,), (0,)])
def test_items_of_any_size_survive_training(codec: str, item_shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 3, (400, 2, *item_shape), np.uint8)
    array = CompressedArray(values.shape, codec=codec)
    write_rows(array, values)
    np.testing.assert_array_equal(np.asarray(array), values)


@pytest.mark.parametrize("first_shift", [18, 24, 30])
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


@dataclass(frozen=True)
class Failing(ZstdDict):
    """Raises in its first training."""

    name: ClassVar[str] = "failing"
    threads: ClassVar[list[threading.Thread]] = []

    def train(self, frames: NDArray[Any]) -> ZstdDict:
        self.threads.append(threading.current_thread())
        if len(self.threads) == 1:
            raise RuntimeError("no memory")
        return super().train(frames)


def test_an_error_in_a_training_is_raised_once_by_the_write_that_trains() -> None:
    stacks = scenes(300)
    array = CompressedArray(stacks.shape, codec=Failing(), frame_stack=4, num_threads=2)
    with pytest.raises(RuntimeError, match="no memory"):
        write_rows(array, stacks)
    n_rows = int(np.flatnonzero(array.references[:, 0] == 0)[0])
    assert slots_at(array, n_rows).tolist() == [None, None]
    twin = pickle.loads(pickle.dumps(array))
    for each in (array, twin):
        write_rows(each, stacks, n_rows)
        np.testing.assert_array_equal(np.asarray(each), stacks)
    assert dictionary_of(array)
    assert {*Failing.threads} == {threading.current_thread()}


@pytest.mark.parametrize("rows", [100, 2_000_000])
def test_a_warning_says_after_the_second_training_if_the_full_buffer_does_not_fit(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_warning, "available_memory", lambda: 10_000_000)
    frames = movie(0, 100)
    array = CompressedArray((rows, 4, 48, 48), frame_stack=None)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        write_rows(array, frames)
    assert [str(each.message).partition(" will")[0] for each in warned] == ["the full buffer"] * (rows > 100)


# -- after a change of scene ---------------------------------------------------------------------------------


def movie(seed: int, n_steps: int, n_envs: int = 4) -> NDArray[np.uint8]:
    """Return frames of another game for each seed, ``(n_steps, n_envs, 48, 48)``."""
    rng = np.random.default_rng(seed)
    frames = np.repeat(rng.integers(0, 256, (1, 48, 48), np.uint8), n_steps * n_envs, axis=0)
    for frame, (row, column) in zip(frames, rng.integers(0, 42, (len(frames), 2)), strict=True):
        frame[row : row + 6, column : column + 6] = 255
    return frames.reshape(n_steps, n_envs, 48, 48)


def noise(n_steps: int, n_envs: int = 4) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (n_steps, n_envs, 48, 48), np.uint8)


def payload_sizes(array: CompressedArray, frames: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Write rows of frames, check them, and return the sizes of their payloads, ``(n_rows * n_envs,)``."""
    sizes = []
    for row, frame in enumerate(frames):
        array[row % len(array)] = frame
        sizes += [len(slot[-1]) for slot in slots_at(array, row % len(array))]
        if row % len(array) == len(array) - 1:
            np.testing.assert_array_equal(np.asarray(array), frames[row + 1 - len(array) : row + 1])
    return np.array(sizes)


def test_payloads_are_small_again_soon_after_each_change_of_scene() -> None:
    array = CompressedArray((50, 4, 48, 48), frame_stack=None, num_threads=1)
    for seed, n_steps in enumerate((1600, 700, 1333, 900)):
        sizes = payload_sizes(array, movie(seed, n_steps))
        assert sizes[512:].max() < 0.1 * 48 * 48
        assert seed == 0 or sizes[:60].min() > 0.5 * 48 * 48


def test_frames_after_noise_are_small() -> None:
    array = CompressedArray((50, 4, 48, 48), frame_stack=None, num_threads=1)
    payload_sizes(array, noise(4200))
    sizes = payload_sizes(array, movie(1, 5000))
    assert sizes[-512:].max() < 0.1 * 48 * 48
