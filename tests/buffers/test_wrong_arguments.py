"""Wrong arguments raise clear errors of the same classes as in SB3."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from conftest import Stream
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import DictRolloutBuffer, ReplayBuffer

import sb3_compressed
from sb3_compressed import (
    BufferNotReady,
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    ObservationSpaceError,
    StorageError,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.contrib import (
    CompressedMaskableDictRolloutBuffer,
    CompressedMaskableRolloutBuffer,
    CompressedRecurrentDictRolloutBuffer,
    CompressedRecurrentRolloutBuffer,
)

VECTOR = spaces.Box(-1, 1, (8,), np.float32)
DICT = spaces.Dict(screen=spaces.Box(0, 255, (4, 36, 36), np.uint8), state=VECTOR)
GOAL = spaces.Dict(observation=VECTOR, achieved_goal=VECTOR, desired_goal=VECTOR)
BUTTONS = spaces.Discrete(3)

HIDDEN: dict[str, Any] = {"hidden_state_shape": (8, 1, 1, 4)}
#: Each class with an observation space for it, and the arguments that it needs besides.
CLASSES: dict[type[Any], tuple[spaces.Space[Any], dict[str, Any]]] = {
    CompressedReplayBuffer: (VECTOR, {}),
    CompressedNStepReplayBuffer: (VECTOR, {}),
    CompressedDictReplayBuffer: (DICT, {}),
    CompressedHerReplayBuffer: (GOAL, {"env": None}),
    CompressedRolloutBuffer: (VECTOR, {}),
    CompressedDictRolloutBuffer: (DICT, {}),
    CompressedMaskableRolloutBuffer: (VECTOR, {}),
    CompressedMaskableDictRolloutBuffer: (DICT, {}),
    CompressedRecurrentRolloutBuffer: (VECTOR, HIDDEN),
    CompressedRecurrentDictRolloutBuffer: (DICT, HIDDEN),
}
REPLAYS = [CompressedReplayBuffer, CompressedNStepReplayBuffer, CompressedDictReplayBuffer]
ROLLOUTS = [cls for cls in CLASSES if "Rollout" in cls.__name__]


def new(cls: type[Any], buffer_size: Any = 8, space: spaces.Space[Any] | None = None, **kwargs: Any) -> Any:
    usual, needed = CLASSES[cls]
    return cls(buffer_size, space or usual, BUTTONS, device="cpu", **{**needed, **kwargs})


def add_step(buffer: Any, n_envs: int, *, infos: Any = None) -> None:
    space = buffer.observation_space
    parts = space.spaces if isinstance(space, spaces.Dict) else {None: space}
    zeros = {key: np.zeros((n_envs, *(part.shape or ())), part.dtype) for key, part in parts.items()}
    obs: Any = zeros if isinstance(space, spaces.Dict) else zeros[None]
    action, flags = np.zeros((n_envs, 1), int), np.zeros(n_envs)
    buffer.add(obs, obs, action, flags, flags, [{}] * n_envs if infos is None else infos)


@pytest.mark.parametrize("cls", CLASSES)
def test_sizes_below_one_raise_value_error(cls: type[Any]) -> None:
    for buffer_size in (0, -5, np.int64(0)):
        with pytest.raises(ValueError, match=f"buffer_size must be at least 1, got {buffer_size}"):
            new(cls, buffer_size)
    for n_envs in (0, -1):
        with pytest.raises(ValueError, match=f"n_envs must be at least 1, got {n_envs}"):
            new(cls, n_envs=n_envs)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("value", ["10", 2.5, None, True])
def test_sizes_that_are_not_integers_raise_type_error(cls: type[Any], value: Any) -> None:
    with pytest.raises(TypeError, match=f"buffer_size must be an integer, got {value!r}"):
        new(cls, value)
    with pytest.raises(TypeError, match=f"n_envs must be an integer, got {value!r}"):
        new(cls, n_envs=value)


def test_error_for_a_whole_float_names_the_integer() -> None:
    with pytest.raises(TypeError, match=r"buffer_size must be an integer, got 1000000\.0; pass 1000000"):
        new(CompressedReplayBuffer, 1e6)


def test_sizes_that_sb3_accepts_are_accepted() -> None:
    theirs = ReplayBuffer(1, VECTOR, BUTTONS, n_envs=4)
    assert new(CompressedReplayBuffer, 1, n_envs=4).buffer_size == theirs.buffer_size == 1
    assert new(CompressedReplayBuffer, np.int64(8)).buffer_size == 8


def test_n_steps_and_n_sampled_goal_below_their_minimum_raise() -> None:
    with pytest.raises(ValueError, match="n_steps must be at least 1, got 0"):
        new(CompressedNStepReplayBuffer, n_steps=0)
    with pytest.raises(ValueError, match="n_sampled_goal must be at least 0, got -1"):
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


def test_message_for_the_wrong_space_contains_sb3s() -> None:
    with pytest.raises(AssertionError) as theirs:
        DictRolloutBuffer(8, VECTOR, BUTTONS)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=str(theirs.value)):
        new(CompressedDictRolloutBuffer, space=VECTOR)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("space", ["CartPole-v1", spaces.Tuple([VECTOR]), spaces.Text(3)])
def test_unsupported_spaces_raise_sb3s_error(cls: type[Any], space: Any) -> None:
    with pytest.raises(NotImplementedError, match="observation space is not supported"):
        new(cls, space=space)


def test_nested_dict_spaces_raise() -> None:
    with pytest.raises(TypeError, match=r"observations\['inner'\]: a Dict space inside a Dict space is not supported"):
        new(CompressedDictReplayBuffer, space=spaces.Dict(inner=DICT))


@pytest.mark.parametrize(
    ("cls", "argument", "hint"),
    [
        (CompressedReplayBuffer, "n_steps", r"'n_steps'; CompressedNStepReplayBuffer takes it$"),
        (
            CompressedDictReplayBuffer,
            "n_steps",
            "CompressedNStepReplayBuffer takes it, for observation spaces that are not Dict spaces$",
        ),
        (CompressedHerReplayBuffer, "n_steps", "for observation spaces that are not Dict spaces$"),
        (CompressedDictReplayBuffer, "copy_info_dict", "; CompressedHerReplayBuffer takes it$"),
        (
            CompressedReplayBuffer,
            "goal_selection_strategy",
            "CompressedHerReplayBuffer takes it, for observation spaces that are Dict spaces$",
        ),
        (CompressedReplayBuffer, "gae_lambda", "CompressedDictRolloutBuffer, .*CompressedRolloutBuffer take it$"),
        (CompressedReplayBuffer, "bufer_size", r"unexpected keyword argument 'bufer_size'; .* buffer_size\?$"),
        (CompressedReplayBuffer, "framestack", r"'framestack'; did you mean frame_stack\?$"),
        (CompressedReplayBuffer, "alpha", r"'alpha'; pass sampler=PrioritizedSampler\(alpha=\.\.\.\), from sb3_"),
        (CompressedRolloutBuffer, "alpha", r"'alpha'$"),
        (CompressedRolloutBuffer, "unknown", "unexpected keyword argument 'unknown'$"),
    ],
)
def test_arguments_of_other_classes_raise_and_name_these(cls: type[Any], argument: str, hint: str) -> None:
    with pytest.raises(TypeError, match=f"^{cls.__name__}: .*{hint}"):
        new(cls, **{argument: 3})  # type: ignore[arg-type]


def test_n_steps_for_another_class_names_the_class_to_use() -> None:
    recommended = {"n_steps": 3, "gamma": 0.99}
    with pytest.raises(TypeError, match="CompressedNStepReplayBuffer takes it"):
        DQN(
            "MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs=recommended,
            device="cpu",
        )  # fmt: skip


@pytest.mark.parametrize("cls", ROLLOUTS)
@pytest.mark.parametrize("option", [{"storage": "folder"}, {"resume": True}, {"overwrite": True}])
def test_storage_of_a_rollout_raises(cls: type[Any], option: dict[str, Any]) -> None:
    with pytest.raises(sb3_compressed.StorageError, match=f"storage is for replay buffers; a {cls.__name__}"):
        new(cls, **option)


@pytest.mark.parametrize("cls", REPLAYS)
@pytest.mark.parametrize("optimizes", [False, True])
def test_sampling_an_empty_replay_buffer_raises(cls: type[Any], optimizes: bool) -> None:
    buffer = new(cls, optimize_memory_usage=optimizes, handle_timeout_termination=not optimizes)
    with pytest.raises(BufferNotReady, match="empty buffer: add transitions first"):
        buffer.sample(3)
    add_step(buffer, 1)
    assert buffer.sample(3).actions.shape == (3, 1)
    buffer.reset()
    with pytest.raises(ValueError, match="empty buffer"):
        buffer.sample(3)


def test_sampling_an_empty_hindsight_buffer_raises_sb3s_error() -> None:
    with pytest.raises(RuntimeError, match="before the end of the first episode"):
        new(CompressedHerReplayBuffer).sample(3)


def test_sampling_one_row_with_optimize_memory_usage_raises() -> None:
    buffer = new(CompressedReplayBuffer, 1, optimize_memory_usage=True, handle_timeout_termination=False)
    add_step(buffer, 1)
    with pytest.raises(BufferNotReady, match="increase buffer_size"):
        buffer.sample(1)


@pytest.mark.parametrize("cls", REPLAYS)
def test_invalid_batch_sizes_raise_and_zero_is_an_empty_batch(cls: type[Any]) -> None:
    buffer = new(cls)
    for _ in range(3):
        add_step(buffer, 1)
    with pytest.raises(ValueError, match="batch_size must be at least 0, got -1"):
        buffer.sample(-1)
    for wrong in (2.5, "3", None):
        with pytest.raises(TypeError, match="batch_size must be an integer, got"):
            buffer.sample(wrong)
    assert buffer.sample(0).actions.shape == (0, 1)  # as in SB3
    assert buffer.sample(np.int64(2)).actions.shape == (2, 1)


@pytest.mark.parametrize("cls", ROLLOUTS)
def test_sampling_an_incomplete_rollout_raises(cls: type[Any]) -> None:
    for error in (AssertionError, ValueError, BufferNotReady):
        with pytest.raises(error, match="must be full before sampling from it: it has 0 of 8 steps"):
            new(cls).get()


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batch_sizes_of_rollouts_below_one_raise(batch_size: int) -> None:
    buffer = new(CompressedRolloutBuffer)
    for _ in range(8):
        obs, one = np.zeros((1, 8), np.float32), np.zeros(1)
        buffer.add(obs, np.zeros((1, 1), int), one, one, th.zeros(1), th.zeros(1))
    with pytest.raises(ValueError, match=f"batch_size must be at least 1, got {batch_size}"):
        buffer.get(batch_size)
    with pytest.raises(TypeError, match=r"batch_size must be an integer, got 2\.0; pass 2"):
        buffer.get(2.0)
    assert [len(batch.actions) for batch in buffer.get(np.int64(3))] == [3, 3, 2]


@pytest.mark.parametrize("cls", [*REPLAYS, CompressedHerReplayBuffer])
@pytest.mark.parametrize("infos", [[{}], [], [{}] * 3, {}, "ab", iter([{}, {}])])
def test_infos_must_have_one_dict_for_each_environment(cls: type[Any], infos: Any) -> None:
    buffer = new(cls, n_envs=2)
    with pytest.raises(ValueError, match="infos must be 2 dicts, one for each environment, got"):
        add_step(buffer, 2, infos=infos)
    assert buffer.size() == 0
    add_step(buffer, 2, infos=({}, {}))
    assert buffer.size() == 1


@pytest.mark.parametrize("stream", ["cart"], indirect=True)
def test_time_limit_ends_the_episode_of_its_environment_only(stream: Stream) -> None:
    space, action_space, n_envs, transitions = stream
    buffer = CompressedReplayBuffer(40, space, action_space, "cpu", n_envs=n_envs)
    step = transitions[0]
    with pytest.raises(ValueError, match="infos must be 4 dicts"):
        buffer.add(step.obs, step.next_obs, step.action, step.reward, step.done, [{"TimeLimit.truncated": True}])
    assert not buffer.timeouts.any()


SAVED = spaces.Box(0, 255, (4, 12, 12), np.uint8), spaces.Discrete(2)


def load_from(folder: Path, **options: Any) -> Any:
    return CompressedReplayBuffer.from_checkpoint(folder, device="cpu", **options)


def load_any(folder: Path, **options: Any) -> Any:
    return load_checkpoint(folder, device="cpu", **options)


@pytest.mark.parametrize("load", [load_from, load_any])
@pytest.mark.parametrize("options", [{}, {"follow": True}, {"repair": True}])
@pytest.mark.parametrize(
    ("error", "name", "value"),
    [
        *((ValueError, "buffer_size", value) for value in (0, -1, np.int64(0))),
        *((TypeError, "buffer_size", value) for value in (True, False, 2.5, 10.0, "10", np.float64(7), np.True_)),
        (ValueError, "n_envs", 0),
        (ValueError, "compression_method", "nonsense"),
        (ValueError, "sampler", "nonsense"),
        (ValueError, "num_threads", -1),
        (ValueError, "output_dtype", "nonsense"),
        (ValueError, "prefetch", -1),
        (TypeError, "n_steps", 3),
        (TypeError, "unknown", 3),
    ],
)
def test_wrong_arguments_of_a_load_are_no_damage(
    load: Any, options: dict[str, bool], error: type[Exception], name: str, value: Any, tmp_path: Path
) -> None:
    save_checkpoint(CompressedReplayBuffer(20, *SAVED, "cpu"), tmp_path)
    with pytest.raises(error, match=re.escape(str(value)) if error is ValueError else name) as caught:
        load(tmp_path, **{name: value}, **options)
    assert not isinstance(caught.value, StorageError)


@pytest.mark.parametrize("size", [np.int64(7), np.uint8(7), np.int64(30), None])
def test_counts_may_be_numpy_integers(size: Any, tmp_path: Path) -> None:
    buffer = CompressedReplayBuffer(np.int64(20), *SAVED, "cpu", np.int16(1), storage=tmp_path / "folder")
    obs = np.zeros((1, 4, 12, 12), np.uint8)
    for _ in range(25):
        buffer.add(obs, obs, np.array([[1]]), np.array([1.0]), np.array([False]), [{}])
    buffer.close()
    for load in (load_from, load_any):
        loaded = load(tmp_path / "folder", buffer_size=size)
        assert loaded.buffer_size == (size or 20)
        save_checkpoint(loaded, tmp_path / load.__name__)
    if size is not None:
        resumed = CompressedReplayBuffer(size, *SAVED, "cpu", storage=tmp_path / "folder", resume=True)
        assert resumed.size() == min(size, 20)
        resumed.close()
