"""With one seed, every algorithm ends with bit-identical weights whether its buffer is compressed or SB3's own."""

from __future__ import annotations

import copy

import pytest
import torch as th
from trainings import TRAININGS, assert_same_weights

from sb3_compressed import CompressedArray

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
