"""Arrays of another dtype that a user's class assigns: batches have that dtype, as with SB3's buffers."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from buffer_pairs import REPLAY_PAIRS, ROLLOUT_PAIRS, SB3_OPTIMIZED
from gymnasium import spaces
from numpy.typing import DTypeLike
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from support import assert_same_batch, same_draws

from sb3_compressed import (
    CompressedArray,
    CompressedDictReplayBuffer,
    CompressedReplayBuffer,
    MixedReplayBuffer,
    StorageError,
)
from sb3_compressed.common.tree_map import leaves, tree_map

INTS = spaces.Box(0, 255, (4, 84, 84), np.uint8)
FLOATS = spaces.Box(0, 1, (4, 84, 84), np.float32)
ACTIONS = spaces.Discrete(3)
STATES = RNNStates((th.zeros(1, 2, 4),) * 2, (th.zeros(1, 2, 4),) * 2)
#: The space, the dtype of the arrays, and what observations are multiplied by.
CASES: dict[str, tuple[spaces.Box, DTypeLike, Any]] = {
    "float32": (INTS, np.float32, 1),
    "scaled": (INTS, np.float32, np.float32(1 / 255)),
    "float16": (FLOATS, np.float16, 1),
    "float64": (FLOATS, np.float64, 1),
    "quantized": (FLOATS, np.uint8, 255),
}


def space_of(kind: str, part: spaces.Box) -> spaces.Space[Any]:
    if kind == "her":
        keys = "observation", "achieved_goal", "desired_goal"
        return spaces.Dict(dict.fromkeys(keys, part))
    return spaces.Dict(cam=part, vec=spaces.Box(0, 1, (3,), np.float32)) if "dict" in kind else part


def observation(space: spaces.Space[Any], step: int, scale: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: observation(part, step, scale) for key, part in space.items()}
    rng = np.random.default_rng(step)
    return (rng.random((2, *(space.shape or ()))) * (255 if space.dtype == np.uint8 else 1)).astype(space.dtype) * scale


def arrays_for(buffer: Any, dtype: DTypeLike) -> Any:
    return tree_map(lambda array: np.zeros(array.shape, dtype), buffer.observations)


def add_replay(buffer: Any, n_steps: int, scale: Any, first: int = 0) -> None:
    for step in range(first, first + n_steps):
        both = [observation(buffer.observation_space, each, scale) for each in (step, step + 1)]
        buffer.add(*both, np.zeros((2, 1)), np.zeros(2), np.full(2, step % 5 == 4), [{}] * 2)


class Goals:
    """Computes rewards of goals."""

    def env_method(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return no rewards."""
        return [np.zeros(len(args[0]))]


def replay(kind: str, which: int, dtype: DTypeLike, part: spaces.Box, **options: Any) -> Any:
    """Return a buffer whose class assigns arrays in its constructor; with ``which=1``, one of SB3's."""

    class Own(REPLAY_PAIRS["replay" if kind == "optimized" else kind][which]):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.observations = arrays_for(self, dtype)
            if not self.optimize_memory_usage:
                self.next_observations = arrays_for(self, dtype)

    options = {
        **options,
        **(SB3_OPTIMIZED if kind == "optimized" else {}),
        **({"env": Goals()} if kind == "her" else {}),
    }
    return Own(40, space_of(kind, part), ACTIONS, device="cpu", n_envs=2, **options)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [*REPLAY_PAIRS, "optimized"])
def test_replay(kind: str, case: str) -> None:
    part, dtype, scale = CASES[case]
    ours, theirs = (replay(kind, which, dtype, part) for which in (0, 1))
    for buffer in (ours, theirs):
        add_replay(buffer, 30, scale)
    for array in leaves(ours.observations):
        assert array.dtype == dtype
        assert isinstance(array, CompressedArray) == (array.ndim == 5)
    assert_same_batch(*same_draws(lambda: ours.sample(32), lambda: theirs.sample(32), seed=0))
    if kind == "replay":
        copied = [pickle.loads(pickle.dumps(vars(ours)["observations"])), copy.deepcopy(ours).observations]
        for each in copied:
            np.testing.assert_array_equal(each, theirs.observations)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ROLLOUT_PAIRS)
def test_rollouts(kind: str, case: str) -> None:
    part, dtype, scale = CASES[case]
    buffers = []
    for which in (0, 1):

        class Own(ROLLOUT_PAIRS[kind][which]):  # type: ignore[misc]
            observations: Any

            def reset(self) -> None:
                super().reset()
                if isinstance(self.observations, dict):  # as SB3's code fills it
                    before, self.observations = self.observations, {}
                    for key, array in before.items():
                        self.observations[key] = np.zeros(array.shape, dtype)
                else:
                    self.observations = arrays_for(self, dtype)

        further = {"hidden_state_shape": (12, 1, 2, 4)} if "recurrent" in kind else {}
        buffer: Any = Own(12, space_of(kind, part), ACTIONS, device="cpu", n_envs=2, **further)
        for _ in range(2):
            buffer.reset()
            for step in range(12):
                arguments = np.zeros((2, 1)), np.zeros(2), np.zeros(2), th.zeros(2), th.zeros(2)
                extras = {"lstm_states": STATES} if further else {}
                buffer.add(observation(buffer.observation_space, step, scale), *arguments, **extras)
        buffers.append(buffer)
    batches = same_draws(lambda: [*buffers[0].get(8)], lambda: [*buffers[1].get(8)], seed=0)
    for batch, expected in zip(*batches, strict=True):
        assert_same_batch(batch, expected)


def test_arrays_of_another_byte_order_become_native() -> None:
    buffer = replay("replay", 0, ">f4", INTS)
    add_replay(buffer, 3, 1)
    assert buffer.sample(3).observations.dtype == th.float32  # SB3's conversion to tensors raises


def test_differences_of_assigned_floats_may_be_negative() -> None:
    buffer = replay("replay", 0, np.float32, INTS)
    obs, later = (np.full((2, 4, 84, 84), value, np.uint8) for value in (10, 5))
    buffer.add(obs, later, np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}] * 2)
    batch = buffer.sample(2)
    assert (batch.next_observations - batch.observations).unique().tolist() == [-5]


def test_a_key_of_a_dict_that_was_added_to() -> None:
    """Observations that were validated for the array before are validated again."""
    ours, theirs = (cls(40, space_of("dict", INTS), ACTIONS, device="cpu", n_envs=2) for cls in REPLAY_PAIRS["dict"])
    for buffer in (ours, theirs):
        add_replay(buffer, 4, 1)
        for arrays in (buffer.observations, buffer.next_observations):
            arrays["cam"] = np.array(arrays["cam"]).astype(np.float32)
        add_replay(buffer, 8, 1, first=4)
    assert_same_batch(*same_draws(lambda: ours.sample(32), lambda: theirs.sample(32), seed=0))


def test_a_plain_array_of_observations_alone() -> None:
    buffers = []
    for cls in REPLAY_PAIRS["dict"]:
        buffer = cls(20, space_of("dict", INTS), ACTIONS, device="cpu", n_envs=2)
        buffer.observations["vec"] = np.zeros((10, 2, 3), np.uint8)
        add_replay(buffer, 10, 1)
        buffers.append(buffer)
    ours, sb3 = same_draws(*[partial(buffer.sample, 8) for buffer in buffers], seed=0)
    assert_same_batch(ours, sb3)
    assert ours.next_observations["vec"].dtype == th.float32
    assert ours.next_observations["vec"].any()


def test_shallow_copies_validate_for_their_own_arrays() -> None:
    buffer = CompressedReplayBuffer(40, INTS, ACTIONS, device="cpu", n_envs=2)
    copied = copy.copy(buffer)
    buffer.observations, buffer.next_observations = (arrays_for(buffer, np.float32) for _ in range(2))
    for _ in range(2):
        add_replay(buffer, 3, np.float32(1 / 255))
        with pytest.raises(ValueError, match="uint8"):
            add_replay(copied, 3, np.float32(1 / 255))


@pytest.mark.parametrize("cls", [CompressedReplayBuffer, CompressedDictReplayBuffer])
def test_observations_without_their_next_observations_raise(cls: Any) -> None:
    buffer = cls(40, space_of("dict" if "Dict" in cls.__name__ else "", INTS), ACTIONS, device="cpu", n_envs=2)
    add_replay(buffer, 6, 1)
    buffer.observations = arrays_for(buffer, np.float32)
    for call in (lambda: buffer.sample(3), lambda: buffer.sample_sequences(2, 2), lambda: add_replay(buffer, 1, 1)):
        with pytest.raises(ValueError, match="both"):
            call()
    buffer.next_observations = arrays_for(buffer, np.float32)
    add_replay(buffer, 1, 1)
    assert next(iter(leaves(buffer.sample(3).observations))).dtype == th.float32


@pytest.mark.parametrize("options", [{"sampler": "prioritized"}, {}])
def test_samplers_sequences_and_mixed_buffers(options: dict[str, Any]) -> None:
    buffer, other = replay("replay", 0, np.float16, FLOATS, **options), replay("replay", 0, np.float16, FLOATS)
    for each in (buffer, other):
        add_replay(each, 10, 1)
    expected = np.array(buffer.observations)
    batch = buffer.sample_sequences(4, 3)
    rows, envs = np.divmod(batch.indices, 2)
    assert batch.observations.dtype == th.float16
    np.testing.assert_array_equal(batch.observations[:, 0].numpy(), expected[rows, envs])
    assert buffer.sample(4).observations.dtype == th.float16
    assert MixedReplayBuffer.from_buffers([buffer, other], [1, 1]).sample(4).observations.dtype == th.float16


def test_a_folder_has_the_dtype_of_the_space(tmp_path: Path) -> None:
    buffer = CompressedReplayBuffer(20, INTS, ACTIONS, device="cpu", n_envs=2, storage=tmp_path)
    add_replay(buffer, 5, 1)
    with pytest.raises(ValueError, match="folder"):
        buffer.observations = arrays_for(buffer, np.float32)
    add_replay(buffer, 2, 1)
    buffer.close()


class Scaled(CompressedReplayBuffer):
    """A user's class with arrays of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.observations, self.next_observations = (arrays_for(self, np.float32) for _ in range(2))


def test_checkpoints_keep_the_dtype_or_raise(tmp_path: Path) -> None:
    own = Scaled(20, INTS, ACTIONS, device="cpu", n_envs=2)
    add_replay(own, 5, np.float32(1 / 255))
    own.save_checkpoint(tmp_path / "own")
    loaded = Scaled.from_checkpoint(tmp_path / "own", device="cpu")
    np.testing.assert_array_equal(loaded.observations, own.observations)

    buffer = CompressedReplayBuffer(20, INTS, ACTIONS, device="cpu", n_envs=2)
    add_replay(buffer, 5, 1)
    buffer.save_checkpoint(tmp_path / "other")
    buffer.observations, buffer.next_observations = (arrays_for(buffer, np.float32) for _ in range(2))
    with pytest.raises(StorageError, match="float32"):  # a load would return uint8
        buffer.save_checkpoint(tmp_path / "other")
    assert CompressedReplayBuffer.from_checkpoint(tmp_path / "other", device="cpu").size() == 5
