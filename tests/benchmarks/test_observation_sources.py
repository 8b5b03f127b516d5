"""Sources are found by name."""

from __future__ import annotations

import pytest
from sources import Source


def test_games_that_ale_added_later_are_preprocessed_as_the_others() -> None:
    env = Source("DonkeyKong").make(1)
    assert env.observation_space.shape == Source("Pong").make(1).observation_space.shape == (84, 84, 1)
    env.close()


@pytest.mark.parametrize(
    ("name", "environment", "n_stack", "is_tuned"),
    [
        ("Pong", "Pong", 4, True),
        ("BeamRider", "BeamRider", 4, False),
        ("CarRacing-v3", "CarRacing-v3", 1, True),
        ("Doom84-v0:stack4", "Doom84-v0", 4, False),
    ],
)
def test_names_contain_the_frames(name: str, environment: str, n_stack: int, is_tuned: bool) -> None:
    source = Source(name)
    assert (source.environment, source.n_stack, source.is_tuned) == (environment, n_stack, is_tuned)
