"""Observations after a step are those before environments were reset."""

from __future__ import annotations

from typing import Any

import numpy as np

from sb3_compressed.step import with_last_observations


def test_last_observations_of_episodes_replace_the_first_ones_of_the_next() -> None:
    new_obs = np.arange(8).reshape(4, 2)
    infos: list[dict[str, Any]] = [{"terminal_observation": np.full(2, 50 + env)} for env in range(4)]
    del infos[3]["terminal_observation"]  # some environments do not return it
    found = with_last_observations(new_obs, np.array([True, False, True, True]), infos)
    assert found.tolist() == [[50, 50], [2, 3], [52, 52], [6, 7]]
    doubled = with_last_observations(new_obs, np.array([1, 0, 0, 0]), infos, lambda last: 2 * last)
    assert doubled.tolist() == [[100, 100], [2, 3], [4, 5], [6, 7]]
    assert new_obs.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
