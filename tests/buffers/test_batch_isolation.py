"""A batch is private: methods that a user replaced may change its arrays, as those of SB3's buffers."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import stable_baselines3.common.buffers
from gymnasium import spaces
from numbered import COUNTER, IMAGES, add_steps
from stable_baselines3.common.buffers import ReplayBuffer
from support import assert_same_batch, same_draws

import sb3_compressed
from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.common.tree_map import tree_map


def new(codec: str = "zstd3", cls: Any = CompressedReplayBuffer, **options: Any) -> Any:
    if cls is not ReplayBuffer:
        options.update(compression_method=codec, frame_stack=4)
    buffer = cls(64, IMAGES, COUNTER, "cpu", **options)
    add_steps(buffer, range(60))
    return buffer


@pytest.mark.parametrize("where", ["instance", "class"])
@pytest.mark.parametrize("codec", ["zstd3", "delta"])
def test_replaced_methods_may_change_observations_in_place(
    codec: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = new(codec), new(cls=ReplayBuffer)
    seen: list[Any] = []

    def invert(observations: Any, env: Any = None) -> Any:
        observations[...] = 255 - observations
        seen.append(observations)
        return observations

    if where == "class":
        monkeypatch.setattr(ReplayBuffer, "_normalize_obs", staticmethod(invert))
    else:
        ours._normalize_obs = theirs._normalize_obs = invert
    batch, expected = same_draws(lambda: ours.sample(50), lambda: theirs.sample(50), seed=0)
    assert_same_batch(batch, expected)
    assert len(seen) == 4


def test_a_class_that_keeps_what_it_normalizes_does_not_share_it_with_batches() -> None:
    class Keeping(CompressedReplayBuffer):
        seen: ClassVar[list[Any]] = []

        @staticmethod
        def _normalize_obs(obs: Any, env: Any = None) -> Any:
            Keeping.seen.append(obs)
            return obs

    batch = new(cls=Keeping).sample(50)
    assert len(Keeping.seen) == 2
    for array in Keeping.seen:
        assert not np.shares_memory(array, batch.observations.numpy())
        assert not np.shares_memory(array, batch.next_observations.numpy())


@pytest.mark.parametrize("kind", ["Replay", "NStepReplay", "DictReplay"])
def test_replaced_methods_may_draw_random_numbers(kind: str) -> None:
    """As for random shifts of images: SB3's classes call them in different orders."""
    space = spaces.Box(-1, 1, (3,), np.float32)

    def shift(observations: Any, env: Any = None) -> Any:
        return tree_map(lambda part: part + np.random.rand(*part.shape).astype(np.float32), observations)  # noqa: NPY002

    buffers: list[Any] = []
    for module, name in ((sb3_compressed, "Compressed"), (stable_baselines3.common.buffers, "")):
        whole = spaces.Dict(a=space, b=space) if kind == "DictReplay" else space
        buffer = getattr(module, f"{name}{kind}Buffer")(8, whole, spaces.Discrete(4), "cpu")
        for step in range(6):
            row = np.full((1, 3), step, np.float32)
            obs = {"a": row, "b": row} if kind == "DictReplay" else row
            buffer.add(obs, dict(obs) if isinstance(obs, dict) else obs + 1, *[np.zeros(1)] * 3, [{}])
        buffer._normalize_obs = buffer._normalize_reward = shift
        buffers.append(buffer)
    batch, expected = same_draws(lambda: buffers[0].sample(20), lambda: buffers[1].sample(20), seed=0)
    assert_same_batch(batch, expected)


def test_methods_that_are_assigned_to_a_class_later_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, calls = new(), []

    def recorded(method: Any) -> Any:
        def call(self: Any, *args: Any) -> Any:
            calls.append(method.__name__)
            return method(self, *args)

        return call

    monkeypatch.setattr(CompressedReplayBuffer, "to_torch", recorded(CompressedReplayBuffer.to_torch))
    buffer.sample(8)
    assert calls == ["to_torch"] * 5
    monkeypatch.setattr(CompressedReplayBuffer, "add", recorded(CompressedReplayBuffer.add))
    frames, zeros = np.zeros((3, 1, *IMAGES.shape), np.uint8), np.zeros((3, 1))
    buffer.extend(frames, frames, zeros, zeros, zeros, timeouts=zeros)
    assert calls[5:] == ["add"] * 3
