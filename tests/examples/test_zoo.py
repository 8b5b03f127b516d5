"""SB3 accepts the hyperparameter files for rl-baselines3-zoo, and the zoo trains with them if it is installed."""

from __future__ import annotations

import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from stable_baselines3 import DQN, PPO
from support import atari_env
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import sb3_compressed
from sb3_compressed import BufferStatsCallback, CompressedReplayBuffer, CompressedRolloutBuffer

ZOO = Path(__file__).parents[2] / "examples" / "zoo"
#: Keys that the zoo does not pass to the algorithm.
ZOO_KEYS = {"env_wrapper", "frame_stack", "n_envs", "n_timesteps", "callback", "learning_rate", "clip_range"}
#: Number of steps and hyperparameters of short runs.
SHORT = {
    "dqn.yml": ("300", "buffer_size:400 learning_starts:100"),
    "prioritized_dqn.yml": ("300", "buffer_size:400 learning_starts:100"),
    "ppo.py": ("256", "n_envs:2 n_steps:64 batch_size:64"),
}
TIMEOUT_S = 240


def for_sb3(hyperparameters: dict[str, Any], **short: Any) -> dict[str, Any]:
    """Return the arguments that the zoo passes to an algorithm, after evaluating strings like the zoo."""
    evaluated = {"policy_kwargs", "replay_buffer_class", "replay_buffer_kwargs"}
    arguments = {
        name: eval(value, {}) if name in evaluated and isinstance(value, str) else value
        for name, value in hyperparameters.items()
        if name not in ZOO_KEYS
    }
    return {**arguments, "policy_kwargs": {"net_arch": [8]}, "device": "cpu", **short}


def test_every_zoo_file_has_a_short_run() -> None:
    assert {path.name for path in ZOO.iterdir() if path.is_file()} == set(SHORT)


@pytest.mark.parametrize("file", ["dqn.yml", "prioritized_dqn.yml"])
def test_sb3_accepts_the_yaml_files(file: str) -> None:
    hyperparameters = yaml.safe_load((ZOO / file).read_text())["atari"]
    model = DQN(env=atari_env(n_envs=1), **for_sb3(hyperparameters, learning_starts=50))
    assert type(model.replay_buffer) is CompressedReplayBuffer
    assert model.replay_buffer.buffer_size == 1_000_000
    callbacks = []
    for entry in hyperparameters["callback"]:
        [(path, options)] = entry.items() if isinstance(entry, dict) else [(entry, {})]
        module, _, name = path.rpartition(".")
        assert module == sb3_compressed.__name__
        callbacks.append(getattr(sb3_compressed, name)(**options))
    assert isinstance(callbacks[-1], BufferStatsCallback)
    model.learn(100, callback=callbacks)
    assert model.replay_buffer.size() == 100


def test_sb3_accepts_the_python_file() -> None:
    hyperparameters = runpy.run_path(str(ZOO / "ppo.py"))["hyperparams"]["atari"]
    model = PPO(env=atari_env(n_envs=2), **for_sb3(hyperparameters, n_steps=32, batch_size=32))
    assert type(model.rollout_buffer) is CompressedRolloutBuffer
    model.learn(64)


@pytest.mark.skipif(importlib.util.find_spec("rl_zoo3") is None, reason="needs rl-baselines3-zoo: make zoo")
@pytest.mark.parametrize("file", SHORT)
def test_the_zoo_trains_and_logs_statistics(file: str, tmp_path: Path) -> None:
    algorithm = Path(file).stem.split("_")[-1]
    steps, parameters = SHORT[file]
    command = (
        f"{sys.executable} -m rl_zoo3.train --algo {algorithm} --env PongNoFrameskip-v4 -conf {ZOO / file} -n {steps} "
        f"-f logs -tb board --eval-freq 150 --eval-episodes 1 --n-eval-envs 1 --seed 1 --device cpu "
        f"-params {parameters}"
    )
    done = subprocess.run(
        command.split(), cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=TIMEOUT_S, env={**os.environ}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [saved] = tmp_path.glob(f"logs/{algorithm}/*/PongNoFrameskip-v4.zip")
    algorithms: dict[str, Any] = {"dqn": DQN, "ppo": PPO}
    model = algorithms[algorithm].load(saved, device="cpu")
    kind = model.replay_buffer_class if algorithm == "dqn" else model.rollout_buffer_class
    assert kind in (CompressedReplayBuffer, CompressedRolloutBuffer)
    [run] = tmp_path.glob("board/*/*_1")
    events = EventAccumulator(str(run)).Reload()
    assert events.Scalars("buffer/compression_ratio")[-1].value > 5
    [evaluations] = tmp_path.glob("logs/*/*/evaluations.npz")
    assert len(np.load(evaluations)["results"]) > 0
    if file.startswith("prioritized"):
        assert len(events.Scalars("buffer/priority_max")) > 0
    # rl_zoo3.enjoy reads the hyperparameters that were saved with the model.
    [config] = tmp_path.glob("logs/*/*/*/config.yml")
    assert "Compressed" in str(yaml.load(config.read_text(), Loader=yaml.UnsafeLoader))
