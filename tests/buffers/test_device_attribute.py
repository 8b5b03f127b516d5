"""``buffer.device`` may be assigned whatever PyTorch accepts, as to SB3's buffers, which pass it on."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from buffer_pairs import REPLAY_PAIRS, ROLLOUT_PAIRS
from gymnasium import spaces
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl
from support import assert_same_batch, same_draws

from sb3_compressed import CompressedReplayBuffer, MixedReplayBuffer, load_checkpoint, save_checkpoint
from sb3_compressed.common.tree_map import tree_map

IMAGE = spaces.Box(0, 255, (4, 36, 36), np.uint8)
ACTIONS = spaces.Discrete(3)
STATES = RNNStates((th.zeros(1, 1, 4),) * 2, (th.zeros(1, 1, 4),) * 2)
DEVICES = ["cpu", "cpu:0", th.device("cpu"), None]


class Goals:
    """Computes rewards of goals."""

    def env_method(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return no rewards."""
        return [np.zeros(len(args[0]))]


def filled(cls: Any, **options: Any) -> Any:
    space: Any = IMAGE
    if "Her" in cls.__name__:
        space = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), IMAGE))
        options["env"] = Goals()
    elif "Dict" in cls.__name__:
        space = spaces.Dict(cam=IMAGE, vec=spaces.Box(-1, 1, (3,), np.float32))
    if "Recurrent" in cls.__name__:
        options["hidden_state_shape"] = (20, 1, 1, 4)
    buffer = cls(20, space, ACTIONS, device="cpu", **options)
    rng = np.random.default_rng(0)
    further = {"lstm_states": STATES} if "Recurrent" in cls.__name__ else {}
    for step in range(20):
        obs, next_obs = (
            tree_map(
                lambda part: rng.integers(0, 2, (1, *part.shape)).astype(part.dtype),
                dict(space) if isinstance(space, spaces.Dict) else space,
            )
            for _ in range(2)
        )
        if hasattr(buffer, "dones"):
            buffer.add(obs, next_obs, np.zeros((1, 1)), np.zeros(1), np.full(1, step % 7 == 6), [{}])
        else:
            buffer.add(obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1), th.zeros(1), th.zeros(1), **further)
    return buffer


def batch(buffer: Any) -> Any:
    return buffer.sample(4) if hasattr(buffer, "dones") else next(buffer.get(4))


@pytest.mark.parametrize("device", DEVICES, ids=repr)
@pytest.mark.parametrize(("ours", "theirs"), [*REPLAY_PAIRS.values(), *ROLLOUT_PAIRS.values()])
def test_batches_are_those_of_sb3(ours: Any, theirs: Any, device: Any) -> None:
    buffers = [filled(cls) for cls in (ours, theirs)]
    for buffer in buffers:
        buffer.device = device
        assert buffer.device == device
    assert_same_batch(*same_draws(lambda: batch(buffers[0]), lambda: batch(buffers[1]), seed=0))
    assert "Compressed" in repr(buffers[0])


@pytest.mark.parametrize("device", DEVICES, ids=repr)
def test_other_calls(device: Any, tmp_path: Path) -> None:
    buffer = filled(CompressedReplayBuffer, sampler="prioritized")
    buffer.device = device
    assert buffer.sample(4).weights.device.type == "cpu"
    assert buffer.sample_sequences(2, 3).rewards.shape == (2, 3)
    save_checkpoint(buffer, tmp_path)
    assert load_checkpoint(tmp_path, device="cpu").size() == 20
    file = io.BytesIO()
    save_to_pkl(file, buffer)
    file.seek(0)
    loaded: Any = load_from_pkl(file)
    assert loaded.device == device
    assert len(loaded.sample(4).rewards) == 4
    mixed = MixedReplayBuffer.from_buffers([buffer, filled(CompressedReplayBuffer)], [0.5, 0.5])
    assert len(mixed.sample(4).rewards) == 4
    mixed.device = device
    assert len(mixed.sample(4).rewards) == 4


def test_a_device_that_pytorch_does_not_know_raises_its_error() -> None:
    buffer = filled(CompressedReplayBuffer)
    buffer.device = "gpu"
    with pytest.raises(RuntimeError, match="gpu"):
        buffer.sample(4)
