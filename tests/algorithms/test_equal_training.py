"""With one seed, every algorithm ends with bit-identical weights whether its buffer is compressed or SB3's own."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from trainings import TRAININGS, assert_same_weights

from sb3_compressed import CompressedArray, CompressedReplayBuffer

#: Long ones, and those of which another is much alike.
SLOW = {"DQN", "DQN-optimize-memory", "QRDQN", "SAC-her", "TQC", "CrossQ"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in TRAININGS]
)
def test_final_weights_are_bit_identical(name: str) -> None:
    training = TRAININGS[name]
    theirs = training.model(compressed=False)
    untrained = copy.deepcopy(theirs.get_parameters())
    theirs.learn(training.steps)
    ours = training.model(compressed=True).learn(training.steps)

    buffers = [getattr(model, "replay_buffer", None) or model.rollout_buffer for model in (ours, theirs)]
    assert isinstance(buffers[0], type(buffers[1])), "a subclass of SB3's buffer"
    arrays = buffers[0].observations
    kept = arrays.values() if isinstance(arrays, dict) else [arrays]
    assert any(isinstance(array, CompressedArray) for array in kept)

    assert ours.num_timesteps == theirs.num_timesteps >= training.steps
    weights = theirs.get_parameters()
    assert_same_weights(ours.get_parameters(), weights)
    changed = [not th.equal(weights["policy"][key], weight) for key, weight in untrained["policy"].items()]
    assert any(changed), "training changed the weights"


class FloatEnv(gym.Env[Any, Any]):
    """Random float observations of an odd size."""

    action_space = spaces.Discrete(3)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.observation_space = spaces.Box(0, 1, shape, np.float32)
        self._n = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._n = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._n += 1
        return self._observe(), float(action), False, self._n >= 20, {}

    def _observe(self) -> Any:
        return self.np_random.random(self.observation_space.shape, np.float32)


@pytest.mark.parametrize("batch_size", [3, 50])
@pytest.mark.parametrize(
    ("shape", "options"),
    [((1, 19, 19), {}), ((17,), {"compression_method": "zstd3"})],
)
def test_weights_are_bit_identical_for_floats_of_any_size(
    shape: tuple[int, ...], options: dict[str, Any], batch_size: int
) -> None:
    """PyTorch rounds matrix products differently where memory is not aligned."""

    def trained(buffer_class: Any, **kwargs: Any) -> DQN:
        policy = {"net_arch": [8]}
        model = DQN(
            "MlpPolicy", FloatEnv(shape), seed=0, device="cpu", buffer_size=1000, batch_size=batch_size,
            policy_kwargs=policy, replay_buffer_class=buffer_class, replay_buffer_kwargs=kwargs,
        )  # fmt: skip
        return model.learn(400)

    theirs, ours = trained(ReplayBuffer), trained(CompressedReplayBuffer, **options)
    assert_same_weights(ours.get_parameters(), theirs.get_parameters())
    for size in range(1, 60):
        batch = ours.replay_buffer.sample(size)  # type: ignore[union-attr]
        for part in (batch.observations, batch.next_observations, batch.rewards, batch.dones):
            assert part.data_ptr() % 64 == 0
