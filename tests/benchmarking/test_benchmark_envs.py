"""Environments that SB3 cannot train on are refused with a message that names the space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from gymnasium import spaces

from sb3_compressed.benchmarking.benchmark_envs import make_env, skips_frames


class Words(gym.Env[Any, Any]):
    """Its observations have no shape, so that SB3 fails before it looks at the space."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # as in the base class
    observation_space = spaces.Text(5)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode


OTHER_SPACES: list[spaces.Space[Any]] = [spaces.Text(5)]
if hasattr(spaces, "OneOf"):  # since Gymnasium 1.0
    OTHER_SPACES.append(spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (2,))]))


@pytest.mark.parametrize("atari", [False, True])
@pytest.mark.parametrize("space", OTHER_SPACES, ids=lambda space: type(space).__name__)
def test_observations_that_are_no_arrays_are_refused(space: Any, atari: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Words, "observation_space", space)
    gym.register("Words-v0", Words)  # type: ignore[arg-type]
    try:
        with pytest.raises(ValueError, match=rf"observation space of Words-v0, {type(space).__name__}\("):
            make_env("Words-v0", 1, atari=atari)
    finally:
        del gym.registry["Words-v0"]


def test_environments_with_similar_names_are_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym, "registry", dict.fromkeys(["Asterix-v0", "CartPole-v0", "CartPole-v1"]))
    with pytest.raises(ValueError, match="did you mean CartPole-v1 or CartPole-v0"):
        make_env("cartpol-v1", 1, atari=False)
    with pytest.raises(ValueError, match="unknown environment 'Krafter-v0'; Environment `Krafter` doesn't exist"):
        make_env("Krafter-v0", 1, atari=False)  # similar to Asterix-v0 by its version alone


def test_games_without_frame_skip_are_suggested_first_and_others_are_detected() -> None:
    with pytest.raises(ValueError, match="did you mean PongNoFrameskip-v4 or "):
        make_env("pong", 1, atari=True)
    assert [skips_frames(name) for name in ("Pong-v4", "ALE/Pong-v5", "PongNoFrameskip-v4")] == [True, True, False]
