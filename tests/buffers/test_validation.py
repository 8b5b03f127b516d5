"""Invalid input raises and leaves the buffer unchanged; later changes by the caller do not affect it."""

from __future__ import annotations

import copy
import pickle
from collections import UserDict
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch as th
from buffer_pairs import SB3_OPTIMIZED
from conftest import Stream
from gathering import damage
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from support import add_all, filled, new_buffer

from sb3_compressed import (
    CompressedDictRolloutBuffer,
    CompressedHerReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    CorruptPayload,
)
from sb3_compressed.codecs.raw import Raw

ROWS = 16


def full(stream: Stream | str, n_steps: int = ROWS + 3, cls: Any = None, **options: Any) -> Any:
    return filled(stream, n_steps, ROWS, cls, **options)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "obs of a wrong shape": ({"obs": np.zeros((4, 4, 84, 83), np.uint8)}, "obs: .*shape"),
    "obs of too few environments": ({"obs": np.zeros((3, 4, 84, 84), np.uint8)}, "obs: .*shape"),
    "next_obs of a wrong shape": ({"next_obs": np.zeros((4, 84, 84, 4), np.uint8)}, "next_obs: .*shape"),
    "an image scaled to 0..1": ({"next_obs": np.full((4, 4, 84, 84), 0.5)}, "0.5 .*norm_obs=False"),
    "a value out of range": ({"obs": np.full((4, 4, 84, 84), 256)}, "256"),
    "no numbers": ({"obs": np.full((4, 4, 84, 84), "a")}, "dtype <U1"),
    "nothing": ({"next_obs": None}, "dtype object"),
    "too few actions": ({"action": np.zeros(3, int)}, "action .*got 3"),
    "too many rewards": ({"reward": np.zeros(5)}, r"reward .*got \(5,\)"),
    "too few dones": ({"done": np.zeros(2)}, r"done .*got \(2,\)"),
    "rewards in a column": ({"reward": np.zeros((4, 1))}, r"reward .*got \(4, 1\)"),
    "one done for all": ({"done": np.zeros(1)}, r"done .*got \(1,\)"),
    "timeouts that are no flags": ({"infos": [{"TimeLimit.truncated": [0, 1]}] * 4}, "TimeLimit"),
    "no actions": ({"action": ["left"] * 4}, "action"),
    "too few infos": ({"infos": [{}] * 2}, "infos"),
    "no infos": ({"infos": [None] * 4}, "infos"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("kwargs", [{}, SB3_OPTIMIZED])
def test_invalid_input_leaves_the_buffer_unchanged(case: str, kwargs: dict[str, Any], stream: Stream) -> None:
    changes, message = BAD[case]
    if "infos" in changes and kwargs:
        changes, message = BAD["no actions"]  # SB3 does not read infos without handle_timeout_termination
    buffer = full(stream, **kwargs)
    before = pickle.dumps(buffer)
    with pytest.raises((ValueError, TypeError), match=message):
        replace(stream[-1][50], **changes).add_to(buffer)
    assert pickle.dumps(buffer) == before
    stream[-1][ROWS + 3].add_to(buffer)  # and it still works
    np.testing.assert_array_equal(buffer.observations[3], stream[-1][ROWS + 3].obs)


@pytest.mark.parametrize("infos", [None, [], [{}], [UserDict({"TimeLimit.truncated": env % 2}) for env in range(4)]])
def test_infos_may_be_any_mappings_and_are_validated_where_they_are_read(infos: Any, stream: Stream) -> None:
    is_read = infos is not None and len(infos) == 4
    ours, theirs = (
        new_buffer(cls, stream, ROWS, handle_timeout_termination=is_read)
        for cls in (CompressedReplayBuffer, ReplayBuffer)
    )
    add_all([replace(stream[-1][0], infos=infos)], ours, theirs)
    np.testing.assert_array_equal(ours.observations[0], theirs.observations[0])
    assert ours.timeouts[0].tolist() == theirs.timeouts[0].tolist() == [0, is_read, 0, is_read]


def test_arguments_of_vector_environments_raise_and_name_what_to_pass() -> None:
    space, buttons = spaces.Box(0, 255, (4,), np.uint8), spaces.Discrete(3)
    obs, numbers, flags = np.zeros((4, 4), np.uint8), np.zeros(4), np.zeros(4, bool)
    infos: Any = {"final_obs": np.array([np.zeros(10_000), None, None, None], dtype=object)}
    buffer = CompressedReplayBuffer(8, space, buttons, "cpu", 4)
    with pytest.raises(ValueError, match=r"keys final_obs; .*'TimeLimit\.truncated': ") as caught:
        buffer.add(obs, obs, numbers, numbers, flags, infos)
    assert len(str(caught.value)) < 400, "without the observations"
    with pytest.raises(ValueError, match=r"infos .*\(n_envs=4\), got 1$"):
        buffer.add(obs, obs, numbers, numbers, flags, [infos])
    single = CompressedReplayBuffer(8, space, buttons, "cpu", handle_timeout_termination=False)
    with pytest.raises(ValueError, match="pass n_envs=4 to the buffer"):
        single.add(obs, obs, numbers, numbers, flags, infos)
    batched = CompressedReplayBuffer(
        8, spaces.Box(0, 255, (4, 4), np.uint8), spaces.MultiDiscrete([3] * 4), "cpu", 4,
        handle_timeout_termination=False,
    )  # fmt: skip
    with pytest.raises(ValueError, match="single_observation_space and single_action_space"):
        batched.add(np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), numbers, numbers, flags, infos)
    with pytest.raises(ValueError, match=r"action must have 16 elements, .* got 3$"):  # no multiple of an action
        batched.add(np.zeros((4, 4, 4)), np.zeros((4, 4, 4)), np.zeros(3), numbers, flags, infos)
    assert buffer.pos == single.pos == batched.pos == 0


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("is_stored_twice", [True, False])
def test_leading_axes_of_length_one_are_dropped_as_in_sb3(n_envs: int, is_stored_twice: bool) -> None:
    space, actions = spaces.Box(-1, 1, (8,), np.float32), spaces.Discrete(2)
    classes = (CompressedReplayBuffer, ReplayBuffer)
    options: dict[str, Any] = {"n_envs": n_envs, "handle_timeout_termination": False}
    if not is_stored_twice:
        options["optimize_memory_usage"] = True
    buffers: list[Any] = [cls(4 * n_envs, space, actions, "cpu", **options) for cls in classes]
    rng = np.random.default_rng(0)
    for _ in range(6):
        obs, next_obs = rng.random((2, 1, n_envs, 8), np.float32)
        for buffer in buffers:
            buffer.add(obs, next_obs[None], np.zeros(n_envs), np.zeros(n_envs), np.zeros(n_envs), [{}] * n_envs)
    np.testing.assert_array_equal(buffers[0].observations, buffers[1].observations)
    if is_stored_twice:
        np.testing.assert_array_equal(buffers[0].next_observations, buffers[1].next_observations)
    with pytest.raises(ValueError, match="cannot write values of shape"):
        buffers[0].add(obs.repeat(2, 0), next_obs, np.zeros(n_envs), np.zeros(n_envs), np.zeros(n_envs), [{}] * n_envs)
    rollout = CompressedRolloutBuffer(2, space, actions, "cpu", n_envs=n_envs)
    ones = th.ones(n_envs)
    rollout.add(obs, np.zeros(n_envs), np.zeros(n_envs), np.zeros(n_envs), ones, ones)
    np.testing.assert_array_equal(rollout.observations[0], obs[0])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("screen", np.zeros((2, 84, 83, 1), np.uint8), r"obs\['screen'\]: .*shape"),
        ("ram", np.full((2, 128), 300), r"obs\['ram'\]: .*300"),
        ("ram", np.zeros((2, 127), np.uint8), r"obs\['ram'\]: .*\(2, 127\)"),
        ("lives", np.zeros(3, int), r"size 3|obs\['lives'\]"),
        ("ram", None, r"obs\['ram'\]"),
    ],
)
@pytest.mark.parametrize("stream", ["console"], indirect=True)
def test_invalid_input_leaves_a_dict_buffer_unchanged(key: str, value: Any, message: str, stream: Stream) -> None:
    buffer = full(stream)
    before = pickle.dumps(buffer)
    good = stream[-1][50]
    for name in ("obs", "next_obs"):
        part = getattr(good, name)
        bad: list[tuple[Any, str]] = [
            ({**part, key: value}, message),
            ({other: part[other] for other in part if other != key}, f"{name} .*{key}.*missing"),
            (part[key], "must be a dict"),
        ]
        for wrong, reason in bad:
            with pytest.raises((ValueError, TypeError), match=reason):
                replace(good, **{name: wrong}).add_to(buffer)
    for changes in ({"action": np.zeros(3)}, {"reward": ["a", "b"]}, {"infos": [None, None]}):
        with pytest.raises((ValueError, TypeError), match=next(iter(changes))):
            replace(good, **changes).add_to(buffer)
    assert pickle.dumps(buffer) == before


@pytest.mark.parametrize("stream", ["bits"], indirect=True)
def test_invalid_input_does_not_overwrite_an_episode_of_a_her_buffer(stream: Stream) -> None:
    buffer = full(stream, cls=CompressedHerReplayBuffer, env=None)
    before = pickle.dumps(buffer)
    with pytest.raises(ValueError, match="reward"):
        replace(stream[-1][50], reward=np.zeros(3)).add_to(buffer)
    assert pickle.dumps(buffer) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"obs": np.zeros((4, 4, 84, 83), np.uint8)}, "obs: .*shape"),
        ({"action": np.zeros(3)}, "action .*got 3"),
        ({"reward": np.zeros(3)}, "reward"),
        ({"reward": np.zeros((4, 1))}, r"reward .*got \(4, 1\)"),
        ({"value": np.zeros(4)}, "value .*got array"),
        ({"value": th.zeros(3)}, "value"),
        ({"value": th.zeros(4, requires_grad=True)}, "value .*gradient"),
        ({"log_prob": th.zeros(5)}, "log_prob"),
    ],
)
def test_invalid_input_leaves_a_rollout_buffer_unchanged(changes: dict[str, Any], message: str, stream: Stream) -> None:
    space, action_space, n_envs, transitions = stream
    buffer = CompressedRolloutBuffer(8, space, action_space, "cpu", n_envs=n_envs)
    transitions[0].add_to_rollout(buffer, np.ones(n_envs), np.random.default_rng(0))
    before = pickle.dumps(buffer)
    step = transitions[1]
    good = {"obs": step.obs, "action": step.action, "reward": step.reward, "episode_start": np.zeros(n_envs)}
    good |= {"value": th.zeros(n_envs), "log_prob": th.zeros(n_envs)}
    with pytest.raises(ValueError, match=message):
        buffer.add(**{**good, **changes})
    assert pickle.dumps(buffer) == before
    buffer.add(**good)


def test_changing_added_or_sampled_arrays_does_not_change_the_buffer(stream: Stream) -> None:
    buffer = full(stream, 0)
    transition = copy.deepcopy(stream[-1][7])
    expected = transition.obs.copy(), transition.next_obs.copy()
    buffer.add(*vars(transition).values())
    transition.obs[:], transition.next_obs[:] = 7, 9
    batch = buffer.sample(8)
    batch.observations.fill_(3)
    batch.next_observations.fill_(3)
    np.testing.assert_array_equal(buffer.observations[0], expected[0])
    np.testing.assert_array_equal(buffer.next_observations[0], expected[1])


@pytest.mark.parametrize("name", ["observations", "next_observations"])
def test_sampling_a_corrupt_payload_raises_and_names_its_slot(name: str, stream: Stream) -> None:
    buffer = full(stream)
    damage(getattr(buffer, name), 5, 2)
    with pytest.raises(CorruptPayload, match=r"\(5, 2\)"):
        buffer.sample(64 * 100)


@dataclass(frozen=True)
class Moody(Raw):
    """A codec that fails at frames that begin with a certain value."""

    name: ClassVar[str] = "moody"

    def encode(self, frames: NDArray[Any]) -> list[bytes]:
        if (frames.reshape(len(frames), -1)[:, 0] == 13).any():
            raise OSError("no encoding today")
        return super().encode(frames)


@pytest.mark.parametrize("n_steps", [0, 5, ROWS + 3])
def test_codec_error_during_add_leaves_the_buffer_unchanged(n_steps: int, stream: Stream) -> None:
    buffer = full(stream, n_steps, compression_method=Moody())
    expected = [np.asarray(array) for array in (buffer.observations, buffer.next_observations)]
    bad = replace(stream[-1][50], next_obs=np.full((4, 4, 84, 84), 13, np.uint8))
    with pytest.raises(OSError, match="today"):
        bad.add_to(buffer)
    assert buffer.pos == n_steps % ROWS
    for array, before in zip((buffer.observations, buffer.next_observations), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(array), before)
    stream[-1][n_steps].add_to(buffer)
    np.testing.assert_array_equal(buffer.next_observations[n_steps % ROWS], stream[-1][n_steps].next_obs)


@dataclass(frozen=True)
class Careless(Raw):
    """A codec that returns invalid payloads."""

    name: ClassVar[str] = "careless"
    how: str = "bytearray"

    def encode(self, frames: NDArray[Any]) -> list[bytes]:
        payloads = super().encode(frames)
        return payloads[1:] if self.how == "too few" else [bytearray(p) for p in payloads]  # type: ignore[misc]


@pytest.mark.parametrize(("how", "got"), [("bytearray", "8 of bytearray"), ("too few", "7 of bytes")])
def test_codec_that_returns_invalid_payloads_raises(how: str, got: str, stream: Stream) -> None:
    buffer = full(stream, 0, compression_method=Careless(how), frame_stack=None)
    with pytest.raises(TypeError, match=got):
        stream[-1][0].add_to(buffer)


def test_invalid_input_leaves_a_dict_rollout_buffer_unchanged() -> None:
    parts: dict[str, spaces.Space[Any]] = {
        "image": spaces.Box(0, 255, (4, 36, 36), np.uint8), "numbers": spaces.Box(-1, 1, (3,), np.float32)
    }  # fmt: skip
    rollout = CompressedDictRolloutBuffer(40, spaces.Dict(parts), spaces.Discrete(2), "cpu", n_envs=2)
    observation = {"image": np.full((2, 4, 36, 36), 7, np.uint8), "numbers": np.full((2, 3), 7, np.float32)}
    given, rest = dict(observation), (*[np.zeros(2, np.float32)] * 3, th.zeros(2, 1), th.zeros(2))
    for _ in range(3):
        rollout.add(given, *rest)
        assert all(given[key] is observation[key] for key in observation)
    for wrong in (
        {**observation, "image": np.full((2, 4, 36, 36), 0.5)},
        {**observation, "numbers": np.zeros((2, 4), np.float32)},
        {"image": observation["image"]},
    ):
        with pytest.raises((TypeError, ValueError)):
            rollout.add(wrong, *rest)
    assert rollout.pos == 3
    for key, array in rollout.observations.items():
        np.testing.assert_array_equal(array[2], observation[key])


@pytest.mark.parametrize("truncated", [np.array([True]), [True], np.array([[1]]), np.True_])
def test_time_limits_of_one_environment_may_be_arrays_of_one_element(truncated: Any) -> None:
    """As those of environments whose step returns ``truncated`` as an array."""
    space = spaces.Box(0, 1, (2,), np.float32)
    buffers = [cls(3, space, spaces.Discrete(2), "cpu") for cls in (CompressedReplayBuffer, ReplayBuffer)]
    for buffer in buffers:
        row = np.zeros((1, 2), np.float32)
        buffer.add(row, row, np.zeros(1), np.zeros(1), np.ones(1), [{"TimeLimit.truncated": truncated}])
    assert buffers[0].timeouts[:, 0].tolist() == buffers[1].timeouts[:, 0].tolist() == [1, 0, 0]
