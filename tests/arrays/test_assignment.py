"""Data sets that are assigned to arrays take as little memory as transitions that are added one after the other."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from interrupts import bytecodes, interrupt
from numpy.typing import NDArray

from sb3_compressed import CompressedArray, CompressedReplayBuffer, buffer_statistics

N = 120
SHAPE = (4, 12, 12)

Pair = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def dataset(n_envs: int, ends: tuple[int, ...] = (37, 90), shape: tuple[int, ...] = (12, 12)) -> Pair:
    """Return observations and next observations of stacked random frames, ``(N, n_envs, 4, ...)``."""
    rng = np.random.default_rng(0)
    obs, following = [], []
    stacks = [[rng.integers(0, 9, shape, np.uint8) * 20] * 4 for _ in range(n_envs)]
    for step in range(N):
        obs.append(np.stack([np.stack(stack) for stack in stacks]))
        stacks = [[*stack[1:], rng.integers(0, 9, shape, np.uint8) * 20] for stack in stacks]
        following.append(np.stack([np.stack(stack) for stack in stacks]))
        if step in ends:
            stacks = [[rng.integers(0, 9, shape, np.uint8) * 20] * 4 for _ in range(n_envs)]
    return np.stack(obs), np.stack(following)


def new(n_envs: int, **options: Any) -> Any:
    space = spaces.Box(0, 255, SHAPE, np.uint8)
    options = {"compression_method": "zstd3", **options}
    return CompressedReplayBuffer(N * n_envs, space, spaces.Discrete(3), device="cpu", n_envs=n_envs, **options)


def whole(array: Any, values: Any) -> None:
    array[...] = values


def parts(array: Any, values: Any) -> None:
    for begin in range(0, N, 17):
        array[begin : begin + 17] = values[begin : begin + 17]


def columns(array: Any, values: Any) -> None:
    for env in range(array.shape[1]):
        array[:, env] = values[:, env]


def items(array: Any, values: Any) -> None:
    for env in range(array.shape[1]):
        for row in np.arange(N):
            array[row, env] = values[row, env]


def numbers(array: Any, values: Any) -> None:
    order = np.random.default_rng(1).permutation(N)
    array[order] = values[order]


def stored_frames(buffer: Any) -> int:
    buffer.pos, buffer.full = 0, True
    return buffer_statistics(buffer).stored_frames


@pytest.mark.parametrize(("n_envs", "frame_stack"), [(3, "auto"), (1, 4)])
@pytest.mark.parametrize("way", [whole, parts, columns, items, numbers])
def test_frames_are_shared_as_by_extend(way: Callable[[Any, Any], None], n_envs: int, frame_stack: Any) -> None:
    obs, following = dataset(n_envs)
    zeros = np.zeros((N, n_envs))
    extended = new(n_envs, frame_stack=frame_stack)
    extended.extend(obs, following, zeros[..., None], zeros, zeros, timeouts=zeros)
    for names in (("observations", "next_observations"), ("next_observations", "observations")):
        buffer = new(n_envs, frame_stack=frame_stack)
        for name in names:
            way(getattr(buffer, name), obs if name == "observations" else following)
        assert np.array_equal(buffer.observations, obs)
        assert np.array_equal(buffer.next_observations, following)
        # Each frame that is stored again belongs to one of the few steps around the end of an episode, or to those
        # before the layout was found.
        assert stored_frames(buffer) <= stored_frames(extended) + 10 * n_envs


@pytest.mark.parametrize("n_envs", [1, 2])
def test_frames_are_shared_in_a_folder(n_envs: int, tmp_path: Path) -> None:
    obs, following = dataset(n_envs)
    buffer = new(n_envs, storage=tmp_path)
    buffer.observations[:], buffer.next_observations[:] = obs, following
    buffer.pos, buffer.full = 0, True
    buffer.close()
    loaded = CompressedReplayBuffer.from_checkpoint(tmp_path, device="cpu")
    assert np.array_equal(loaded.observations, obs)
    assert np.array_equal(loaded.next_observations, following)
    assert stored_frames(loaded) < 1.3 * N * n_envs


def test_adding_continues_after_an_assignment() -> None:
    obs, following = dataset(2)
    buffer, expected = new(2), np.zeros((2, N, 2, *SHAPE), np.uint8)
    for row in range(N):
        if row % 7 == 3:
            buffer.observations[50:60, 1] = expected[0, 50:60, 1] = obs[row : row + 10, 1] if row < 100 else 7
        buffer.add(obs[row], following[row], np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}] * 2)
        expected[:, row] = obs[row], following[row]
        for array, content in zip((buffer.observations, buffer.next_observations), expected, strict=True):
            assert np.array_equal(array, content)


def test_a_narrower_dtype() -> None:
    values = (np.random.default_rng(0).random((N, 1, 4, 6, 6)) * 9).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = CompressedArray(values.shape, np.float32, "zstd3", elem_type=np.float16)
    following = array.new_sharing_frames()
    array[:], following[:-1] = values, values[1:]
    assert np.array_equal(array, values.astype(np.float16))
    assert following.references[7, 0] == array.references[8, 0]


@pytest.mark.parametrize("shape", [(0, 2, 4, 6), (3, 0, 4, 6), (3, 2, 0), (1, 1, 1)])
def test_no_elements(shape: tuple[int, ...]) -> None:
    array, values = CompressedArray(shape, np.uint8), np.zeros(shape, np.uint8)
    for index in (..., slice(None), slice(0, 1)):
        array[index] = values[index]
        array[index] = 3
    array.assign(values)
    array.assign(array.copy())
    assert np.array_equal(array, values)


def test_a_codec_that_fails_leaves_the_array_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    obs, _ = dataset(2)
    array = CompressedArray(obs.shape, np.uint8, "zstd3")
    array[:] = obs
    encode, calls = type(array.codec).encode, iter(range(99))

    def failing(codec: Any, frames: Any) -> Any:
        if next(calls) == 1:
            raise RuntimeError("broken")
        return encode(codec, frames)

    monkeypatch.setattr(type(array.codec), "encode", failing)
    with pytest.raises(RuntimeError, match="broken"):
        array[:] = obs[::-1]
    assert np.array_equal(array, obs)
    monkeypatch.undo()
    array[5] = obs[3]
    assert np.array_equal(array[5], obs[3])


INDICES: st.SearchStrategy[Any] = st.one_of(
    st.integers(-8, 7),
    st.tuples(st.integers(-8, 7), st.integers(-3, 2)),
    st.slices(8),
    st.tuples(st.slices(8), st.integers(-3, 2)),
    st.tuples(st.slices(8), st.slices(3)),
    st.lists(st.integers(-8, 7), max_size=6),
    st.tuples(
        st.lists(st.integers(-8, 7), min_size=2, max_size=2), st.lists(st.integers(0, 2), min_size=2, max_size=2)
    ),
)
FILM = np.random.default_rng(3).integers(0, 255, (40, 5, 4), np.uint8)


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 2), INDICES, st.integers(0, 20)), min_size=1, max_size=12))
def test_any_sequence_of_writes_has_the_result_of_numpy(writes: list[tuple[int, Any, int]]) -> None:
    """Writes to two arrays of a stream, of whole rows and of others, and rows that are added."""
    arrays = [CompressedArray((8, 3, 3, 5, 4), np.uint8, "rle")]
    arrays.append(arrays[0].new_sharing_frames())
    plain = [np.zeros(array.shape, np.uint8) for array in arrays]
    for target, index, first in writes:
        if target == 2:
            row = first % 8
            rows = [np.stack([FILM[first + k + env : first + k + env + 3] for env in range(3)]) for k in (0, 1)]
            for array, content, references, new_row in zip(
                arrays, plain, arrays[0].stream.append(*rows), rows, strict=True
            ):
                array.write_encoded(row, references)
                content[row] = new_row
            continue
        array, content = arrays[target], plain[target]
        shape = content[index].shape
        stacks = np.stack([FILM[step : step + 3] for step in range(37)])
        n_items = int(np.prod(shape[:-3]))
        values = stacks[(first + np.arange(n_items)) % 37].reshape(shape)
        array[index] = values
        content[index] = values
    for array, content in zip(arrays, plain, strict=True):
        assert np.array_equal(array, content)


def test_an_interrupted_assignment_does_not_mix_the_rows_that_follow() -> None:
    frames = np.random.default_rng(0).integers(0, 4, (60, 84, 84), np.uint8)
    rows = [np.stack([frames[step : step + 4], frames[step + 30 : step + 34]]) for step in range(22)]

    def assign(array: CompressedArray) -> None:
        array[5:6] = rows[20][np.newaxis]

    def filled() -> CompressedArray:
        array = CompressedArray((12, 2, 4, 84, 84), codec="zstd3", frame_stack=4)
        for step in range(10):
            array[step] = rows[step]
        return array

    array = filled()
    found = bytecodes(lambda: assign(array))
    for at in [each for each in found if each[0].co_name in {"append_steps", "continue_from", "forget"}]:
        array = filled()
        interrupt(lambda: assign(array), at)  # noqa: B023  # it is called at once
        array[10] = rows[21]  # which would continue the assigned row
        np.testing.assert_array_equal(array[10], rows[21])
        np.testing.assert_array_equal(array[9], rows[9])
