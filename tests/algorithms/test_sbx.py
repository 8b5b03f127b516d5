"""Trainings with SBX, SB3's algorithms in JAX, end with bit-identical weights."""

from __future__ import annotations

import importlib.util

import pytest
from programs import run

# In its own process, because JAX starts threads and other tests fork.
TRAINING = """
import jax, numpy as np, sbx
from support import atari_env
from sb3_compressed import (
    BufferStatsCallback, CompressedNStepReplayBuffer, CompressedReplayBuffer, CompressedRolloutBuffer
)

def dqn(compressed, **options):
    cls = CompressedNStepReplayBuffer if options else CompressedReplayBuffer
    kwargs = dict(replay_buffer_kwargs=dict(n_steps=3, gamma=0.99)) if options and compressed else {}
    return sbx.DQN(
        "CnnPolicy", atari_env(n_envs=2), buffer_size=300, learning_starts=50, batch_size=32, seed=0,
        replay_buffer_class=cls if compressed else None, **options, **kwargs,
    ), "qf_state", 240

def sac(compressed):
    return sbx.SAC(
        "MlpPolicy", "Pendulum-v1", buffer_size=300, learning_starts=50, seed=0,
        replay_buffer_class=CompressedReplayBuffer if compressed else None,
    ), "actor_state", 150

def ppo(compressed):
    return sbx.PPO(
        "CnnPolicy", atari_env(n_envs=2), n_steps=32, batch_size=32, n_epochs=2, seed=0,
        rollout_buffer_class=CompressedRolloutBuffer if compressed else None,
    ), "actor_state", 128

def weights(compressed):
    model, state, steps = {make}
    model.learn(steps, callback=BufferStatsCallback(50) if compressed else None)
    return [np.asarray(leaf).tobytes() for leaf in jax.tree_util.tree_leaves(getattr(model.policy, state).params)]

assert weights(True) == weights(False)
print("equal")
"""


@pytest.mark.skipif(importlib.util.find_spec("sbx") is None, reason="needs SBX: make zoo")
@pytest.mark.parametrize(
    "make", ["dqn(compressed)", "dqn(compressed, n_steps=3)", "sac(compressed)", "ppo(compressed)"]
)
def test_final_weights_of_sbx_are_bit_identical(make: str) -> None:
    printed = run(TRAINING.replace("{make}", make), JAX_PLATFORMS="cpu")
    assert printed.splitlines()[-1] == "equal"
