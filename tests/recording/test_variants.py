"""The variants: they take the same calls, and keep what they say."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Stream

from sb3_compressed.datasets import trajectories
from sb3_compressed.recording import DummyRecordBuffer, FramelessRecordBuffer, RecordBuffer

VARIANTS = [RecordBuffer, FramelessRecordBuffer, DummyRecordBuffer]
FEATURES = np.random.default_rng(0).standard_normal((400, 4, 6)).astype(np.float32)


def use(cls: type[RecordBuffer], stream: Stream, n_steps: int = 100, *, with_features: bool, **options: Any) -> Any:
    """Call everything that a recording has."""
    space, action_space, n_envs, transitions = stream
    features = FEATURES[:, :n_envs] if with_features else None
    with cls(space, action_space, n_envs=n_envs, feature_space=6 if with_features else None, **options) as recording:
        for step, now in enumerate(transitions[:n_steps]):
            new_obs = transitions[step + 1].obs
            recording.record(
                now.obs, now.action, new_obs, now.reward, now.done, now.infos,
                features=None if features is None else features[step],
            )  # fmt: skip
        recording.finish()
    return recording


@pytest.mark.parametrize("with_features", [False, True])
@pytest.mark.parametrize("stream", ["atari", "console", "cart"], indirect=True)
def test_frameless_is_all_but_the_observations(stream: Stream, with_features: bool) -> None:
    full, frameless = (use(cls, stream, with_features=with_features) for cls in VARIANTS[:2])
    assert len(full) == len(frameless) == 100 * stream[2]
    for env in range(stream[2]):
        ours, theirs = ([each for each in trajectories(one.buffer) if each.env == env] for one in (frameless, full))
        assert [len(each) for each in ours] == [len(each) for each in theirs]
        for mine, other in zip(ours, theirs, strict=True):
            for name in ("actions", "rewards", "terminations", "truncations"):
                np.testing.assert_array_equal(getattr(mine, name), getattr(other, name))
            if with_features:
                np.testing.assert_array_equal(mine.observations, other.observations["features"])
            else:
                assert mine.observations.shape == (len(mine) + 1, 0)


def test_frameless_looks_at_no_observation(stream: Stream) -> None:
    recording = FramelessRecordBuffer(*stream[:2], n_envs=stream[2])
    now = stream[-1][0]
    recording.record(None, now.action, None, now.reward, [True] * 4, [{"terminal_observation": "none"}] * 4)
    assert len(recording) == 4
    with pytest.raises(ValueError, match="action must have the shape"):
        recording.record(None, now.action[:1], None, now.reward, now.done, now.infos)


@pytest.mark.parametrize("with_features", [False, True])
def test_a_dummy_keeps_nothing_anywhere(stream: Stream, with_features: bool, tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    dummy = use(DummyRecordBuffer, stream, with_features=with_features, storage=folder, compression_method="zstd3")
    dummy.add_episode(next(trajectories(use(RecordBuffer, stream, 10, with_features=False).buffer)))
    assert (len(dummy), dummy.buffer.size(), [*trajectories(dummy.buffer)]) == (0, 0, [])
    assert not folder.exists()


@pytest.mark.parametrize("cls", VARIANTS)
def test_all_are_made_and_called_alike(cls: type[RecordBuffer]) -> None:
    def public(of: type) -> set[str]:
        return {name for name in dir(of) if not name.startswith("_")}

    assert issubclass(cls, RecordBuffer)
    assert public(cls) == public(RecordBuffer)
    assert [*inspect.signature(cls).parameters] == [*inspect.signature(RecordBuffer).parameters]
