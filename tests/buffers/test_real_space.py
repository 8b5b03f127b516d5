"""Code of users finds the real observation space wherever it runs, also while a constructor runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from buffer_pairs import REPLAY_PAIRS, ROLLOUT_PAIRS
from gymnasium import spaces

from sb3_compressed import CompressedArray
from sb3_compressed.common.tree_map import tree_map

IMAGE = spaces.Box(0, 255, (3, 36, 36), np.uint8)
SPACES: dict[bool, spaces.Space[Any]] = {
    False: IMAGE,
    True: spaces.Dict(camera=IMAGE, vector=spaces.Box(-1, 1, (3,), np.float32)),
}


class Looks:
    """Records what it finds, and allocates an array for observations."""

    obs_shape: Any
    observation_space: Any
    seen: list[Any]

    def look(self) -> None:
        """Record the space and its shape, and those of an array that is allocated for them."""
        shape = self.obs_shape["camera"] if isinstance(self.obs_shape, dict) else self.obs_shape
        frames = np.zeros((4, 2, *shape), np.uint8)
        vars(self).setdefault("seen", []).append((self.observation_space, self.obs_shape, frames.shape))

    def reset(self) -> None:
        """Look before and after SB3's method."""
        self.look()
        super().reset()  # type: ignore[misc]
        self.look()


def seen(cls: Any, is_dict: bool) -> list[Any]:
    kwargs = {"hidden_state_shape": (4, 1, 2, 8)} if "Recurrent" in cls.__name__ else {}
    buffer = type(f"Looking{cls.__name__}", (Looks, cls), {})(
        4, SPACES[is_dict], spaces.Discrete(3), device="cpu", n_envs=2, **kwargs
    )
    buffer.look()
    buffer.reset()
    found: list[Any] = buffer.seen
    return found


@pytest.mark.parametrize("kind", [*ROLLOUT_PAIRS, "replay", "n-step", "replay dict"])
def test_methods_that_constructors_call(kind: str) -> None:
    pair = {**ROLLOUT_PAIRS, **REPLAY_PAIRS, "replay dict": REPLAY_PAIRS["dict"]}[kind]
    ours, theirs = (seen(cls, "dict" in kind) for cls in pair)
    assert ours == theirs
    assert len(ours) >= 3


class WithFrames:
    """A user's class, whose constructor and ``reset`` run within those of the compressed class."""

    buffer_size: int
    n_envs: int
    obs_shape: Any
    observations: Any

    def __init__(self, buffer_size: int, observation_space: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(buffer_size, observation_space, *args, **kwargs)  # type: ignore[call-arg]
        self.found = [observation_space, self.observation_space, self.obs_shape]  # type: ignore[attr-defined]
        self.found.append(tree_map(lambda array: np.zeros_like(array).shape, self.observations))

    def reset(self) -> None:
        """Allocate an array after SB3's method."""
        super().reset()  # type: ignore[misc]
        self.shape_in_reset = self.obs_shape


USERS = [
    *(REPLAY_PAIRS[kind] for kind in ("replay", "n-step", "dict")),
    *(ROLLOUT_PAIRS[kind] for kind in ("plain", "dict")),
]


@pytest.mark.parametrize(("ours", "theirs"), USERS)
@pytest.mark.parametrize("options", [{}, {"optimize_memory_usage": True}])
def test_classes_between_ours_and_sb3s(ours: Any, theirs: Any, options: dict[str, Any]) -> None:
    if "Rollout" in ours.__name__ and options:
        options = {"gamma": 0.9}
    is_dict = "Dict" in ours.__name__
    users = type("WithFramesOfSb3", (WithFrames, theirs), {})
    args = 8, SPACES[is_dict], spaces.Discrete(3)
    found = []
    for cls in (type("Compressed", (ours, users), {}), users):
        sb3_options = {} if cls is users and "optimize_memory_usage" in options else options
        buffer = cls(*args, device="cpu", n_envs=2, **sb3_options)
        buffer.reset()
        found.append((buffer.found, buffer.shape_in_reset))
        observations = buffer.observations["camera"] if is_dict else buffer.observations
        assert isinstance(observations, np.ndarray if cls is users else CompressedArray)
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["plain", "dict"])
def test_arrays_that_a_reset_has_written_stay(kind: str) -> None:
    """Those of the constructor's reset are not replaced afterwards."""

    class Writes(ROLLOUT_PAIRS[kind][0]):  # type: ignore[misc]
        def reset(self) -> None:
            super().reset()
            array = self.observations["camera"] if isinstance(self.observations, dict) else self.observations
            array[1] = 7
            self.array = array

    buffer = Writes(4, SPACES[kind == "dict"], spaces.Discrete(3), device="cpu", n_envs=2)
    now = buffer.observations["camera"] if kind == "dict" else buffer.observations
    assert now is buffer.array
    assert (now[1] == 7).all()
    assert not now[0].any()
