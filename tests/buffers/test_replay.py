"""Replay buffers return the same batches as SB3's, on real data, over several laps of the ring."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from buffer_pairs import REPLAY_PAIRS, SB3_OPTIMIZED
from conftest import Stream
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from support import ImageEnv, add_all, assert_same_batch, n_episode_ends, new_buffer, same_draws

import sb3_compressed
from sb3_compressed import (
    CompressedArray,
    CompressedDictReplayBuffer,
    CompressedReplayBuffer,
    available_codecs,
)
from sb3_compressed.arrays.memory_log import MIN_NBYTES
from sb3_compressed.buffers.buffer_from_store import LOADABLE_CLASSES, loadable_class

ROWS = 70  # an odd number of laps fits into the recorded steps


def make_pair(kind: str, stream: Stream, theirs: dict[str, Any] | None = None, **options: Any) -> tuple[Any, Any]:
    """Return our buffer and SB3's for a stream; ``theirs`` are SB3's own arguments, ``options`` ours."""
    compressed, parent = REPLAY_PAIRS[kind]
    assert issubclass(compressed, parent)
    theirs = theirs or {}
    return new_buffer(compressed, stream, ROWS, **theirs, **options), new_buffer(parent, stream, ROWS, **theirs)


def assert_equivalent(ours: Any, theirs: Any, stream: Stream, env: VecNormalize | None = None) -> None:
    """Fill both with the stream and compare batches all the way: partly filled, just full, laps later."""
    transitions = stream[-1]
    assert len(transitions) > 3 * ROWS
    assert n_episode_ends(transitions) >= 3
    for step, transition in enumerate(transitions):
        add_all([transition], ours, theirs)
        assert (ours.pos, ours.full, ours.size()) == (theirs.pos, theirs.full, theirs.size())
        if step in (20, ROWS - 2, ROWS - 1, ROWS) or step % 50 == 49 or step == len(transitions) - 1:
            for batch_size in (2, 64):
                samplers = [partial(buffer.sample, batch_size, env) for buffer in (ours, theirs)]
                assert_same_batch(*same_draws(*samplers, seed=step))
    found: Any
    for name in ("observations", "next_observations"):
        found, expected = getattr(ours, name, None), getattr(theirs, name, None)
        if expected is None:
            assert found is None
            continue
        for key in expected if isinstance(expected, dict) else [...]:
            np.testing.assert_array_equal(np.asarray(found[key]), expected[key])


@pytest.mark.parametrize("method", ["auto", *available_codecs()])
@pytest.mark.parametrize("stream", ["atari"], indirect=True)
def test_batches_equal_sb3s_for_every_codec(method: str, stream: Stream) -> None:
    ours, theirs = make_pair("replay", stream, compression_method=method)
    assert isinstance(ours.observations, CompressedArray)
    assert_equivalent(ours, theirs, stream)


@pytest.mark.parametrize(
    ("kind", "stream", "theirs"),
    [
        ("replay", "atari-single", {}),
        ("replay", "atari-channel-last", {}),
        ("replay", "atari", {"handle_timeout_termination": False}),
        ("replay", "atari", SB3_OPTIMIZED),
        ("replay", "pendulum", {}),
        ("replay", "discrete", {}),
        ("replay", "multi-discrete", {}),
        ("replay", "multi-binary", {}),
        ("n-step", "atari", {"n_steps": 3, "gamma": 0.9}),
        ("n-step", "atari-single", {"n_steps": 5, "gamma": 0.99}),
        ("dict", "console", {}),
        ("dict", "bits", {"handle_timeout_termination": False}),
        ("her", "bits", {}),
        ("her", "bits", {"n_sampled_goal": 2, "goal_selection_strategy": "final", "copy_info_dict": True}),
    ],
    indirect=["stream"],
)
@pytest.mark.parametrize("method", ["auto", "zstd-5"])
def test_batches_equal_sb3s(kind: str, method: str, stream: Stream, theirs: dict[str, Any]) -> None:
    assert_equivalent(*make_pair(kind, stream, theirs, compression_method=method), stream)


@pytest.mark.filterwarnings("ignore:frames do not repeat")
@pytest.mark.parametrize("frame_stack", [None, 2])
def test_frame_stack_does_not_change_batches(frame_stack: int | None, stream: Stream) -> None:
    assert_equivalent(*make_pair("replay", stream, frame_stack=frame_stack), stream)


@pytest.mark.parametrize(
    ("kind", "stream"),
    [("replay", "atari"), ("n-step", "atari"), ("dict", "console"), ("her", "bits")],
    indirect=["stream"],
)
def test_optimize_memory_usage_works_with_timeouts_and_for_every_class(kind: str, stream: Stream) -> None:
    ours, theirs = make_pair(kind, stream, optimize_memory_usage=True, handle_timeout_termination=True)
    assert_equivalent(ours, theirs, stream)


def test_optimize_memory_usage_may_be_passed_by_position(stream: Stream) -> None:
    space, action_space, n_envs, _ = stream
    buffer = CompressedReplayBuffer(ROWS * n_envs, space, action_space, "cpu", n_envs, True, True)
    assert_equivalent(buffer, new_buffer(REPLAY_PAIRS["replay"][1], stream, ROWS), stream)


@pytest.mark.parametrize("stream", ["pendulum", "atari"], indirect=True)
def test_vec_normalize_works_as_with_sb3(stream: Stream) -> None:
    space, action_space, n_envs, _ = stream
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs), norm_obs_keys=None)
    if space != env.observation_space:  # statistics for images
        env = VecNormalize(DummyVecEnv([lambda: ImageEnv(space, action_space)] * n_envs))
    env.obs_rms.update(np.concatenate([transition.obs for transition in stream[-1][:20]]))
    assert_equivalent(*make_pair("replay", stream, compression_method="zstd"), stream, env)


def test_memory_is_below_three_percent_of_sb3s(stream: Stream) -> None:
    ours, theirs = make_pair("replay", stream, num_threads=1)  # trains its codec at once
    add_all(stream[-1], ours)
    raw = theirs.observations.nbytes + theirs.next_observations.nbytes
    assert ours.raw_observations_nbytes == raw
    assert ours.observations_nbytes < 0.03 * raw + MIN_NBYTES  # of a segment with slots that were overwritten


def test_batches_have_the_keys_in_the_order_of_the_space() -> None:
    image, vector = spaces.Box(0, 255, (4, 36, 36), np.uint8), spaces.Box(-1, 1, (3,), np.float32)
    space, actions = spaces.Dict([("z", image), ("a", vector), ("m", image)]), spaces.Discrete(2)
    obs = {key: np.stack([part.sample()]) for key, part in space.spaces.items()}
    for cls in (CompressedDictReplayBuffer, DictReplayBuffer):
        buffer = cls(10, space, actions, "cpu")
        buffer.add(obs, obs, np.array([1]), np.zeros(1), np.zeros(1), [{}])
        batch = buffer.sample(2)
        assert [*batch.observations] == [*batch.next_observations] == ["z", "a", "m"]


def test_the_folders_of_all_classes_can_be_loaded() -> None:
    names = {name for name in sb3_compressed.buffers.__all__ if name.endswith("ReplayBuffer")} - {"MixedReplayBuffer"}
    assert {*LOADABLE_CLASSES} == names
    assert all(loadable_class(name) is getattr(sb3_compressed, name) for name in names)
