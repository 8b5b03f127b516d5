"""Priorities are those of the whole buffer, although each shard has a part of them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch as th
from chi_square import assert_frequencies
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from support import ImageEnv

from distributed.buffers import actions_of, add_rows, assert_true, new_buffer, refreshed
from distributed.emitted import NUMBERS, SPACES, observation
from sb3_compressed import CompressedReplayBuffer, MixedReplayBuffer, prioritize
from sb3_compressed.distributed import DistributedReplayBuffer
from sb3_compressed.samplers import PrioritizedSampler

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


def test_priorities(local_ray: None) -> None:
    sampler = PrioritizedSampler(alpha=0.8, beta=0.5, beta_steps=400, epsilon=0.0)
    buffer = new_buffer("vector", 30, n_envs=3, n_shards=2, prefetch=0, sampler=sampler)
    add_rows(buffer, "vector", range(40))
    refreshed(buffer)
    batch = buffer.sample(2000)
    assert batch.weights.tolist() == [[1.0]] * 2000
    assert batch.weights.dtype == th.float32
    actions, indices = np.array(assert_true(batch, "vector", 3)), batch.indices
    assert sorted({*actions.tolist()}) == [*range(30, 120)]
    assert len(np.unique(indices)) == 90
    numbers = dict(zip(actions.tolist(), indices.tolist(), strict=True))
    errors = np.random.default_rng(0).uniform(0.2, 2.0, 90)
    errors[::3] *= 3  # those of one shard
    order = np.array([numbers[action] for action in range(30, 120)])
    assert buffer.update_priorities(order, th.tensor(-errors).reshape(-1, 1)) == 0
    buffer.sample(1)
    refreshed(buffer)
    priorities = errors**0.8
    np.testing.assert_allclose(buffer._group.masses.sum(), priorities.sum())
    counts, n_draws = np.zeros(90), 2
    for _ in range(60):
        batch = buffer.sample(64)
        drawn = np.array(actions_of(batch)) - 30
        np.add.at(counts, drawn, 1)
        expected = (priorities[drawn].min() / priorities[drawn]) ** (0.5 + 0.5 * n_draws / 400)
        np.testing.assert_allclose(batch.weights.numpy().reshape(-1), expected, rtol=1e-5)
        np.testing.assert_array_equal(batch.indices, order[drawn])
        n_draws += 1
    assert_frequencies(counts, priorities)
    # Updates of transitions that were overwritten are skipped and counted.
    add_rows(buffer, "vector", range(40, 50))
    buffer.flush()
    assert buffer.n_skipped_updates == 0
    buffer.update_priorities(order, np.ones(90))
    buffer.sample(1)
    refreshed(buffer)
    assert buffer.n_skipped_updates == 30
    for wrong, error in (
        ((order, np.ones(89)), ValueError), ((order, np.full(90, np.nan)), ValueError),
        ((order.astype(float), np.ones(90)), TypeError), ((np.array([-1]), np.ones(1)), ValueError),
    ):  # fmt: skip
        with pytest.raises(error):
            buffer.update_priorities(*wrong)
    # A VecNormalize normalizes what is returned, as in SB3.
    env: Any = VecNormalize(DummyVecEnv([lambda: ImageEnv(SPACES["vector"], NUMBERS)]))
    env.obs_rms.mean, env.obs_rms.var, env.ret_rms.var = np.arange(9.0), np.arange(1.0, 10.0), np.array(40.0)
    batch = buffer.sample(32, env)
    for row, action in enumerate(actions_of(batch)):
        expected = env.normalize_obs(observation("vector", *divmod(action, 3)))
        np.testing.assert_allclose(batch.observations[row].numpy(), expected)
        np.testing.assert_allclose(batch.rewards[row, 0].item(), env.normalize_reward(np.float32(action)), rtol=1e-6)
    # After a reset, numbers of before are those of no transitions.
    buffer.reset()
    add_rows(buffer, "vector", range(50))
    refreshed(buffer)
    before = buffer._group.masses.sum()
    n_skipped = buffer.n_skipped_updates
    buffer.update_priorities(order, np.full(90, 100.0))
    buffer.sample(1)
    refreshed(buffer)
    assert buffer._group.masses.sum() == before
    assert buffer.n_skipped_updates == n_skipped + 90
    buffer.close()


def test_a_mix_updates_priorities_of_all_its_buffers(local_ray: None) -> None:
    """It raised AttributeError if another part had priorities, too."""
    sampler = PrioritizedSampler(alpha=1.0, epsilon=0.0)
    buffer = new_buffer("small", 100, n_envs=2, n_shards=2, prefetch=0, sampler=sampler)
    local = CompressedReplayBuffer(100, SPACES["small"], NUMBERS, "cpu", sampler=PrioritizedSampler(1.0, epsilon=0.0))
    add_rows(buffer, "small", range(20))
    add_rows(local, "small", range(1000, 1020))
    refreshed(buffer)
    for parts in ((buffer, local), (local, buffer)):
        mixed = MixedReplayBuffer.from_buffers(parts, weights=[0.5, 0.5])
        errors = np.random.default_rng(len(parts)).uniform(1, 3, 1000)
        batch = mixed.sample(1000)
        actions = actions_of(batch)
        assert mixed.update_priorities(batch.indices, errors) == 0
        buffer.sample(1)  # which sends the updates
        expected = dict(zip(actions, errors, strict=True))
        found = {action: priority for action, priority in expected.items() if action < 1000}
        refreshed(buffer)
        np.testing.assert_allclose(buffer._group.masses.sum(), sum(found.values()))
        with pytest.raises(ValueError, match="indices"):
            mixed.update_priorities(np.array([*batch.indices[:1], 1 << 62]), np.ones(2))
    buffer.close()


def test_updates_are_sent_before_a_checkpoint(local_ray: None, tmp_path: Path) -> None:
    sampler = PrioritizedSampler(alpha=1.0, epsilon=0.0, mode="lap")
    buffer = new_buffer("small", 100, sampler=sampler)
    add_rows(buffer, "small", range(20))
    batch = buffer.sample(400)
    assert (batch.weights == 1).all()
    buffer.update_priorities(batch.indices, np.full(400, 4.0))
    buffer.save_checkpoint(tmp_path / "checkpoint")
    refreshed(buffer)
    assert buffer._group.masses.tolist() == [4.0 * 20]
    buffer.reset()
    buffer.load_checkpoint(tmp_path / "checkpoint")
    assert buffer._group.masses.tolist() == [4.0 * 20]
    buffer.close()


def test_dqn_learns_with_priorities(local_ray: None) -> None:
    """With one step, the gamma of the buffer is not used, so it need not be that of the model."""
    model = DQN(
        "MlpPolicy", "CartPole-v1", replay_buffer_class=DistributedReplayBuffer, gamma=0.95, learning_starts=50,
        batch_size=32, policy_kwargs={"net_arch": [8]}, buffer_size=400, device="cpu", seed=0,
        replay_buffer_kwargs={"n_shards": 2, "sampler": "prioritized", "segment_length": 10},
    )  # fmt: skip
    buffer: Any = model.replay_buffer
    with prioritize(model):
        model.learn(250)
    refreshed(buffer)
    assert buffer.size() == 252, "DQN collects 4 steps at a time"
    assert buffer.n_sampled == 51 * 32
    assert ray.get(buffer._group.shards[0].actor.status.remote()).mass != 252, "priorities were updated"
    with pytest.raises(TypeError, match="use save_checkpoint"):
        model.save_replay_buffer(io.BytesIO())
    buffer.close()
