"""Wrong arguments raise clear errors of the same classes as in SB3."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from buffer_pairs import REPLAY_PAIRS, ROLLOUT_PAIRS, SB3_OPTIMIZED
from gymnasium import spaces
from stable_baselines3 import DQN, PPO

from sb3_compressed import (
    BufferNotReady,
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    ObservationSpaceError,
    StorageError,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.contrib import CompressedMaskableDictRolloutBuffer

VECTOR = spaces.Box(-1, 1, (8,), np.float32)
DICT = spaces.Dict(screen=spaces.Box(0, 255, (4, 36, 36), np.uint8), state=VECTOR)
GOAL = spaces.Dict(observation=VECTOR, achieved_goal=VECTOR, desired_goal=VECTOR)
BUTTONS = spaces.Discrete(3)

NEEDED: dict[str, dict[str, Any]] = {
    "her": {"env": None},
    "recurrent": {"hidden_state_shape": (8, 1, 1, 4)},
    "recurrent-dict": {"hidden_state_shape": (8, 1, 1, 4)},
}
#: Each class with an observation space for it, and the arguments that it needs besides.
CLASSES: dict[type[Any], tuple[spaces.Space[Any], dict[str, Any]]] = {
    cls: (GOAL if kind == "her" else DICT if "dict" in kind else VECTOR, NEEDED.get(kind, {}))
    for pairs in (REPLAY_PAIRS, ROLLOUT_PAIRS)
    for kind, (cls, _) in pairs.items()
}
REPLAYS = [CompressedReplayBuffer, CompressedNStepReplayBuffer, CompressedDictReplayBuffer]
ROLLOUTS = [cls for cls in CLASSES if "Rollout" in cls.__name__]


def new(cls: type[Any], buffer_size: Any = 8, space: spaces.Space[Any] | None = None, **kwargs: Any) -> Any:
    usual, needed = CLASSES[cls]
    return cls(buffer_size, space or usual, BUTTONS, device="cpu", **{**needed, **kwargs})


def add_step(buffer: Any, n_envs: int, *, infos: Any = None) -> None:
    space = buffer.observation_space
    parts: dict[str, Any] = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    zeros: Any = {key: np.zeros((n_envs, *part.shape)) for key, part in parts.items()}
    zeros = zeros.get("", zeros)
    flags = np.zeros(n_envs)
    buffer.add(zeros, zeros, np.zeros((n_envs, 1), int), flags, flags, [{}] * n_envs if infos is None else infos)


@pytest.mark.parametrize("cls", CLASSES)
def test_sizes_below_one_raise_value_error(cls: type[Any]) -> None:
    for buffer_size in (0, -5, np.int64(0)):
        with pytest.raises(ValueError, match=f"buffer_size .*got {buffer_size}"):
            new(cls, buffer_size)
    for n_envs in (0, -1):
        with pytest.raises(ValueError, match=f"n_envs .*got {n_envs}"):
            new(cls, n_envs=n_envs)


@pytest.mark.parametrize("cls", CLASSES)
def test_sizes_that_are_not_integers_raise_type_error(cls: type[Any]) -> None:
    for value in ("10", 2.5, None, True, 1e6):
        with pytest.raises(TypeError, match=f"buffer_size .*got {value!r}"):
            new(cls, value)
        with pytest.raises(TypeError, match=f"n_envs .*got {value!r}"):
            new(cls, n_envs=value)


def test_n_steps_and_n_sampled_goal_below_their_minimum_raise() -> None:
    with pytest.raises(ValueError, match="n_steps"):
        new(CompressedNStepReplayBuffer, n_steps=0)
    with pytest.raises(ValueError, match="n_sampled_goal"):
        new(CompressedHerReplayBuffer, n_sampled_goal=-1)
    assert new(CompressedHerReplayBuffer, n_sampled_goal=0).her_ratio == 0


@pytest.mark.parametrize("cls", CLASSES)
def test_wrong_kind_of_space_raises_sb3s_error(cls: type[Any]) -> None:
    usual, needed = CLASSES[cls]
    wrong = VECTOR if isinstance(usual, spaces.Dict) else DICT
    parent = cls.__bases__[1]
    arguments = {**needed, "device": "cpu"}
    with pytest.raises((AssertionError, TypeError)) as theirs:
        parent(8, wrong, BUTTONS, **arguments)
    with pytest.raises(ObservationSpaceError, match=cls.__name__) as ours:
        cls(8, wrong, BUTTONS, **arguments)
    assert isinstance(ours.value, type(theirs.value))
    assert isinstance(ours.value, ValueError)


@pytest.mark.parametrize("cls", CLASSES)
def test_unsupported_spaces_raise_sb3s_error(cls: type[Any]) -> None:
    for space in ("CartPole-v1", spaces.Tuple([VECTOR]), spaces.Text(3)):
        with pytest.raises(NotImplementedError, match="space"):
            new(cls, space=space)  # type: ignore[arg-type]


def test_nested_dict_spaces_raise() -> None:
    with pytest.raises(TypeError, match="inner"):
        new(CompressedDictReplayBuffer, space=spaces.Dict(inner=DICT))


@pytest.mark.parametrize(
    ("cls", "argument", "hint"),
    [
        (CompressedReplayBuffer, "n_steps", r"'n_steps'$"),
        (CompressedReplayBuffer, "bufer_size", r"buffer_size\?$"),
        (CompressedReplayBuffer, "framestack", r"frame_stack\?$"),
        (CompressedReplayBuffer, "compression", r"compression_method\?$"),
        (CompressedRolloutBuffer, "unknown", "'unknown'$"),
    ],
)
def test_unknown_arguments_raise_and_similar_ones_are_suggested(cls: type[Any], argument: str, hint: str) -> None:
    with pytest.raises(TypeError, match=f"^{cls.__name__}: .*{hint}"):
        new(cls, **{argument: 3})  # type: ignore[arg-type]


def test_buffers_of_the_other_kind_raise_and_name_the_right_argument() -> None:
    with pytest.raises(TypeError, match=r"is a replay buffer.* rollout_buffer_class=CompressedRolloutBuffer"):
        PPO("MlpPolicy", "CartPole-v1", n_steps=64, rollout_buffer_class=CompressedReplayBuffer)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"is a rollout buffer.* replay_buffer_class=CompressedReplayBuffer"):
        DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedRolloutBuffer)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cls", "space", "name"),
    [
        (CompressedReplayBuffer, DICT, "CompressedDictReplayBuffer"),
        (CompressedDictReplayBuffer, VECTOR, "CompressedReplayBuffer"),
        (CompressedRolloutBuffer, DICT, "CompressedDictRolloutBuffer"),
        (CompressedMaskableDictRolloutBuffer, VECTOR, "CompressedMaskableRolloutBuffer"),
    ],
)
def test_the_class_for_the_observation_space_is_named(cls: type[Any], space: spaces.Space[Any], name: str) -> None:
    with pytest.raises(ObservationSpaceError, match=f"; use {name}$"):
        cls(8, space, BUTTONS)


@pytest.mark.parametrize("cls", ROLLOUTS)
def test_storage_of_a_rollout_raises(cls: type[Any]) -> None:
    options: list[dict[str, Any]] = [{"storage": "folder"}, {"storage_mode": "resume"}]
    for option in options:
        with pytest.raises(StorageError, match=cls.__name__):
            new(cls, **option)


@pytest.mark.parametrize("cls", REPLAYS)
@pytest.mark.parametrize("optimizes", [False, True])
@pytest.mark.filterwarnings("ignore:.* time limits:UserWarning")
def test_sampling_an_empty_replay_buffer_raises(cls: type[Any], optimizes: bool) -> None:
    buffer = new(cls, optimize_memory_usage=optimizes, handle_timeout_termination=not optimizes)
    with pytest.raises(BufferNotReady, match="empty"):
        buffer.sample(3)
    add_step(buffer, 1)
    assert buffer.sample(3).actions.shape == (3, 1)
    buffer.reset()
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(3)


def test_sampling_an_empty_hindsight_buffer_raises_sb3s_error() -> None:
    with pytest.raises(RuntimeError, match="first episode"):
        new(CompressedHerReplayBuffer).sample(3)


def test_sampling_one_row_with_optimize_memory_usage_raises() -> None:
    buffer = CompressedReplayBuffer(1, VECTOR, BUTTONS, **SB3_OPTIMIZED)
    add_step(buffer, 1)
    with pytest.raises(BufferNotReady, match="buffer_size"):
        buffer.sample(1)


@pytest.mark.parametrize("cls", REPLAYS)
def test_invalid_batch_sizes_raise_and_zero_is_an_empty_batch(cls: type[Any]) -> None:
    buffer = new(cls)
    for _ in range(3):
        add_step(buffer, 1)
    with pytest.raises(ValueError, match="got -1"):
        buffer.sample(-1)
    for wrong in (2.5, "3", None):
        with pytest.raises(TypeError, match="batch_size"):
            buffer.sample(wrong)
    assert buffer.sample(0).actions.shape == (0, 1)  # as in SB3
    assert buffer.sample(np.int64(2)).actions.shape == (2, 1)


@pytest.mark.parametrize("cls", ROLLOUTS)
def test_sampling_an_incomplete_rollout_raises(cls: type[Any]) -> None:
    for error in (AssertionError, ValueError, BufferNotReady):
        with pytest.raises(error, match="0 of 8"):
            new(cls).get()


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batch_sizes_of_rollouts_below_one_raise(batch_size: int) -> None:
    buffer = new(CompressedRolloutBuffer)
    for _ in range(8):
        obs, one = np.zeros((1, 8), np.float32), np.zeros(1)
        buffer.add(obs, np.zeros((1, 1), int), one, one, th.zeros(1), th.zeros(1))
    with pytest.raises(ValueError, match=f"got {batch_size}"):
        buffer.get(batch_size)
    with pytest.raises(TypeError, match="batch_size"):
        buffer.get(2.0)
    assert [len(batch.actions) for batch in buffer.get(np.int64(3))] == [3, 3, 2]


@pytest.mark.parametrize("cls", [*REPLAYS, CompressedHerReplayBuffer])
def test_infos_must_have_one_dict_for_each_environment(cls: type[Any]) -> None:
    buffer = new(cls, n_envs=2)
    wrong: list[Any] = [[{}], [], [{}] * 3, {}, "ab", iter([{}, {}])]
    for infos in wrong:
        with pytest.raises(ValueError, match="infos"):
            add_step(buffer, 2, infos=infos)
    assert buffer.size() == 0
    add_step(buffer, 2, infos=({}, {}))
    assert buffer.size() == 1


SAVED = spaces.Box(0, 255, (4, 12, 12), np.uint8), spaces.Discrete(2)
LOADS: list[Any] = [CompressedReplayBuffer.from_checkpoint, load_checkpoint]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an empty buffer."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoint"
    save_checkpoint(CompressedReplayBuffer(20, *SAVED, "cpu"), folder)
    return folder


@pytest.mark.parametrize(
    ("error", "name", "value"),
    [
        *((ValueError, "buffer_size", value) for value in (-1, np.int64(0))),
        *((TypeError, "buffer_size", value) for value in (False, 10.0, "10", np.float64(7), np.True_)),
        (ValueError, "n_envs", 0),
        (ValueError, "compression_method", "nonsense"),
        (ValueError, "sampler", "nonsense"),
        (ValueError, "num_threads", -1),
        (ValueError, "output_dtype", "nonsense"),
        (TypeError, "n_steps", 3),
        (TypeError, "unknown", 3),
    ],
)
def test_wrong_arguments_of_a_load_are_no_damage(
    error: type[Exception], name: str, value: Any, checkpoint: Path
) -> None:
    for load, options in ((LOADS[0], {}), (LOADS[1], {}), (LOADS[0], {"follow": True}), (LOADS[1], {"repair": True})):
        with pytest.raises(error, match=re.escape(str(value)) if error is ValueError else name) as caught:
            load(checkpoint, device="cpu", **{name: value}, **options)
        assert not isinstance(caught.value, StorageError)


@pytest.mark.parametrize("size", [np.int64(7), np.uint8(7), np.int64(30), None])
def test_counts_may_be_numpy_integers(size: Any, tmp_path: Path) -> None:
    buffer = CompressedReplayBuffer(np.int64(20), *SAVED, "cpu", np.int16(1), storage=tmp_path / "folder")
    obs = np.zeros((1, 4, 12, 12), np.uint8)
    for _ in range(25):
        buffer.add(obs, obs, np.array([[1]]), np.array([1.0]), np.array([False]), [{}])
    buffer.close()
    for load in LOADS:
        loaded = load(tmp_path / "folder", device="cpu", buffer_size=size)
        assert loaded.buffer_size == (size or 20)
        save_checkpoint(loaded, tmp_path / load.__name__)
    if size is not None:
        with pytest.warns(UserWarning, match="do not fit") if size < 20 else nullcontext():
            resumed = CompressedReplayBuffer(size, *SAVED, "cpu", storage=tmp_path / "folder", storage_mode="resume")
        assert resumed.size() == min(size, 20)
        resumed.close()
