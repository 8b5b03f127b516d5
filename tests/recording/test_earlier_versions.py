"""Recordings that were pickled before their classes moved can be loaded and continued.

``fixtures/version-0.1.pkl.xz`` contains a ``RecordBuffer`` and a ``FramelessRecordBuffer`` of ``Box(-1, 1, (3,))``,
``Discrete(2)`` and two features, pickled after six steps: observations of ``step / 8``, actions of ``step % 2``,
rewards and features of ``step``, and the end of an episode after the fourth step.
"""

from __future__ import annotations

import lzma
import pickle
from pathlib import Path

import numpy as np
import pytest

from sb3_compressed.datasets import trajectories
from sb3_compressed.recording import FramelessRecordBuffer, RecordBuffer

PICKLED = Path(__file__).parent / "fixtures" / "version-0.1.pkl.xz"


@pytest.mark.parametrize(("index", "cls"), [(0, RecordBuffer), (1, FramelessRecordBuffer)])
def test_a_recording_of_version_0_1_is_loaded_and_continued(index: int, cls: type[RecordBuffer]) -> None:
    recording = pickle.loads(lzma.decompress(PICKLED.read_bytes()))[index]
    assert type(recording) is cls
    assert len(recording) == 5, "the sixth step waits for the next one's features"
    obs = np.full((1, 3), 6 / 8, np.float32)
    recording.record(obs, [0], obs + 0.125, [6.0], [True], [{}], features=np.full((1, 2), 6))
    episodes = [*trajectories(recording.buffer)]
    assert [(len(each), each.has_end) for each in episodes] == [(4, True), (3, True)]
    for episode, steps in zip(episodes, ([0, 1, 2, 3], [4, 5, 6]), strict=True):
        observations = episode.observations
        features = observations["features"] if cls is RecordBuffer else observations
        np.testing.assert_array_equal(features[:-1, 0], steps)
        np.testing.assert_array_equal(episode.rewards, steps)
        np.testing.assert_array_equal(episode.actions, np.array(steps) % 2)
        if cls is RecordBuffer:
            np.testing.assert_array_equal(observations["observation"][:, 0] * 8, [*steps, steps[-1] + 1])
