"""Buffers as episodes: where they begin and end, whatever the ring, the class and the observations."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from conftest import Stream
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

from sb3_compressed import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_compressed.datasets import trajectories

ROWS = 90


def filled(stream: Stream, n_steps: int, *, ours: bool = True, **options: Any) -> Any:
    space, action_space, n_envs, transitions = stream
    is_dict = isinstance(space, spaces.Dict)
    classes = (CompressedReplayBuffer, CompressedDictReplayBuffer) if ours else (ReplayBuffer, DictReplayBuffer)
    buffer = cast("Any", classes[is_dict])(ROWS * n_envs, space, action_space, device="cpu", n_envs=n_envs, **options)
    for transition in transitions[:n_steps]:
        transition.add_to(buffer)
    return buffer


def parts_of(observation: Any) -> dict[str, Any]:
    return observation if isinstance(observation, dict) else {"": observation}


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("n_steps", [0, 1, 60, ROWS, 200])
@pytest.mark.parametrize("stream", ["atari", "console", "bits", "pendulum", "discrete", "acrobot"], indirect=True)
def test_every_transition_is_in_one_of_them_in_order(stream: Stream, n_steps: int, ours: bool) -> None:
    _, action_space, n_envs, transitions = stream
    buffer = filled(stream, n_steps, ours=ours)
    kept = transitions[max(0, n_steps - ROWS) : n_steps]
    found = [*trajectories(buffer)]
    for env in range(n_envs):
        step = 0
        of_env = [trajectory for trajectory in found if trajectory.env == env]
        for trajectory in of_env:
            part = trajectory.part(0, len(trajectory))
            assert trajectory.has_begin == (step > 0 or n_steps < ROWS)
            assert (part.terminations | part.truncations).tolist() == [False] * (len(trajectory) - 1) + [
                trajectory.has_end
            ]
            assert part.actions.shape == (len(trajectory), *(action_space.shape or ()))
            for index in range(len(trajectory)):
                transition = kept[step]
                for name, values in parts_of(part.observations).items():
                    np.testing.assert_array_equal(values[index], parts_of(transition.obs)[name][env])
                    np.testing.assert_array_equal(values[index + 1], parts_of(transition.next_obs)[name][env])
                assert part.rewards[index] == np.float32(transition.reward[env])
                np.testing.assert_array_equal(part.actions[index], transition.action[env])
                is_cut = transition.infos[env].get("TimeLimit.truncated", False)
                assert part.truncations[index] == (transition.done[env] and is_cut)
                assert part.terminations[index] == (transition.done[env] and not is_cut)
                step += 1
        assert step == len(kept)
        assert [trajectory.has_end for trajectory in of_env[:-1]] == [True] * (len(of_env) - 1)


def test_an_episode_that_ends_without_a_word_is_unfinished(stream: Stream) -> None:
    transitions = stream[-1]
    buffer = filled(stream, 30)
    for transition in transitions[200:220]:  # as after training was resumed with a new episode
        transition.add_to(buffer)
    lengths = [(len(each), each.has_end) for each in trajectories(buffer) if each.env == 0]
    position = np.cumsum([length for length, _ in lengths]).tolist()
    assert 30 in position
    assert lengths[position.index(30)][1] is bool(transitions[29].done[0])


@pytest.mark.parametrize("n_steps", [60, ROWS, 130])
def test_memory_optimised_as_sb3s(n_steps: int, stream: Stream) -> None:
    options: dict[str, Any] = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    ours, theirs = (filled(stream, n_steps, ours=each, **options) for each in (True, False))
    for mine, other in zip(trajectories(ours), trajectories(theirs), strict=True):
        np.testing.assert_array_equal(mine.observations, other.observations)
        assert not mine.truncations.any()
    # In a ring that went round, the oldest observation was overwritten by what follows the newest.
    oldest = max(0, n_steps - ROWS + 1)
    kept = stream[-1][oldest:n_steps]
    for env in range(stream[2]):
        actions = np.concatenate([each.actions for each in trajectories(ours) if each.env == env])
        np.testing.assert_array_equal(actions, [transition.action[env] for transition in kept])
        first = next(each for each in trajectories(ours) if each.env == env)
        np.testing.assert_array_equal(first.observations[0], kept[0].obs[env])
