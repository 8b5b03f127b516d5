"""SB3's own tests use the compressed buffers with the plugin, and pass."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from programs import TESTS, environment_with, python_path, run_python

from upstream.run import FILES, run

#: What a test module of SB3 may do to get at a buffer.
MODULE = """
import pytest
from stable_baselines3 import A2C, DQN, HerReplayBuffer
from stable_baselines3.common import buffers
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.common.envs import FakeImageEnv

def test_plugin_replaces_sb3s_classes():
    for cls in (DictReplayBuffer, NStepReplayBuffer, ReplayBuffer, RolloutBuffer, HerReplayBuffer):
        assert cls.__module__.startswith("sb3_compressed"), cls
    assert buffers.ReplayBuffer is ReplayBuffer
    assert issubclass(DictReplayBuffer, ReplayBuffer) and issubclass(HerReplayBuffer, DictReplayBuffer)

@pytest.mark.parametrize("n_steps", [1, 3])
def test_models_use_compressed_buffers_by_default_under_the_plugin(n_steps):
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=100, n_steps=n_steps, device="cpu")
    assert type(model.replay_buffer) is (NStepReplayBuffer if n_steps == 3 else ReplayBuffer)
    model.learn(60)
    assert type(A2C("MlpPolicy", "CartPole-v1", device="cpu").rollout_buffer) is RolloutBuffer

def test_subclasses_of_replaced_classes_are_compressed():
    class Own(ReplayBuffer):
        pass
    assert "Compressed" in Own.__mro__[1].__name__
    DQN("CnnPolicy", FakeImageEnv(), buffer_size=50, replay_buffer_class=Own, device="cpu").learn(20)
"""


@pytest.fixture
def run_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], CompletedProcess[str]]:
    """Return a function that runs the tests of a module with the plugin."""

    def run_module(name: str, code: str) -> CompletedProcess[str]:
        (tmp_path / name).write_text(code)
        monkeypatch.chdir(tmp_path)
        options = ["-m", "pytest", "-p", "upstream.plugin", "-c", os.devnull, "--rootdir", ".", "-q"]
        return run_python(options, environment_with(PYTHONPATH=python_path(TESTS.parent, TESTS)))

    return run_module


@pytest.mark.slow
def test_wherever_sb3_names_a_buffer_it_is_a_compressed_one(run_module: Any) -> None:
    done = run_module("test_names.py", MODULE)
    assert done.returncode == 0, done.stdout
    assert "test_names.py: 4 passed; 5 compressed buffers, 0 others" in done.stdout


@pytest.mark.slow
def test_a_run_without_any_compressed_buffer_fails(run_module: Any) -> None:
    done = run_module("test_nothing.py", "def test_nothing():\n    pass\n")
    assert "1 passed" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize("distribution", FILES)
def test_upstream_tests_pass_with_compressed_buffers(distribution: str) -> None:
    name = distribution.replace("-", "_").upper() + "_CHECKOUT"
    if name not in os.environ:
        pytest.skip(f"set {name} to a checkout of {distribution}, or run tests/upstream/run.py, which downloads it")
    assert run(distribution, Path(os.environ[name])) == 0
