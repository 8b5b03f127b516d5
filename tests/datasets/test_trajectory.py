"""Episodes begin and end at the right transitions for every state of the ring, class of buffer and space."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Stream
from episodes import assert_contains, assert_same_episode, filled, parts_of
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

from sb3_compressed import MixedReplayBuffer
from sb3_compressed.buffers.loading import open_to_read
from sb3_compressed.datasets import trajectories
from sb3_compressed.datasets.trajectory import add_steps
from sb3_compressed.storage.commit_writer import CommitWriter

ROWS = 90


def sb3_class(stream: Stream) -> Any:
    return DictReplayBuffer if isinstance(stream[0], spaces.Dict) else ReplayBuffer


@pytest.mark.parametrize(
    ("stream", "n_steps", "ours"),
    [
        *(("atari", n_steps, True) for n_steps in (0, 1, 60, ROWS, 200)),
        ("console", 200, True),
        ("console", 60, False),
        ("pendulum", ROWS, False),
        ("discrete", 200, True),
    ],
    indirect=["stream"],
)
def test_every_transition_is_in_one_trajectory_in_order(stream: Stream, n_steps: int, ours: bool) -> None:
    buffer = filled(stream, n_steps, ROWS, None if ours else sb3_class(stream))
    assert_contains(buffer, stream[-1][max(0, n_steps - ROWS) : n_steps], has_begin=n_steps < ROWS)
    for env in range(stream[2]):
        of_env = [trajectory for trajectory in trajectories(buffer) if trajectory.env == env]
        assert all(trajectory.has_end for trajectory in of_env[:-1])
        assert all(each.actions.shape == (len(each), *(stream[1].shape or ())) for each in of_env)


def test_an_episode_that_stops_without_done_has_no_end(stream: Stream) -> None:
    recorded = stream[-1]
    buffer = filled(stream, 30, ROWS)
    for transition in recorded[200:220]:  # like a training that was resumed with a new episode
        transition.add_to(buffer)
    lengths = [(len(each), each.has_end) for each in trajectories(buffer) if each.env == 0]
    position = np.cumsum([length for length, _ in lengths]).tolist()
    assert 30 in position
    assert lengths[position.index(30)][1] is bool(recorded[29].done[0])


def test_episodes_continue_across_the_files_of_a_folder(stream: Stream, tmp_path: Path) -> None:
    buffer, expected = filled(stream, 20, ROWS, storage=tmp_path), filled(stream, 40, ROWS)
    # The next observation is stored in another file than the one before.
    CommitWriter(buffer._storage.store).write_snapshot()
    for transition in stream[-1][20:40]:
        transition.add_to(buffer)
    with closing(open_to_read(tmp_path)) as opened:
        rows, expected_rows = ([each.rows.tolist() for each in trajectories(each)] for each in (opened, expected))
    assert rows == expected_rows
    buffer.close()


@pytest.mark.parametrize("n_steps", [60, ROWS, 130])
def test_episodes_with_optimize_memory_usage_equal_those_of_sb3(n_steps: int, stream: Stream) -> None:
    options: dict[str, Any] = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    ours, theirs = (filled(stream, n_steps, ROWS, cls, **options) for cls in (None, ReplayBuffer))
    for mine, other in zip(trajectories(ours), trajectories(theirs), strict=True):
        np.testing.assert_array_equal(mine.observations, other.observations)
        assert not mine.truncations.any()
    # In a full ring, the last next observation has overwritten the oldest observation.
    oldest = max(0, n_steps - ROWS + 1)
    kept = stream[-1][oldest:n_steps]
    for env in range(stream[2]):
        actions = np.concatenate([each.actions for each in trajectories(ours) if each.env == env])
        np.testing.assert_array_equal(actions, [transition.action[env] for transition in kept])
        first = next(each for each in trajectories(ours) if each.env == env)
        np.testing.assert_array_equal(first.observations[0], kept[0].obs[env])


@pytest.mark.parametrize(
    ("stream", "is_mixed"),
    [("atari-single", False), ("console", True), ("pendulum", False), ("discrete", True)],
    indirect=["stream"],
)
def test_steps_of_episodes_can_be_added_to_another_buffer(stream: Stream, is_mixed: bool) -> None:
    theirs = filled(stream, 100, cls=sb3_class(stream))
    episodes = [*trajectories(theirs)]
    ours = sb3_class(stream)(theirs.buffer_size * theirs.n_envs, *stream[:2], device="cpu")
    for episode in episodes:
        add_steps(MixedReplayBuffer.from_buffers([ours], [1]) if is_mixed else ours, episode.part(0, len(episode)))
    assert ours.full
    for our_episode, their_episode in zip(trajectories(ours), episodes, strict=True):
        assert_same_episode(our_episode, their_episode)


@pytest.mark.parametrize("n_steps", [1, 7, 1000])
@pytest.mark.parametrize("stream", ["atari-single", "console"], indirect=True)
def test_parts_contain_each_step_of_a_trajectory_once(stream: Stream, n_steps: int) -> None:
    episode = max(trajectories(filled(stream)), key=len)
    parts = [*episode.parts(n_steps)]
    assert [is_last for _, is_last in parts] == [False] * (len(parts) - 1) + [True]
    assert max(len(part.rewards) for part, _ in parts) == min(n_steps, len(episode))
    np.testing.assert_array_equal(np.concatenate([part.actions for part, _ in parts]), episode.actions)
    for name, values in parts_of(episode.observations).items():
        decoded = [parts_of(part.observations)[name] for part, _ in parts]
        for part, following in pairwise(decoded):
            np.testing.assert_array_equal(part[-1], following[0])
        np.testing.assert_array_equal(np.concatenate([*(part[:-1] for part in decoded), decoded[-1][-1:]]), values)
