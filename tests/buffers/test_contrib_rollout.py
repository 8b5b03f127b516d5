"""``compress_rollout_buffer``: for algorithms that take no buffer class."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.buffers import RolloutBuffer
from support import atari_env

from sb3_compressed import CompressedArray, CompressedRolloutBuffer, get_codec
from sb3_compressed.contrib import (
    CompressedMaskableRolloutBuffer,
    CompressedRecurrentRolloutBuffer,
    compress_rollout_buffer,
)


def test_recurrent_model_gets_a_buffer_with_the_same_arguments() -> None:
    model = RecurrentPPO("CnnLstmPolicy", atari_env("Pong", 2), n_steps=16, gamma=0.9, gae_lambda=0.8, device="cpu")
    raw = model.rollout_buffer
    assert compress_rollout_buffer(model, compression_method="igzip1") is model
    ours = model.rollout_buffer
    assert isinstance(ours, CompressedRecurrentRolloutBuffer)
    for name in ("buffer_size", "observation_space", "hidden_state_shape", "device", "gamma", "gae_lambda", "n_envs"):
        assert getattr(ours, name) == getattr(raw, name)
    assert isinstance(ours.observations, CompressedArray)
    assert ours.observations.codec == get_codec("igzip1")


def test_model_with_a_compressed_buffer_gets_new_options() -> None:
    model = PPO("CnnPolicy", atari_env("Pong", 1), n_steps=16, batch_size=16, device="cpu")
    compress_rollout_buffer(compress_rollout_buffer(model), compression_method="rle")
    assert type(model.rollout_buffer) is CompressedRolloutBuffer
    assert model.rollout_buffer.observations.codec == get_codec("rle")


def test_models_without_a_counterpart_raise() -> None:
    class OwnBuffer(RolloutBuffer):
        """A user's own."""

    model = PPO("MlpPolicy", "CartPole-v1", rollout_buffer_class=OwnBuffer, device="cpu")
    with pytest.raises(TypeError, match="PPO has a OwnBuffer; only DictRolloutBuffer"):
        compress_rollout_buffer(model)
    with pytest.raises(TypeError, match="DQN has no rollout buffer"):
        compress_rollout_buffer(DQN("MlpPolicy", "CartPole-v1"))  # type: ignore[type-var]


@pytest.mark.parametrize(
    "space", [spaces.MultiBinary((2, 3)), spaces.MultiDiscrete(np.full((2, 3), 4)), spaces.Box(-1, 1, (3,))], ids=str
)
def test_spaces_without_masks_raise(space: spaces.Space[object]) -> None:
    buffer = CompressedMaskableRolloutBuffer(10, spaces.Box(-1, 1, (3,)), spaces.Discrete(2), device="cpu")
    buffer.action_space = space
    with pytest.raises(ValueError, match=type(space).__name__):
        buffer.reset()
