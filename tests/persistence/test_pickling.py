"""Pickles, copies, and SB3's own functions to save and load: copies are equal and continue in the same way."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from conftest import Stream
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import VecEnv
from stored import ROWS, add, hold_equal
from support import atari_env, filled

from sb3_compressed import (
    CompressedArray,
    CompressedHerReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
)
from sb3_compressed.arrays import memory_log

COPIES = {"pickle": lambda buffer: pickle.loads(pickle.dumps(buffer)), "deepcopy": copy.deepcopy}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("n_steps", [0, 1, ROWS + 30])
@pytest.mark.parametrize(("stream", "method"), [("atari", "auto"), ("console", "zstd")], indirect=["stream"])
def test_copy_is_equal_and_independent_and_shares_frames(way: str, n_steps: int, method: str, stream: Stream) -> None:
    buffer = filled(stream, n_steps, ROWS, compression_method=method)
    twin = COPIES[way](buffer)
    if n_steps:
        hold_equal(twin, buffer)
    before = pickle.dumps(buffer)
    following = stream[-1][n_steps : n_steps + 40]
    add(following, twin)
    assert pickle.dumps(buffer) == before, "additions to the copy do not change the original"
    add(following, buffer)
    hold_equal(twin, buffer)
    if method == "zstd":  # trainable codecs may train at other times in a copy
        # Only the last row is stored twice: the copy begins a segment.
        assert twin.observations_nbytes <= 1.05 * buffer.observations_nbytes


@pytest.mark.parametrize("way", ["copy", *COPIES])
@pytest.mark.parametrize("stream", ["atari"], indirect=True)
def test_a_copy_of_a_buffer_in_a_folder_is_independent_and_in_memory(way: str, stream: Stream, tmp_path: Path) -> None:
    buffer = filled(stream, 20, ROWS, storage=tmp_path)
    before = pickle.dumps(buffer)
    twin = {**COPIES, "copy": copy.copy}[way](buffer)
    assert twin.is_in_memory
    hold_equal(twin, buffer)
    add(stream[-1][20:40], twin)
    hold_equal(pickle.loads(before), buffer)
    add(stream[-1][20:40], buffer)
    hold_equal(twin, buffer)


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("stream", ["atari"], indirect=True)
def test_a_copy_of_a_folder_may_have_several_segments(
    way: str, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_log, "MIN_NBYTES", 1 << 12)
    buffer = filled(stream, 20, ROWS, storage=tmp_path)
    twin = COPIES[way](buffer)
    assert len(twin.observations.stream.log.segments) > 1
    hold_equal(twin, buffer)


def test_save_replay_buffer_can_be_loaded_by_sb3(tmp_path: Path) -> None:
    model = DQN(
        "CnnPolicy", atari_env(n_envs=2), buffer_size=100, learning_starts=10_000, seed=0, device="cpu",
        replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs={"compression_method": "zstd-5"},
    ).learn(140)  # fmt: skip
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = DQN.load(tmp_path / "model", env=atari_env(n_envs=2), device="cpu")
    assert isinstance(loaded.replay_buffer, CompressedReplayBuffer)
    assert (loaded.replay_buffer.compression_method, loaded.replay_buffer.size()) == ("zstd-5", 0)
    loaded.load_replay_buffer(tmp_path / "buffer")
    hold_equal(loaded.replay_buffer, model.replay_buffer)


@pytest.mark.parametrize("truncate", [True, False])
def test_her_buffers_load_with_and_without_truncation(truncate: bool, tmp_path: Path) -> None:
    def env() -> VecEnv:
        # More bits than steps so far: the last episode is not over.
        return make_vec_env(BitFlippingEnv, 2, env_kwargs={"n_bits": 9, "max_steps": 9, "image_obs_space": True})

    model = DQN(
        "MultiInputPolicy", env(), buffer_size=200, learning_starts=10_000, seed=0, device="cpu",
        replay_buffer_class=CompressedHerReplayBuffer,
    ).learn(80)  # fmt: skip
    model.save_replay_buffer(tmp_path / "buffer")
    saved: Any = model.replay_buffer
    other = DQN("MultiInputPolicy", env(), device="cpu", buffer_size=200, replay_buffer_class=CompressedHerReplayBuffer)
    if truncate:
        with pytest.warns(UserWarning, match="truncated"):
            other.load_replay_buffer(tmp_path / "buffer")
    else:
        other.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=False)
    loaded: Any = other.replay_buffer
    assert isinstance(loaded.observations["observation"], CompressedArray)
    assert bool(loaded.dones[loaded.pos - 1].all()) is truncate
    assert (loaded._current_ep_start == loaded.pos).all() == truncate
    if not truncate:
        model.env.reset()  # type: ignore[union-attr]
        other.env.reset()  # type: ignore[union-attr]
        hold_equal(loaded, saved)


def test_rollouts_of_tensors_of_a_local_class() -> None:
    class Tagged(th.Tensor):
        """Not importable, so no pickle may refer to it."""

    buffer = CompressedRolloutBuffer(4, spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(2), device="cpu")
    zeros = np.zeros(1)
    value: Any = th.zeros(1).as_subclass(Tagged)
    for _ in range(2):
        buffer.add(np.zeros((1, 4, 84, 84), np.uint8), zeros[:, np.newaxis], zeros, zeros, value, th.zeros(1))
    assert pickle.loads(pickle.dumps(buffer)).pos == 2
