"""Shapes of spaces are those of SB3, which is not imported for them."""

from __future__ import annotations

import pytest
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_obs_shape

from sb3_compressed import CompressedDictReplayBuffer
from sb3_compressed.common.spaces import space_shape
from sb3_compressed.errors import ObservationSpaceError


def test_spaces_have_the_shapes_of_sb3() -> None:
    for space in (
        spaces.Box(0, 1, (3, 4)), spaces.Box(0, 1, ()), spaces.Discrete(5), spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(7), spaces.MultiBinary([2, 3]),
    ):  # fmt: skip
        assert space_shape(space) == get_obs_shape(space)


def test_a_dict_space_in_another_raises() -> None:
    inner = spaces.Dict({"x": spaces.Box(0, 1, (3,))})
    with pytest.raises(ObservationSpaceError, match="a Dict space inside a Dict space is not supported"):
        space_shape(inner)
    with pytest.raises(ObservationSpaceError, match="a Dict space inside a Dict space is not supported"):
        CompressedDictReplayBuffer(10, spaces.Dict({"outer": inner}), spaces.Discrete(2), "cpu")
