"""Tests of ``repr(buffer)``: what it contains, and what it takes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from sb3_compressed import (
    CompressedDictReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    MixedReplayBuffer,
)

IMAGES = spaces.Box(0, 255, (4, 36, 36), np.uint8)
ACTIONS = spaces.Discrete(3)


def test_replay_buffers_show_size_frames_and_codec() -> None:
    buffer = CompressedReplayBuffer(2_000, IMAGES, ACTIONS, "cpu", n_envs=2, compression_method="zstd3")
    assert "0 of 2,000 transitions" in repr(buffer)
    stack = np.zeros((2, 4, 36, 36), np.uint8)
    for step in range(100):
        following = np.concatenate([stack[:, 1:], np.full((2, 1, 36, 36), step, np.uint8)], axis=1)
        buffer.add(stack, following, np.zeros((2, 1)), np.zeros(2), np.zeros(2, bool), [{}] * 2)
        stack = following
    shown = repr(buffer)
    assert shown.startswith("<CompressedReplayBuffer: 200 of 2,000 transitions")
    assert re.search(r", [0-9.]+ MB, [0-9,]+ B a transition; ", shown)
    assert "4 frames, Zstd(compresslevel=3)" in shown, "the stack was detected"


@pytest.mark.parametrize("n_steps", [0, 3, 8])
def test_rollout_buffers_have_one_at_any_time(n_steps: int) -> None:
    buffer = CompressedRolloutBuffer(8, IMAGES, ACTIONS, "cpu", n_envs=2)
    for step in range(n_steps):
        observations = np.full((2, 4, 36, 36), step, np.uint8)
        buffer.add(observations, np.zeros((2, 1)), np.zeros(2), np.zeros(2), th.zeros(2), th.zeros(2))
    assert f"{2 * n_steps} of 16 transitions" in repr(buffer)
    if buffer.full:
        for _ in buffer.get(4):
            assert "16 of 16 transitions" in repr(buffer)


def test_each_key_of_a_dict_is_shown() -> None:
    parts: dict[str, Any] = {"camera": IMAGES, "depth": IMAGES, "speed": spaces.Box(-1, 1, (3,))}
    shown = repr(CompressedDictReplayBuffer(100, spaces.Dict(parts), ACTIONS, "cpu"))
    assert "camera: " in shown
    assert "depth: " in shown
    assert "speed: uncompressed" in shown


@pytest.mark.parametrize(("codec", "shown"), [("auto", "auto"), ("delta", r"Delta\(compresslevel=3, coder='zstd'\)")])
def test_a_trained_codec_has_the_name_that_the_user_chose(codec: str, shown: str) -> None:
    buffer = CompressedReplayBuffer(100, IMAGES, ACTIONS, "cpu", compression_method=codec)
    image = np.arange(4 * 36 * 36, dtype=np.uint8).reshape(1, 4, 36, 36)
    for step in range(100):
        buffer.add(image + step, image + step, np.zeros((1, 1)), np.zeros(1), np.zeros(1, bool), [{}])
    assert re.search(rf"1 frame, {shown}>$", repr(buffer))


def test_a_mixed_buffer_shows_its_parts_and_their_weights() -> None:
    online, other = (CompressedReplayBuffer(n, IMAGES, ACTIONS, "cpu") for n in (100, 300))
    shown = repr(MixedReplayBuffer.from_buffers([online, other], weights=[3, 1]))
    assert shown.startswith("<MixedReplayBuffer: 0.75, 0.25 of each batch from <CompressedReplayBuffer: 0 of 100")
    assert "<CompressedReplayBuffer: 0 of 300 transitions" in shown
