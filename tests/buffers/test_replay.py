"""Replay buffers return the same batches as SB3's, on real data, over several laps of the ring."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from conftest import Stream
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from support import ImageEnv, assert_same_batch, n_episode_ends, same_draws

from sb3_compressed import (
    CompressedArray,
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    available_codecs,
)

ROWS = 70  # an odd number of laps fits into the recorded steps
PAIRS: dict[str, tuple[type[Any], type[Any]]] = {
    "replay": (CompressedReplayBuffer, ReplayBuffer),
    "n-step": (CompressedNStepReplayBuffer, NStepReplayBuffer),
    "dict": (CompressedDictReplayBuffer, DictReplayBuffer),
    "her": (CompressedHerReplayBuffer, HerReplayBuffer),
}


def make(buffer_class: type[Any], stream: Stream, **kwargs: Any) -> Any:
    """Return a buffer of ``ROWS`` rows for the environment of a stream."""
    space, action_space, n_envs, _ = stream
    if issubclass(buffer_class, HerReplayBuffer):
        kwargs["env"] = make_vec_env(BitFlippingEnv, n_envs, env_kwargs={"n_bits": 4, "image_obs_space": True})
        kwargs["env"].reset()  # it computes rewards from a state
    return buffer_class(ROWS * n_envs, space, action_space, device="cpu", n_envs=n_envs, **kwargs)


def make_pair(kind: str, stream: Stream, theirs: dict[str, Any] | None = None, **options: Any) -> tuple[Any, Any]:
    """Return our buffer and SB3's for a stream; ``theirs`` are SB3's own arguments, ``options`` ours."""
    compressed, parent = PAIRS[kind]
    assert issubclass(compressed, parent)
    theirs = theirs or {}
    return make(compressed, stream, **theirs, **options), make(parent, stream, **theirs)


def assert_equivalent(ours: Any, theirs: Any, stream: Stream, env: VecNormalize | None = None) -> None:
    """Fill both with the stream and compare batches all the way: partly filled, just full, laps later."""
    transitions = stream[-1]
    assert len(transitions) > 3 * ROWS
    assert n_episode_ends(transitions) >= 3
    for step, transition in enumerate(transitions):
        transition.add_to(ours)
        transition.add_to(theirs)
        assert (ours.pos, ours.full, ours.size()) == (theirs.pos, theirs.full, theirs.size())
        if step in (20, ROWS - 2, ROWS - 1, ROWS) or step % 50 == 49 or step == len(transitions) - 1:
            for batch_size in (2, 64):
                samplers = [partial(buffer.sample, batch_size, env) for buffer in (ours, theirs)]
                assert_same_batch(*same_draws(*samplers, seed=step))
    for name in ("observations", "next_observations"):
        assert_same_arrays(getattr(ours, name, None), getattr(theirs, name, None))


def assert_same_arrays(ours: Any, theirs: Any) -> None:
    """Assert that all observations of two buffers are equal."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            np.testing.assert_array_equal(np.asarray(ours[key]), theirs[key])
    elif theirs is None:
        assert ours is None
    else:
        np.testing.assert_array_equal(np.asarray(ours), theirs)


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
        ("replay", "atari", {"handle_timeout_termination": False, "optimize_memory_usage": True}),
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


@pytest.mark.parametrize("frame_stack", [4, None, 2])
def test_frame_stack_does_not_change_batches(frame_stack: int | None, stream: Stream) -> None:
    assert_equivalent(*make_pair("replay", stream, frame_stack=frame_stack), stream)


@pytest.mark.parametrize(
    ("kind", "stream"),
    [("replay", "atari"), ("n-step", "atari"), ("dict", "console"), ("her", "bits")],
    indirect=["stream"],
)
def test_optimize_memory_usage_works_with_timeouts_and_for_every_class(kind: str, stream: Stream) -> None:
    compressed, parent = PAIRS[kind]
    ours = make(compressed, stream, optimize_memory_usage=True, handle_timeout_termination=True)
    assert_equivalent(ours, make(parent, stream), stream)


def test_optimize_memory_usage_may_be_passed_by_position(stream: Stream) -> None:
    space, action_space, n_envs, _ = stream
    buffer = CompressedReplayBuffer(ROWS * n_envs, space, action_space, "cpu", n_envs, True, True)
    assert_equivalent(buffer, ReplayBuffer(ROWS * n_envs, space, action_space, "cpu", n_envs), stream)


@pytest.mark.parametrize("stream", ["pendulum", "atari"], indirect=True)
def test_vec_normalize_works_as_with_sb3(stream: Stream) -> None:
    space, action_space, n_envs, _ = stream
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs), norm_obs_keys=None)
    if space != env.observation_space:  # statistics for images
        env = VecNormalize(DummyVecEnv([lambda: ImageEnv(space, action_space)] * n_envs))
    env.obs_rms.update(np.concatenate([transition.obs for transition in stream[-1][:20]]))
    assert_equivalent(*make_pair("replay", stream, compression_method="zstd"), stream, env)


def test_next_observations_share_all_their_payloads(stream: Stream) -> None:
    ours, _ = make_pair("replay", stream, compression_method="zstd")
    seen: dict[int, bytes] = {}
    n_checked = 0
    for step, transition in enumerate(stream[-1]):
        transition.add_to(ours)
        payloads = {
            id(payload): payload
            for array in (ours.observations, ours.next_observations)
            for slot in array.slots[step % ROWS]
            for payload in (slot if isinstance(slot, tuple) else (slot,))
        }
        added = len(payloads.keys() - seen.keys())
        seen |= payloads  # references prevent that an id is used twice
        after_the_start = step > 3 and not stream[-1][step - 1].done.any()
        if after_the_start:
            changed = (transition.obs != transition.next_obs).any(axis=(1, 2, 3))  # the others are known altogether
            assert added == changed.sum(), f"step {step}"
            n_checked += 1
    assert n_checked > 3 * ROWS


def test_memory_is_below_three_percent_of_sb3s(stream: Stream) -> None:
    ours, theirs = make_pair("replay", stream, num_threads=1)  # trains its codec at once
    for transition in stream[-1]:
        transition.add_to(ours)
    raw = theirs.observations.nbytes + theirs.next_observations.nbytes
    assert ours.raw_observations_nbytes == raw
    assert ours.observations_nbytes < 0.03 * raw
