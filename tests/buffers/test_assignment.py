"""Whole arrays that are assigned to a buffer: their values are copied, whatever they are in, also to folders."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from buffer_pairs import REPLAY_PAIRS, ROLLOUT_PAIRS
from gymnasium import spaces
from numpy.typing import NDArray
from support import assert_same_batch, same_draws

from sb3_compressed import (
    CompressedArray,
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedReplayBuffer,
    StorageError,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.common.tree_map import leaves

N_ENVS, ROWS = 2, 40
IMAGE = spaces.Box(0, 255, (4, 36, 36), np.uint8)
VECTOR = spaces.Box(-9, 9, (12,), np.float32)
SPACES: dict[str, spaces.Space[Any]] = {
    "image": IMAGE,
    "vector": VECTOR,
    "small": spaces.Box(-9, 9, (3,), np.float32),
    "dict": spaces.Dict(cam=IMAGE, vec=VECTOR, small=spaces.Box(-9, 9, (3,), np.float32)),
}


def observation(space: spaces.Space[Any], step: int) -> Any:
    """Return a stack of frames, or a vector, of which each continues that of the step before."""
    if isinstance(space, spaces.Dict):
        return {key: observation(part, step) for key, part in space.spaces.items()}
    assert isinstance(space, spaces.Box)
    if len(space.shape) == 1:
        return np.random.default_rng(step).random((N_ENVS, *space.shape)).astype(space.dtype)
    frames = [np.random.default_rng(step + k).integers(0, 9, (N_ENVS, 36, 36), np.uint8) * 20 for k in range(4)]
    return np.stack(frames, axis=1)


def add(buffer: Any, first: int, n_steps: int = 30) -> None:
    space = buffer.observation_space
    for step in range(first, first + n_steps):
        rest = np.full((N_ENVS, 1), step % 3), np.full(N_ENVS, step), np.zeros(N_ENVS)
        if hasattr(buffer, "next_observations"):
            buffer.add(observation(space, step), observation(space, step + 1), *rest, [{}] * N_ENVS)
        else:
            buffer.add(observation(space, step), *rest, th.zeros(N_ENVS), th.zeros(N_ENVS))


def new(kind: str, which: int, **options: Any) -> Any:
    """Return one of our buffers, or with ``which=1`` one of SB3's."""
    cls = REPLAY_PAIRS["dict" if kind == "dict" else "replay"][which]
    return cls(ROWS * N_ENVS, SPACES[kind], spaces.Discrete(3), device="cpu", n_envs=N_ENVS, **options)


def each(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that changes an array, or the arrays of a dict."""
    return lambda given: (
        {key: change(part) for key, part in given.items()} if isinstance(given, dict) else change(given)
    )


def listed(array: Any) -> Any:
    return np.asarray(array).tolist()


WAYS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda given: given,
    "copy": lambda given: given.copy(),
    "copies": each(lambda array: array.copy()),
    "pickled": lambda given: pickle.loads(pickle.dumps(given)),
    "deepcopy": copy.deepcopy,
    "ndarrays": each(np.array),
    "tensors": each(lambda array: th.tensor(np.array(array))),
    "lists": each(listed),
}


def assert_equal(ours: Any, theirs: Any) -> None:
    assert_same_batch(*same_draws(lambda: ours.sample(60), lambda: theirs.sample(60), seed=3))


def assert_same_content(ours: Any, theirs: Any) -> None:
    for name in ("observations", "next_observations"):
        for array, expected in zip(leaves(getattr(ours, name)), leaves(getattr(theirs, name)), strict=True):
            assert np.array_equal(array, expected.astype(array.dtype))


def saved(buffer: Any, folder: Path) -> Any:
    """Return the buffer as it is loaded from its folder, or from a checkpoint."""
    if buffer.is_in_memory:
        save_checkpoint(buffer, folder)
    else:
        buffer.close()
    return load_checkpoint(folder, device="cpu")


BOTH = ("observations", "next_observations")
CASES = [
    *(("image", way, BOTH) for way in WAYS if way != "copies"),  # which is "copy" for a single array
    # Plain arrays are replaced, as in SB3, whose methods need ndarrays.
    *((kind, way, BOTH) for kind in ("dict", "vector", "small") for way in ("itself", "copies", "pickled", "ndarrays")),
    *((kind, way, names) for kind in ("image", "dict") for way in ("pickled", "ndarrays") for names in zip(BOTH)),
]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(("kind", "way", "names"), CASES)
def test_arrays_of_another_buffer(kind: str, way: str, stored: bool, names: tuple[str, ...], tmp_path: Path) -> None:
    ours = new(kind, 0, **({"storage": tmp_path / "folder"} if stored else {}))
    theirs = new(kind, 1)
    for target, source in ((ours, new(kind, 0)), (theirs, new(kind, 1))):
        add(source, 0)
        add(target, 100)
        for name in names:
            change = WAYS[way if target is ours else "ndarrays"]
            setattr(target, name, change(getattr(source, name)))
        add(target, 200, 5)
    assert_equal(ours, theirs)
    assert_same_content(saved(ours, tmp_path / "folder"), theirs)


def test_a_save_casts_plain_arrays(tmp_path: Path) -> None:
    ours, theirs = new("small", 0), new("small", 1)
    for target in (ours, theirs):
        add(target, 0)
        for name in BOTH:
            setattr(target, name, np.array(getattr(target, name)).astype(np.float64))
        add(target, 100, 5)
    assert_equal(ours, theirs)
    assert_same_content(saved(ours, tmp_path), theirs)


OTHERS: dict[str, dict[str, Any]] = {
    "another codec": {"compression_method": "zstd3"},
    "another stack": {"frame_stack": 2},
    "no stack": {"frame_stack": None},
    "a narrower dtype": {"dtypes": np.float16, "compression_method": "zstd3"},
}


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("n_steps", [2, 60])
@pytest.mark.parametrize("options", OTHERS)
def test_arrays_of_another_codec_layout_or_age(options: str, n_steps: int, stored: bool, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is narrower, or the stack is another one
        source = new("image", 0, **OTHERS[options])
        add(source, 0, n_steps)
    ours, theirs = new("image", 0, **({"storage": tmp_path / "folder"} if stored else {})), new("image", 1)
    for target in (ours, theirs):
        add(target, 100, 2)  # too few for the layout to be detected
        for name in ("observations", "next_observations"):
            array = getattr(source, name)
            setattr(target, name, array if target is ours else np.array(array))
        add(target, 200, 5)
    assert_equal(ours, theirs)
    assert_equal(saved(ours, tmp_path / "folder"), theirs)


def test_views_of_the_array_itself() -> None:
    buffer = new("image", 0)
    add(buffer, 0)
    expected = np.array(buffer.observations)
    kept = buffer.observations
    buffer.observations = buffer.observations.reshape(ROWS, N_ENVS, *IMAGE.shape)
    assert buffer.observations is kept
    assert np.array_equal(kept, expected)
    buffer.observations = buffer.observations[::-1]
    assert np.array_equal(kept, expected[::-1])
    with pytest.raises(ValueError, match="shape"):
        buffer.observations = buffer.observations.swapaxes(0, 1)
    assert np.array_equal(kept, expected[::-1])


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((3, 4)),
        np.zeros((ROWS * N_ENVS, *IMAGE.shape), np.uint8),
        np.zeros((2 * ROWS, N_ENVS, *IMAGE.shape), np.uint8),
        CompressedArray((2 * ROWS, N_ENVS, *IMAGE.shape), np.uint8),
        {"cam": 3},
        7,
    ],
    ids=["small", "flat", "larger", "compressed", "dict", "number"],
)
def test_another_shape_raises_and_says_what_to_do(value: Any) -> None:
    buffer = new("image", 0)
    add(buffer, 0)
    before = np.array(buffer.observations)
    with pytest.raises(ValueError, match="extend"):
        buffer.observations = value
    assert np.array_equal(buffer.observations, before)


def test_a_flat_view_replaces_arrays_of_rollouts_alone() -> None:
    buffer = new("image", 0)
    add(buffer, 0)
    with pytest.raises(ValueError, match="extend"):
        buffer.observations = buffer.observations.reshape(-1, *IMAGE.shape)
    add(buffer, 1)


@pytest.mark.parametrize("stored", [False, True])
def test_values_that_do_not_fit_leave_the_array_as_it_was(stored: bool, tmp_path: Path) -> None:
    buffer = new("image", 0, **({"storage": tmp_path / "folder"} if stored else {}))
    add(buffer, 0)
    before = np.array(buffer.observations)
    wrong = before.tolist()
    wrong[-1][-1] = np.full(IMAGE.shape, 0.5).tolist()
    with pytest.raises(ValueError, match=r"0\.5"):
        buffer.observations = wrong
    with pytest.raises(TypeError, match="dtype"):
        buffer.observations = before.astype(object)
    assert np.array_equal(buffer.observations, before)


@pytest.mark.parametrize("stored", [False, True])
def test_keys_of_a_dict(stored: bool, tmp_path: Path) -> None:
    ours, theirs = new("dict", 0, **({"storage": tmp_path / "folder"} if stored else {})), new("dict", 1)
    for buffer in (ours, theirs):
        add(buffer, 0)
        buffer.observations["cam"] = np.array(buffer.observations["cam"])[::-1]
        buffer.observations.update({"vec": np.array(buffer.observations["vec"])[::-1].copy()})
        buffer.observations |= {"small": np.array(buffer.observations["small"])[::-1].copy()}
        buffer.next_observations = dict(buffer.next_observations)
        add(buffer, 200, 3)
    assert_equal(ours, theirs)
    assert_equal(saved(ours, tmp_path / "folder"), theirs)


@pytest.mark.parametrize("way", ["keys", "lists"])
def test_keys_after_a_change_of_sizes(way: str) -> None:
    buffers = new("dict", 0), new("dict", 1)
    for buffer in buffers:
        buffer.buffer_size = 6
        for name in ("observations", "next_observations"):
            arrays = {key: np.array(array)[:6] for key, array in getattr(buffer, name).items()}
            if way == "lists":
                setattr(buffer, name, {key: array.tolist() for key, array in arrays.items()})
            for key, array in arrays.items():
                getattr(buffer, name)[key] = array
        add(buffer, 0, 6)
    assert_equal(*buffers)


def test_steps_are_validated_again_after_plain_arrays_were_replaced() -> None:
    buffer = new("small", 0)
    add(buffer, 0, 3)
    buffer.next_observations = np.zeros((ROWS, N_ENVS, 4), np.float32)
    before = buffer.observations.copy()
    with pytest.raises(ValueError, match="next_obs"):
        add(buffer, 3, 1)
    assert np.array_equal(buffer.observations, before)


@pytest.mark.parametrize("value", [{"cam": 1}, np.zeros(3), [1, 2], 7], ids=str)
def test_another_dict_raises(value: Any) -> None:
    buffer = new("dict", 0)
    add(buffer, 0)
    with pytest.raises(ValueError, match="keys"):
        buffer.observations = value
    add(buffer, 30, 2)


def test_no_key_is_written_if_another_one_does_not_fit() -> None:
    space = spaces.Dict(cam=IMAGE, other=IMAGE)
    buffer: Any = CompressedDictReplayBuffer(ROWS * N_ENVS, space, spaces.Discrete(3), device="cpu", n_envs=N_ENVS)
    add(buffer, 0)
    before = np.array(buffer.observations["cam"])
    given = {key: np.array(array) for key, array in buffer.observations.items()}
    zeros = np.zeros(before.shape)
    for wrong in (np.zeros(3), (zeros + 0.5).tolist()):
        with pytest.raises(ValueError, match="other"):
            buffer.observations = {**given, "cam": zeros, "other": wrong}
        with pytest.raises(ValueError, match="other"):
            buffer.observations.update(cam=zeros, other=wrong)
        assert np.array_equal(buffer.observations["cam"], before)


@pytest.mark.parametrize("way", ["copy", "copies", "ndarrays", "deepcopy"])
@pytest.mark.parametrize("kind", ["plain", "dict", "maskable", "maskable-dict"])
def test_rollouts(kind: str, way: str) -> None:
    space = SPACES["dict" if "dict" in kind else "image"]
    action_space = spaces.Discrete(3)
    ours, theirs = (cls(30, space, action_space, device="cpu", n_envs=N_ENVS) for cls in ROLLOUT_PAIRS[kind])
    for buffer in (ours, theirs):
        for _ in range(2):  # after a reset, too
            buffer.reset()
            add(buffer, 0, 10)
            buffer.observations = WAYS[way if buffer is ours else "copies"](buffer.observations)
            add(buffer, 10, 20)
        buffer.compute_returns_and_advantage(th.zeros(N_ENVS), np.zeros(N_ENVS))
    batches = same_draws(lambda: [*ours.get(16)], lambda: [*theirs.get(16)], seed=0)
    for ours_batch, theirs_batch in zip(*batches, strict=True):
        assert_same_batch(ours_batch, theirs_batch)


@pytest.mark.parametrize("kind", ["image", "dict"])
@pytest.mark.parametrize("stored", [False, True])
def test_observations_and_next_observations_are_exchanged(stored: bool, kind: str, tmp_path: Path) -> None:
    ours, theirs = new(kind, 0, **({"storage": tmp_path / "folder"} if stored else {})), new(kind, 1)
    for buffer in (ours, theirs):
        add(buffer, 0)
        buffer.observations, buffer.next_observations = buffer.next_observations, buffer.observations
        add(buffer, 200, 5)
    assert_equal(ours, theirs)
    assert_equal(saved(ours, tmp_path / "folder"), theirs)


@pytest.mark.parametrize("kind", ["image", "dict"])
@pytest.mark.parametrize("stored", [False, True])
def test_released_observations_are_assigned_again(stored: bool, kind: str, tmp_path: Path) -> None:
    ours, theirs = new(kind, 0, **({"storage": tmp_path / "folder"} if stored else {})), new(kind, 1)
    for buffer in (ours, theirs):
        add(buffer, 0)
        kept = {name: WAYS["ndarrays"](getattr(buffer, name)) for name in BOTH}
        buffer.observations = None
        del buffer.next_observations
        for name, arrays in kept.items():
            setattr(buffer, name, arrays)
        if kind == "dict":
            buffer.observations["cam"] = np.array(buffer.observations.pop("cam"))
            buffer.next_observations = {}
            for key, array in kept["next_observations"].items():
                buffer.next_observations[key] = array
        add(buffer, 200, 5)
    assert all(isinstance(array, CompressedArray) for array in leaves(ours.observations) if array.ndim > 4)
    assert_equal(ours, theirs)
    assert_equal(saved(ours, tmp_path / "folder"), theirs)


class FlattensItself(CompressedDictRolloutBuffer):
    """A user's class with the code of SB3's ``get``."""

    def get(self, batch_size: int | None = None) -> Any:
        """Yield all steps at once."""
        for key, obs in self.observations.items():
            self.observations[key] = self.swap_and_flatten(obs)
        yield {key: np.array(array) for key, array in self.observations.items()}


def test_classes_of_users_flatten_observations_as_sb3_does() -> None:
    buffer: Any = FlattensItself(30, SPACES["dict"], spaces.Discrete(3), device="cpu", n_envs=N_ENVS)
    for _ in range(2):
        buffer.reset()
        add(buffer, 0, 30)
        expected = {key: buffer.swap_and_flatten(np.array(array)) for key, array in buffer.observations.items()}
        [batch] = buffer.get()
        for key, array in expected.items():
            assert np.array_equal(batch[key], array)


def test_a_view_in_the_place_of_plain_arrays_is_written_to() -> None:
    options: Any = {"n_envs": N_ENVS, "optimize_memory_usage": True, "handle_timeout_termination": False}
    ours, plain = (
        CompressedReplayBuffer(ROWS * N_ENVS, SPACES["small"], spaces.Discrete(3), "cpu", **options) for _ in range(2)
    )
    items = CompressedArray((ROWS * N_ENVS, 1, 3), np.float32, "zstd3", frame_stack=None)
    ours.observations = items.reshape(ROWS, N_ENVS, 3)
    for buffer in (ours, plain):
        steps = np.stack([observation(SPACES["small"], step) for step in range(6)])
        numbers = np.zeros((5, N_ENVS))
        buffer.extend(steps[:-1], steps[1:], numbers[..., np.newaxis], numbers, numbers, [[{}] * N_ENVS] * 5)
        add(buffer, 6, 10)
    np.testing.assert_array_equal(ours.observations, plain.observations)
    assert np.asarray(items).any()


def test_floats_that_are_too_large(tmp_path: Path) -> None:
    space = spaces.Box(-9, 9, (4, 20, 20), np.float32)
    buffer = CompressedReplayBuffer(5, space, spaces.Discrete(3), device="cpu")
    with pytest.raises(ValueError, match="too large"):
        buffer.observations = np.full((5, 1, 4, 20, 20), 1e300).tolist()
    buffer.rewards = np.full((5, 1), 1e300)
    with pytest.raises(StorageError, match="too large"):
        save_checkpoint(buffer, tmp_path)


class Replaced(CompressedReplayBuffer):
    """A user's class that replaces arrays without an assignment."""

    def replace(self, name: str, array: NDArray[Any]) -> None:
        """Replace an array."""
        vars(self)[name] = array


def test_arrays_that_were_replaced_without_an_assignment_are_in_the_folder(tmp_path: Path) -> None:
    buffer = Replaced(ROWS, IMAGE, spaces.Discrete(3), device="cpu", n_envs=N_ENVS, storage=tmp_path)
    add(buffer, 0, 10)
    expected = np.array(buffer.observations)[::-1].copy()
    buffer.replace("observations", expected)
    buffer.flush()
    buffer.close()
    loaded = Replaced.from_checkpoint(tmp_path, device="cpu")
    assert np.array_equal(loaded.observations, expected)
