"""``PrioritizedReplayCallback`` prioritizes a model while it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN

from callbacks.failing import FailingCallback
from sb3_compressed import CompressedReplayBuffer, PrioritizedReplayCallback


def model_with(sampler: str) -> DQN:
    return DQN(
        "MlpPolicy", "CartPole-v1", buffer_size=200, learning_starts=20, seed=0, device="cpu",
        replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs={"sampler": sampler},
    )  # fmt: skip


def test_a_model_is_prioritized_during_each_call_of_learn() -> None:
    model, callback = model_with("prioritized"), PrioritizedReplayCallback()
    for _ in range(2):
        model.learn(60, callback=callback)
        assert type(model) is DQN
    callback.on_training_end()  # rl-baselines3-zoo calls this twice
    PrioritizedReplayCallback().on_training_end()  # of a training that failed before it started
    buffer: Any = model.replay_buffer
    assert len(np.unique(buffer.sampler.priorities[:60])) > 1


def test_a_buffer_without_priorities_is_an_error_before_training() -> None:
    model = model_with("uniform")
    with pytest.raises(ValueError, match="needs a sampler with priorities"):
        model.learn(60, callback=PrioritizedReplayCallback())
    assert model.num_timesteps == 0


def test_an_interrupted_training_can_be_continued() -> None:
    model = model_with("prioritized")
    with pytest.raises(KeyboardInterrupt):
        model.learn(60, callback=[PrioritizedReplayCallback(), FailingCallback(40, KeyboardInterrupt())])
    assert type(model) is not DQN
    model.learn(60, callback=PrioritizedReplayCallback())
    assert type(model) is DQN
