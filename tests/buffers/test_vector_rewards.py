"""Subclasses whose arrays have other shapes than SB3's, such as rewards of several objectives."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from buffer_pairs import REPLAY_PAIRS, ROLLOUT_PAIRS
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from support import assert_same_batch, new_buffer, recorded, same_draws

from sb3_compressed import CompressedReplayBuffer, CompressedRolloutBuffer, MixedReplayBuffer
from sb3_compressed.buffers.resize import resize

STREAMS = {"replay": "atari", "n-step": "atari", "dict": "console", "her": "goal-bits"}
N_OBJECTIVES = 3


class Objectives:
    """Rewards of several objectives, in each class of buffers."""

    rewards: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        buffer: Any = self
        self.rewards = np.zeros((buffer.buffer_size, buffer.n_envs, N_OBJECTIVES), np.float32)


class ManyRewards(Objectives, CompressedReplayBuffer):
    """One in a module, for pickles."""


def with_objectives(cls: type[Any]) -> Any:
    return type("ManyRewards", (Objectives, cls), {})


def add(buffer: Any, transition: Any, reward: Any, **changes: Any) -> None:
    values = copy.deepcopy({**vars(transition), "reward": reward, **changes})
    buffer.add(*[values[name] for name in ("obs", "next_obs", "action", "reward", "done", "infos")])


@pytest.mark.parametrize("form", ["matrix", "vector", "lists", "leading axis", "number"])
@pytest.mark.parametrize("kind", ["replay", "dict", "her"])
def test_rewards_are_stored_and_sampled_as_sb3s(kind: str, form: str) -> None:
    stream = recorded(STREAMS[kind])
    n_envs = stream[2]
    ours, theirs = [new_buffer(with_objectives(cls), stream, 30) for cls in REPLAY_PAIRS[kind]]
    rng = np.random.default_rng(0)
    for transition in stream[-1][:50]:
        rewards = rng.random((n_envs, N_OBJECTIVES), np.float32)
        given: Any = {
            "matrix": rewards, "vector": rewards[0], "lists": rewards.tolist(), "leading axis": rewards[None],
            "number": 0.5,
        }[form]  # fmt: skip
        for buffer in (ours, theirs):
            add(buffer, transition, given)
    np.testing.assert_array_equal(ours.rewards, theirs.rewards)
    assert_same_batch(*same_draws(*[partial(each.sample, 20) for each in (ours, theirs)], seed=0))


@pytest.mark.parametrize("options", [{}, {"sampler": "prioritized"}, {"optimize_memory_usage": True}], ids=repr)
@pytest.mark.parametrize("reward", [np.zeros((4, 2)), np.zeros(2), np.zeros((4, 3, 1)), np.zeros((3, 4))], ids=np.shape)
def test_what_numpy_would_not_assign_raises(reward: Any, options: dict[str, Any]) -> None:
    stream = recorded("atari")
    buffer = new_buffer(ManyRewards, stream, 30, **options)
    with pytest.raises(ValueError, match="reward"):
        add(buffer, stream[-1][0], reward)
    with pytest.raises(TypeError, match="reward"):
        add(buffer, stream[-1][0], [["one", "two", "three"]] * 4)
    assert buffer.size() == 0
    assert not np.asarray(buffer.observations).any()


def test_extend_copies_pickles_and_checkpoints(tmp_path: Path) -> None:
    stream = recorded("atari")
    n_envs, transitions = stream[2], stream[-1][:100]
    rewards = np.random.default_rng(0).random((100, n_envs, N_OBJECTIVES), np.float32)
    buffer, looped, theirs = [
        new_buffer(cls, stream, 60) for cls in (ManyRewards, ManyRewards, with_objectives(ReplayBuffer))
    ]
    for transition, reward in zip(transitions, rewards, strict=True):
        add(looped, transition, reward)
        add(theirs, transition, reward)
    names = ("obs", "next_obs", "action", "reward", "done", "infos")
    columns = {name: [getattr(each, name) for each in transitions] for name in names}
    buffer.extend(**{**columns, "reward": rewards})
    buffer.save_checkpoint(tmp_path / "saved")
    loaded = ManyRewards.from_checkpoint(tmp_path / "saved", device="cpu")
    smaller = ManyRewards.from_checkpoint(tmp_path / "saved", device="cpu", buffer_size=20 * n_envs)
    np.testing.assert_array_equal(smaller.rewards, rewards[80:])
    for each in (buffer, looped, loaded, pickle.loads(pickle.dumps(buffer)), copy.deepcopy(buffer)):
        np.testing.assert_array_equal(each.rewards, theirs.rewards)
        assert_same_batch(*same_draws(partial(each.sample, 20), partial(theirs.sample, 20), seed=0))
    with pytest.raises(ValueError, match="reward"):
        buffer.extend(**columns)
    grown = copy.deepcopy(buffer)
    resize(grown, 80 * n_envs)
    np.testing.assert_array_equal(grown.rewards[:60], np.roll(buffer.rewards, -buffer.pos, axis=0))
    mixed = MixedReplayBuffer.from_buffers([buffer, loaded], weights=[1, 1])
    add(mixed, transitions[0], rewards[0])
    assert mixed.sample(8).rewards.shape == (8 * N_OBJECTIVES, 1)


def test_a_folder_takes_its_own_rewards_only(tmp_path: Path) -> None:
    stream = recorded("atari")
    buffer = new_buffer(ManyRewards, stream, 30, storage=tmp_path / "folder")
    with pytest.raises(ValueError, match="rewards"):
        add(buffer, stream[-1][0], np.zeros((4, N_OBJECTIVES)))
    assert buffer.size() == 0


def test_returns_of_several_steps_and_sequences_need_one_number() -> None:
    stream = recorded("atari")
    calls: list[tuple[Any, str, tuple[int, ...]]] = [
        (REPLAY_PAIRS["n-step"][0], "sample", (4,)),
        (CompressedReplayBuffer, "sample_sequences", (4, 3)),
    ]
    for cls, name, arguments in calls:
        buffer = new_buffer(with_objectives(cls), stream, 30)
        for transition in stream[-1][:20]:
            add(buffer, transition, np.zeros((4, N_OBJECTIVES)))
        with pytest.raises(ValueError, match="rewards"):
            getattr(buffer, name)(*arguments)


@pytest.mark.parametrize("name", ["dones", "timeouts", "actions"])
def test_other_arrays(name: str) -> None:
    stream = recorded("atari-single")
    buffers = [new_buffer(cls, stream, 30) for cls in REPLAY_PAIRS["replay"]]
    rng = np.random.default_rng(0)
    for buffer in buffers:
        setattr(buffer, name, np.zeros((30, 1, 5), np.float32))
        buffer.action_dim = 5 if name == "actions" else buffer.action_dim
    for transition in stream[-1][:20]:
        done, action = rng.random((1, 5)) > 0.5, rng.random((1, 5))
        changes: dict[str, Any] = {"done": done} if name == "dones" else {"action": action} if name == "actions" else {}
        for buffer in buffers:
            add(buffer, transition, transition.reward, **changes)
    np.testing.assert_array_equal(*[getattr(buffer, name) for buffer in buffers])
    if name == "actions":
        assert_same_batch(*same_draws(*[partial(each.sample, 20) for each in buffers], seed=0))


def test_episodes_of_hindsight_replay_need_one_end() -> None:
    stream = recorded("goal-bits")
    buffer = new_buffer(REPLAY_PAIRS["her"][0], stream, 30)
    buffer.dones = np.zeros((30, 2, 3), np.float32)
    with pytest.raises(ValueError, match="done"):
        add(buffer, stream[-1][0], np.zeros(2), done=np.zeros((2, 3), np.bool_))
    assert buffer.size() == 0


@pytest.mark.parametrize("kind", ROLLOUT_PAIRS)
def test_rollouts_of_two_heads(kind: str) -> None:
    """Rewards, episode starts and log probabilities of two heads, and their values in one row."""

    class TwoHeads:
        def reset(self) -> None:
            super().reset()  # type: ignore[misc]
            buffer: Any = self
            shape = buffer.buffer_size, buffer.n_envs, 2
            for name in ("rewards", "episode_starts", "log_probs", "advantages"):
                setattr(self, name, np.zeros(shape, np.float32))
            self.values, self.returns = np.zeros((*shape[:1], 2 * shape[1]), np.float32), np.zeros(shape, np.float32)

    stream = recorded("console" if "dict" in kind else "atari")
    n_envs = stream[2]
    shape = {"hidden_state_shape": (10, 1, n_envs, 4)} if "recurrent" in kind else {}
    extra = {"lstm_states": RNNStates(*[(th.ones(1, n_envs, 4), th.ones(1, n_envs, 4))] * 2)} if shape else {}
    buffers = [
        type("B", (TwoHeads, cls), {})(10, stream[0], stream[1], device="cpu", n_envs=n_envs, **shape)
        for cls in ROLLOUT_PAIRS[kind]
    ]
    for buffer in buffers:
        rng = np.random.default_rng(0)
        for transition in stream[-1][:10]:
            numbers = rng.random((4, n_envs, 2), np.float32)
            value, log_prob = th.as_tensor(numbers[2]), th.as_tensor(numbers[3])
            buffer.add(
                copy.deepcopy(transition.obs), transition.action, numbers[0], numbers[1], value, log_prob, **extra
            )
        assert buffer.full
    for name in ("rewards", "episode_starts", "log_probs", "values"):
        np.testing.assert_array_equal(*[getattr(buffer, name) for buffer in buffers])


def test_rollouts_with_other_shapes_raise() -> None:
    for cls in (RolloutBuffer, CompressedRolloutBuffer):
        stream = recorded("atari")
        buffer = cls(10, stream[0], stream[1], device="cpu", n_envs=4)
        buffer.log_probs = np.zeros((10, 4, 2), np.float32)
        with pytest.raises(ValueError, match="shape"):
            buffer.add(stream[-1][0].obs, np.zeros(4), np.zeros(4), np.zeros(4), th.zeros(4), th.zeros(3, 2))
        assert buffer.pos == 0
