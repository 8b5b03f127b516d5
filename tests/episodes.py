"""Helpers for tests of datasets and recordings: comparisons of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from support import Transition, filled

from sb3_compressed.datasets import trajectories

__all__ = [
    "assert_contains",
    "assert_same_arrays",
    "assert_same_episode",
    "assert_same_episodes",
    "filled",
    "parts_of",
]


def assert_same_arrays(ours: Any, theirs: Any) -> None:
    """Assert that two arrays, or dicts of arrays, have equal dtypes, shapes and bytes."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            assert_same_arrays(ours[key], theirs[key])
    else:
        assert (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())


def assert_same_episode(ours: Any, theirs: Any) -> None:
    """Assert that all arrays of two episodes are equal, bit for bit."""
    for name in ("observations", "actions", "rewards", "terminations", "truncations"):
        assert_same_arrays(getattr(ours, name), getattr(theirs, name))


def assert_same_episodes(ours: Any, theirs: Any) -> None:
    """Assert that two buffers contain the same episodes, bit for bit."""
    for our_episode, their_episode in zip(trajectories(ours), trajectories(theirs), strict=True):
        assert_same_episode(our_episode, their_episode)


def parts_of(observations: Any, name: str = "observation") -> dict[str, Any]:
    """Return the parts of observations by their keys."""
    return observations if isinstance(observations, dict) else {name: observations}


def assert_contains(
    buffer: Any, transitions: Sequence[Transition], features: Any = None, *, has_begin: bool = True
) -> None:
    """Assert that the episodes of a buffer are these transitions, with these features if it has any.

    :param has_begin: whether the first transition begins an episode
    """
    for env in range(buffer.n_envs):
        step = 0
        for episode in (each for each in trajectories(buffer) if each.env == env):
            observations = parts_of(episode.observations)
            assert episode.has_begin == (has_begin or step > 0)
            ends = [*(episode.terminations | episode.truncations)]
            assert ends == [False] * (len(episode) - 1) + [episode.has_end]
            for index in range(len(episode)):
                now = transitions[step]
                for name, before in parts_of(now.obs).items():
                    assert_same_arrays(observations[name][index], before[env])
                    assert_same_arrays(observations[name][index + 1], parts_of(now.next_obs)[name][env])
                if features is not None:
                    assert_same_arrays(observations["features"][index], features[step][env])
                    assert index + 1 < len(episode) or not observations["features"][index + 1].any()
                np.testing.assert_array_equal(episode.actions[index], now.action[env])
                assert episode.rewards[index] == np.float32(now.reward[env])
                is_truncated = now.infos[env].get("TimeLimit.truncated", False)
                assert episode.truncations[index] == (now.done[env] and is_truncated)
                assert episode.terminations[index] == (now.done[env] and not is_truncated)
                step += 1
        assert step == len(transitions)
