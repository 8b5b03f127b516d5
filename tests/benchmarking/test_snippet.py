"""The printed code uses an algorithm of SB3 that fits the action space."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sb3_compressed.benchmarking.sb3_classes import off_policy_algorithm, policy_for
from sb3_compressed.benchmarking.snippet import snippet
from sb3_compressed.benchmarking.training_run import Setup


def test_off_policy_algorithm_depends_on_the_action_space() -> None:
    assert off_policy_algorithm(spaces.Discrete(2)) == "DQN"
    assert off_policy_algorithm(spaces.Box(-1, 1, (3,))) == "SAC"
    with pytest.raises(ValueError, match="--n-steps"):
        off_policy_algorithm(spaces.MultiDiscrete([2, 3]))


def model_of(algorithm: str, method: str, **buffer: int) -> Any:
    setup = Setup("Pendulum-v1", False, 1, 1, algorithm, buffer, 100, 1.0)
    namespace: dict[str, Any] = {}
    exec(snippet(setup, spaces.Box(-1, 1, (3,)), method), namespace)
    return namespace["model"]


def test_snippets_of_both_kinds_run() -> None:
    buffer = model_of("SAC", "zstd-5", buffer_size=500).replay_buffer
    assert (buffer.buffer_size, repr(buffer.observations.codec)) == (500, "Zstd(compresslevel=-5)")
    model = model_of("PPO", "auto", n_steps=64)
    assert (type(model.rollout_buffer).__name__, model.n_steps) == ("CompressedRolloutBuffer", 64)


def test_policy_depends_on_the_observation_space() -> None:
    image = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    assert policy_for(image) == "CnnPolicy"
    assert policy_for(spaces.Box(-1, 1, (3,))) == "MlpPolicy"
    assert policy_for(spaces.Dict({"image": image})) == "MultiInputPolicy"
