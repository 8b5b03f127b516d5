"""Trainings on a CUDA device end with bit-identical weights whether their buffers are compressed or SB3's own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch as th
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.utils import set_random_seed
from support import assert_same_batch, atari_env, same_draws
from trainings import SMALL_CNN, TRAININGS, assert_same_weights

from sb3_compressed import (
    BufferCheckpointCallback,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    latest_checkpoint,
)
from sb3_compressed.training.prioritized_replay import prioritize

pytestmark = [
    pytest.mark.usefixtures("is_deterministic"),
    pytest.mark.filterwarnings("ignore:.*does not have a deterministic implementation"),
    pytest.mark.filterwarnings("ignore:You are trying to run .* on the GPU"),  # SB3's, without a CNN
]


@pytest.mark.parametrize("name", TRAININGS)
def test_final_weights_are_bit_identical(name: str) -> None:
    training = TRAININGS[name]
    theirs = training.model(compressed=False, device="cuda")
    untrained = copy.deepcopy(theirs.get_parameters())
    theirs.learn(training.steps)
    ours = training.model(compressed=True, device="cuda").learn(training.steps)
    weights = theirs.get_parameters()
    assert_same_weights(ours.get_parameters(), weights)
    changed = [not th.equal(weights["policy"][key], weight) for key, weight in untrained["policy"].items()]
    assert any(changed), "training changed the weights"


def dqn(**options: Any) -> DQN:
    set_random_seed(1)
    return DQN(
        "CnnPolicy", atari_env("Breakout", 2), buffer_size=200, learning_starts=60, train_freq=4, seed=1, device="cuda",
        policy_kwargs=SMALL_CNN, replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs=options,
    )  # fmt: skip


def test_prioritized_trainings_are_bit_identical_whatever_the_codec() -> None:
    weights = []
    for method in ("none", "auto"):
        model = dqn(sampler="prioritized", compression_method=method)
        with prioritize(model):
            model.learn(420)
        weights.append(model.get_parameters())
    assert_same_weights(*weights)


def test_trainings_with_observations_on_the_device_are_bit_identical() -> None:
    weights = []
    for storage in ("memory", "device"):
        weights.append(dqn(storage=storage).learn(420).get_parameters())
        model: Any = PPO(
            "CnnPolicy", atari_env("Breakout", 2), n_steps=64, batch_size=32, n_epochs=2, seed=1, device="cuda",
            policy_kwargs=SMALL_CNN, rollout_buffer_class=CompressedRolloutBuffer,
            rollout_buffer_kwargs={"storage": storage},
        ).learn(256)  # fmt: skip
        weights.append(model.get_parameters())
    assert_same_weights(weights[0], weights[2])
    assert_same_weights(weights[1], weights[3])


def test_a_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    model = dqn()
    model.learn(200, callback=BufferCheckpointCallback(100, tmp_path / "checkpoints"))
    folder = latest_checkpoint(tmp_path / "checkpoints")
    assert folder is not None
    for device in ("cpu", "cuda"):
        buffer = CompressedReplayBuffer.from_checkpoint(folder / "buffer", device=device)
        resumed = DQN.load(folder / "model", env=atari_env("Breakout", 2), device=device)
        resumed.replay_buffer = buffer
        resumed.learn(100, reset_num_timesteps=False)
        assert resumed.num_timesteps >= 300


def test_sb3_saves_the_buffer_of_a_training_on_the_device_and_loads_it_on_the_cpu(tmp_path: Path) -> None:
    model = dqn()
    model.learn(200)
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = DQN("CnnPolicy", atari_env("Breakout", 2), buffer_size=200, device="cpu", policy_kwargs=SMALL_CNN)
    loaded.load_replay_buffer(tmp_path / "buffer")
    buffer = loaded.replay_buffer
    assert isinstance(buffer, CompressedReplayBuffer)
    assert buffer.device.type == "cpu"
    on_device: Any = model.replay_buffer
    on_device.device = th.device("cpu")
    assert_same_batch(*same_draws(lambda: buffer.sample(64), lambda: on_device.sample(64), seed=2))


@pytest.mark.parametrize("storage", ["memory", "device"])
def test_device_memory_does_not_grow_in_ten_thousand_updates(storage: str) -> None:
    model = dqn(storage=storage)
    model.learn(200)
    model.train(1000, batch_size=32)
    th.cuda.synchronize()
    reserved = th.cuda.memory_reserved()
    model.train(10_000, batch_size=32)
    th.cuda.synchronize()
    assert th.cuda.memory_reserved() <= reserved
