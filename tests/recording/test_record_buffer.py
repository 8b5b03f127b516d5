"""Recordings return every recorded step bit for bit, through memory, folders and datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Stream
from episodes import assert_contains, assert_same_episode, assert_same_episodes
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env
from support import record

from sb3_compressed import StorageError, load_checkpoint, save_checkpoint
from sb3_compressed.datasets import trajectories
from sb3_compressed.recording import FramelessRecordBuffer, RecordBuffer
from sb3_compressed.storage import verify

N_STEPS = 120


def features_of(stream: Stream, size: int = 5) -> NDArray[np.float32]:
    return np.random.default_rng(3).standard_normal((len(stream[-1]), stream[2], size)).astype(np.float32)


def record_stream(recording: RecordBuffer, stream: Stream, first: int, last: int, features: Any = None) -> None:
    """Record steps as a ``VecEnv`` returned them: at the end of an episode, with observations of the next one."""
    transitions = stream[-1]
    for step in range(first, last):
        now = transitions[step]
        recording.record(
            now.obs, now.action, transitions[step + 1].obs, now.reward, now.done, now.infos,
            features=None if features is None else features[step],
        )  # fmt: skip


def recorded(stream: Stream, features: Any = None, cls: type[RecordBuffer] = RecordBuffer, **options: Any) -> Any:
    space = None if features is None else features.shape[-1]
    recording = cls(*stream[:2], n_envs=stream[2], feature_space=space, **options)
    record_stream(recording, stream, 0, N_STEPS, features)
    recording.finish()
    return recording


@pytest.mark.parametrize(
    ("stream", "with_features"),
    [
        *((stream, False) for stream in ("atari", "console", "pendulum", "discrete", "bits", "multi-discrete")),
        *((stream, True) for stream in ("atari", "console", "cart")),
    ],
    indirect=["stream"],
)
def test_a_growing_recording_returns_every_step_bit_for_bit(
    stream: Stream, with_features: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sb3_compressed.recording.record_buffer.INITIAL_STEPS", 7)
    features = features_of(stream) if with_features else None
    recording = recorded(stream, features)
    assert len(recording) == N_STEPS * stream[2]
    assert recording.buffer.buffer_size == 7 * 2**5
    assert_contains(recording.buffer, stream[-1][:N_STEPS], features)


@pytest.mark.parametrize("with_features", [False, True])
@pytest.mark.parametrize("stream", ["atari", "console", "cart"], indirect=True)
def test_a_recording_with_a_size_keeps_the_newest_steps(stream: Stream, with_features: bool) -> None:
    features = features_of(stream) if with_features else None
    recording = recorded(stream, features, buffer_size=50 * stream[2])
    kept = slice(N_STEPS - 50, N_STEPS)
    assert len(recording) == 50 * stream[2]
    kept_features = features[kept] if features is not None else None
    assert_contains(recording.buffer, stream[-1][kept], kept_features, has_begin=False)


def test_time_limits_are_truncations_and_other_ends_terminations() -> None:
    limits = {4: True, 500: False}  # CartPole falls after at least eight steps
    for limit, is_truncated in limits.items():
        env = make_vec_env("CartPole-v1", n_envs=2, env_kwargs={"max_episode_steps": limit})
        stream = env.observation_space, env.action_space, 2, record(env, N_STEPS + 1)
        ended = [each for each in trajectories(recorded(stream).buffer) if each.has_end]
        assert len(ended) > 3
        for episode in ended:
            assert (bool(episode.truncations[-1]), bool(episode.terminations[-1])) == (is_truncated, not is_truncated)
            assert not is_truncated or len(episode) == limit


@pytest.mark.parametrize("stream", ["atari", "cart"], indirect=True)
@pytest.mark.parametrize("with_features", [False, True])
def test_record_copies_its_arguments(stream: Stream, with_features: bool) -> None:
    space, action_space, n_envs, transitions = stream
    recording = RecordBuffer(space, action_space, n_envs=n_envs, feature_space=2 if with_features else None)
    features = features_of(stream, 2)
    for step, now in enumerate(transitions[:40]):
        arrays = [
            np.array(each) for each in (now.obs, now.action, transitions[step + 1].obs, now.reward, now.done)
        ]  # which some environments reuse
        obs, action, new_obs, reward, done = arrays
        values = features[step].copy() if with_features else None
        recording.record(obs, action, new_obs, reward, done, now.infos, features=values)
        for array in (*arrays, *([values] if values is not None else [])):
            array[...] = 0
    recording.finish()
    assert_contains(recording.buffer, transitions[:40], features if with_features else None)


@pytest.mark.parametrize("stream", ["atari-single", "acrobot"], indirect=True)
def test_the_leading_axis_of_one_environment_is_optional(stream: Stream) -> None:
    space, action_space, _, transitions = stream
    recording = RecordBuffer(space, action_space, feature_space=2)
    features = features_of(stream, 2)
    for step, now in enumerate(transitions[:N_STEPS]):
        following = transitions[step + 1].obs[0]
        recording.record(
            now.obs[0], now.action[0], following, now.reward[0], now.done[0], now.infos[0], features=features[step, 0]
        )
    recording.finish()
    assert_contains(recording.buffer, transitions[:N_STEPS], features)


# -- features ------------------------------------------------------------------------------------------------


def test_a_step_with_features_is_written_with_the_next_one(stream: Stream) -> None:
    recording = RecordBuffer(*stream[:2], n_envs=stream[2], feature_space=5)
    features = features_of(stream)
    record_stream(recording, stream, 0, 3, features)
    assert len(recording) == 2 * stream[2]
    recording.finish()
    recording.finish()
    assert len(recording) == 3 * stream[2]
    record_stream(recording, stream, 3, 6, features)
    recording.finish()
    assert [len(each) for each in trajectories(recording.buffer) if each.env == 0] == [3, 3]


@pytest.mark.parametrize("stream", ["atari-single"], indirect=True)
def test_an_episode_of_one_environment_is_written_when_it_ends(stream: Stream) -> None:
    recording = RecordBuffer(*stream[:2], feature_space=5)
    first_end = next(step for step, now in enumerate(stream[-1]) if now.done[0])
    record_stream(recording, stream, 0, first_end + 1, features_of(stream))
    [episode] = trajectories(recording.buffer)
    assert (len(episode), episode.has_end) == (first_end + 1, True)


def test_features_of_a_dict_space_keep_their_keys(stream: Stream) -> None:
    features = spaces.Dict({"value": spaces.Box(-np.inf, np.inf, (), np.float64), "is_lost": spaces.MultiBinary(1)})
    recording = RecordBuffer(*stream[:2], n_envs=stream[2], feature_space=features)
    for step in range(20):
        now, following = stream[-1][step], stream[-1][step + 1].obs
        values = {"value": np.full(stream[2], step / 3), "is_lost": np.full((stream[2], 1), step % 2)}
        recording.record(now.obs, now.action, following, now.reward, now.done, now.infos, features=values)
    recording.finish()
    for episode in trajectories(recording.buffer):
        assert set(episode.observations) == {"observation", "value", "is_lost"}
        steps = np.arange(20)[episode.rows]
        np.testing.assert_array_equal(episode.observations["value"][:-1], steps / 3)
        np.testing.assert_array_equal(episode.observations["is_lost"][:-1, 0], steps % 2)


# -- datasets and folders -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "cls", "with_features"),
    [
        ("atari", RecordBuffer, False),
        ("console", RecordBuffer, True),
        ("atari", FramelessRecordBuffer, True),
        ("console", FramelessRecordBuffer, False),
    ],
    indirect=["stream"],
)
def test_a_checkpoint_restores_a_growing_recording(
    stream: Stream, cls: Any, with_features: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sb3_compressed.recording.record_buffer.INITIAL_STEPS", 40)
    features = features_of(stream) if with_features else None
    recording = cls(*stream[:2], n_envs=stream[2], feature_space=5 if with_features else None)
    for first, last in [(0, 30), (30, 70), (70, N_STEPS)]:  # which grows
        record_stream(recording, stream, first, last, features)
        save_checkpoint(recording.buffer, tmp_path / "recording")
        assert_same_episodes(load_checkpoint(tmp_path / "recording"), recording.buffer)
    verify(tmp_path / "recording")


@pytest.mark.parametrize(
    ("stream", "with_features", "mode"),
    [
        ("atari", False, "resume"),
        ("atari", True, "repair"),
        ("console", True, "repair"),
        ("console", False, "resume"),
        ("cart", True, "resume"),
        ("cart", False, "repair"),
    ],
    indirect=["stream"],
)
def test_a_recording_in_a_folder_is_resumed(
    stream: Stream,
    with_features: bool,
    mode: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sb3_compressed.recording.record_buffer.INITIAL_STEPS", 25)
    features = features_of(stream) if with_features else None
    arguments: Any = {"n_envs": stream[2], "feature_space": 5 if with_features else None}
    in_memory = RecordBuffer(*stream[:2], **arguments)
    for first, last in [(0, 60), (60, N_STEPS)]:
        record_stream(in_memory, stream, first, last, features)
        in_memory.finish()
    with RecordBuffer(*stream[:2], **arguments, storage=tmp_path / "recording") as recording:
        record_stream(recording, stream, 0, 60, features)
    with pytest.raises(StorageError, match="'resume'"):
        RecordBuffer(*stream[:2], **arguments, storage=tmp_path / "recording")
    assert_same_episodes(load_checkpoint(tmp_path / "recording"), recording.buffer)
    arguments |= {"storage": tmp_path / "recording", "storage_mode": mode}
    with RecordBuffer(*stream[:2], **arguments) as recording:
        assert len(recording) == 60 * stream[2]
        record_stream(recording, stream, 60, N_STEPS, features)
        assert recording.buffer.folder == tmp_path / "recording"
    loaded = load_checkpoint(tmp_path / "recording")
    assert loaded.buffer_size == 200
    assert loaded.size() == N_STEPS
    assert_same_episodes(loaded, in_memory.buffer)
    verify(tmp_path / "recording")


# -- episodes of other buffers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["atari", "console", "pendulum"], indirect=True)
def test_episodes_of_a_replay_buffer_can_be_added(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sb3_compressed.recording.record_buffer.INITIAL_STEPS", 16)
    longest = sorted(trajectories(recorded(stream).buffer), key=len)[-3:]
    recording = RecordBuffer(*stream[:2])
    for episode in longest:
        recording.add_episode(episode)
    assert len(recording) == sum(map(len, longest))
    for ours, theirs in zip(trajectories(recording.buffer), longest, strict=True):
        assert ours.has_end == theirs.has_end
        assert_same_episode(ours, theirs)


def test_episodes_of_other_spaces_raise_and_change_nothing(stream: Stream) -> None:
    episode = next(trajectories(recorded(stream).buffer))
    with pytest.raises(ValueError, match="n_envs=2"):
        RecordBuffer(*stream[:2], n_envs=2).add_episode(episode)
    other = RecordBuffer(stream[0], spaces.Discrete(77))
    with pytest.raises(ValueError, match=r"Discrete\(77\)"):
        other.add_episode(episode)
    assert len(other) == 0


# -- variants ------------------------------------------------------------------------------------------------


def use(cls: type[RecordBuffer], stream: Stream, *, with_features: bool) -> Any:
    """Record a stream in a ``with`` block."""
    features = features_of(stream) if with_features else None
    with cls(*stream[:2], n_envs=stream[2], feature_space=5 if with_features else None) as recording:
        record_stream(recording, stream, 0, 100, features)
        recording.finish()
    return recording


@pytest.mark.parametrize("with_features", [False, True])
@pytest.mark.parametrize("stream", ["atari", "console", "cart"], indirect=True)
def test_a_frameless_recording_has_everything_but_observations(stream: Stream, with_features: bool) -> None:
    full, frameless = (use(cls, stream, with_features=with_features) for cls in (RecordBuffer, FramelessRecordBuffer))
    assert len(full) == len(frameless) == 100 * stream[2]
    for env in range(stream[2]):
        ours, theirs = ([each for each in trajectories(one.buffer) if each.env == env] for one in (frameless, full))
        assert [len(each) for each in ours] == [len(each) for each in theirs]
        for our_episode, their_episode in zip(ours, theirs, strict=True):
            for name in ("actions", "rewards", "terminations", "truncations"):
                np.testing.assert_array_equal(getattr(our_episode, name), getattr(their_episode, name))
            if with_features:
                np.testing.assert_array_equal(our_episode.observations, their_episode.observations["features"])
            else:
                assert our_episode.observations.shape == (len(our_episode) + 1, 0)


def test_a_frameless_recording_ignores_observations(stream: Stream) -> None:
    recording = FramelessRecordBuffer(*stream[:2], n_envs=stream[2])
    now = stream[-1][0]
    recording.record(None, now.action, None, now.reward, [True] * 4, [{"terminal_observation": "none"}] * 4)
    assert len(recording) == 4
    with pytest.raises(ValueError, match="action must have the shape"):
        recording.record(None, now.action[:1], None, now.reward, now.done, now.infos)


# -- errors --------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[str, Any, type[Exception], str]] = {
    "one observation for four": ("obs", np.zeros((4, 84, 84), np.uint8), ValueError, r"obs.*\(4, 4, 84, 84\)"),
    "scaled observations": ("obs", np.full((4, 4, 84, 84), 0.5), ValueError, "obs: values of dtype float64 do not fit"),
    "text": ("new_obs", np.full((4, 4, 84, 84), "a"), TypeError, "new_obs: "),
    "a dict": ("new_obs", {"image": 0}, ValueError, "new_obs must have the shape"),
    "actions of three": ("action", np.zeros(3, np.int64), ValueError, r"action must have the shape \(4,\), got \(3,\)"),
    "half an action": ("action", np.full(4, 0.5), ValueError, "action: .*0.5"),
    "rewards of two": ("reward", np.zeros(2), ValueError, "reward"),
    "one end for all": ("done", np.array(True), ValueError, "done"),
    "one info for all": ("infos", [{}], ValueError, "infos must be a list of dicts"),
    "an info for all": ("infos", {}, ValueError, "infos must be a list of dicts"),
    "no infos": ("infos", None, ValueError, "infos must be a list of dicts"),
    "infos that are none": ("infos", [1, 2, 3, 4], ValueError, "infos must be a list of dicts"),
    "a wrong last observation": (
        "infos", [{"terminal_observation": np.zeros((84, 84), np.uint8)}] * 4,
        ValueError, "terminal_observation must have the shape",
    ),
    "features of another size": ("features", np.zeros((4, 3)), ValueError, r"features.*\(4, 5\), got \(4, 3\)"),
    "no features": ("features", None, ValueError, "no features were passed"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "value", "kind", "message"), WRONG.values(), ids=WRONG)
def test_invalid_arguments_of_record_raise_and_change_nothing(
    stream: Stream, name: str, value: Any, kind: type[Exception], message: str
) -> None:
    transitions, features = stream[-1], features_of(stream)
    recording = RecordBuffer(*stream[:2], n_envs=stream[2], feature_space=5)
    record_stream(recording, stream, 0, 10, features)
    now = transitions[10]
    valid: Any = {
        "obs": now.obs, "action": now.action, "new_obs": transitions[11].obs, "reward": now.reward,
        "done": np.ones(4, np.bool_) if name == "infos" else now.done, "infos": now.infos, "features": features[10],
    }  # fmt: skip
    with pytest.raises(kind, match=message):
        recording.record(**{**valid, name: value})
    record_stream(recording, stream, 10, 30, features)
    recording.finish()
    assert_contains(recording.buffer, transitions[:30], features)


@pytest.mark.parametrize("stream", ["console"], indirect=True)
def test_wrong_keys_of_dict_observations_raise(stream: Stream) -> None:
    recording = RecordBuffer(*stream[:2], n_envs=stream[2])
    now, following = stream[-1][0], stream[-1][1].obs
    for wrong in ({"screen": now.obs["screen"]}, {**now.obs, "sound": 0}, now.obs["screen"]):
        with pytest.raises(ValueError, match=r"obs must be a dict with the keys \['lives', 'ram', 'screen'\], got"):
            recording.record(wrong, now.action, following, now.reward, now.done, now.infos)
    wrong = {**now.obs, "ram": now.obs["ram"][:1]}
    with pytest.raises(ValueError, match=r"obs\['ram'\] must have the shape"):
        recording.record(wrong, now.action, following, now.reward, now.done, now.infos)
    assert len(recording) == 0


def test_features_without_a_feature_space_raise(stream: Stream) -> None:
    recording = RecordBuffer(*stream[:2], n_envs=stream[2])
    with pytest.raises(ValueError, match="feature_space"):
        record_stream(recording, stream, 0, 1, features_of(stream))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_space": 0}, "feature_space must be a space or a positive number"),
        ({"feature_space": "5"}, "feature_space must be a space or a positive number"),
        ({"n_envs": 0}, "n_envs=0"),
        ({"n_envs": 4, "buffer_size": 3}, "buffer_size=3"),
        ({"feature_space": spaces.Dict({"observation": spaces.Discrete(2)})}, r"parts named \['observation'\]"),
        ({"compression_method": "zst"}, "zst"),
        ({"storage_mode": "resume"}, "storage"),
    ],
)
def test_invalid_arguments_of_the_constructor_raise(options: Any, message: str) -> None:
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    with pytest.raises(ValueError, match=message):
        RecordBuffer(space, spaces.Discrete(2), **options)
