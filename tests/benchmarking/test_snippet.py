"""The printed code uses an algorithm of SB3 that fits the action space."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import PPO, SAC

from sb3_compressed.benchmarking.benchmark_envs import make_env
from sb3_compressed.benchmarking.frame_recording import write_recording
from sb3_compressed.benchmarking.snippet import off_policy_algorithm, snippet


def test_off_policy_algorithm_depends_on_the_action_space() -> None:
    assert off_policy_algorithm(spaces.Discrete(2)) == ("DQN", 32)
    assert off_policy_algorithm(spaces.Box(-1, 1, (3,))) == ("SAC", 256)
    with pytest.raises(ValueError, match=r"supports the action space MultiDiscrete\(\[2 3\]\); pass --n-steps"):
        off_policy_algorithm(spaces.MultiDiscrete([2, 3]))


def test_snippets_of_both_kinds_run(tmp_path: Path) -> None:
    recording = write_recording(tmp_path / "recording.zst", make_env("Pendulum-v1", 1, atari=False), 5)
    replay: dict[str, SAC] = {}
    exec(snippet("Pendulum-v1", recording, "SAC", atari=False, buffer={"buffer_size": 500}, method="zstd-5"), replay)
    buffer = replay["model"].replay_buffer
    assert buffer is not None
    assert (buffer.buffer_size, repr(buffer.observations.codec)) == (500, "Zstd(compresslevel=-5)")  # type: ignore[attr-defined]
    rollout: dict[str, PPO] = {}
    exec(snippet("Pendulum-v1", recording, "PPO", atari=False, buffer={"n_steps": 64}, method="auto"), rollout)
    assert type(rollout["model"].rollout_buffer).__name__ == "CompressedRolloutBuffer"
    assert rollout["model"].n_steps == 64


def test_policy_depends_on_the_observation_space(tmp_path: Path) -> None:
    recording = write_recording(tmp_path / "recording.zst", make_env("CartPole-v1", 1, atari=False), 1)
    image = replace(recording, frame_space=spaces.Box(0, 255, (36, 36, 1), np.uint8))
    for each, policy in ((recording, "MlpPolicy"), (image, "CnnPolicy")):
        lines = snippet("CartPole-v1", each, "DQN", atari=False, buffer={"buffer_size": 1000}, method="auto")
        assert f'    "{policy}",\n    env,\n    buffer_size=1_000,\n' in lines
