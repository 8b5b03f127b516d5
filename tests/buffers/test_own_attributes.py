"""Attributes of a user's class that have names of ours, or are set before SB3's constructor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from buffer_pairs import REPLAY_PAIRS, ROLLOUT_PAIRS
from gymnasium import spaces
from torch.utils import _pytree

from sb3_compressed import CompressedArray, CompressedDictReplayBuffer, buffer_statistics
from sb3_compressed.common.tree_map import leaves

ROWS, N_ENVS, SHAPE = 8, 2, (4, 36, 36)
IMAGE = spaces.Box(0, 255, SHAPE, np.uint8)
DICT = spaces.Dict(cam=IMAGE, vec=spaces.Box(-1, 1, (3,), np.float32))
ACTIONS = spaces.Discrete(3)
ALL_PAIRS = {**{f"replay {kind}": pair for kind, pair in REPLAY_PAIRS.items() if kind != "her"}, **ROLLOUT_PAIRS}


def new(cls: Any, kind: str) -> Any:
    further = {"hidden_state_shape": (ROWS, 1, N_ENVS, 4)} if "recurrent" in kind else {}
    space = DICT if "dict" in kind else IMAGE
    n = ROWS * N_ENVS if "replay" in kind else ROWS
    return cls(n, space, ACTIONS, device="cpu", n_envs=N_ENVS, **further)


NEXT_OBSERVATIONS: dict[str, Callable[[], Any]] = {
    "same shape": lambda: np.zeros((ROWS, N_ENVS, *SHAPE), np.uint8),
    "newest frame": lambda: np.zeros((ROWS, N_ENVS, 1, 36, 36), np.uint8),
    "one step more": lambda: np.zeros((ROWS + 1, N_ENVS, *SHAPE), np.uint8),
    "tensor": lambda: th.zeros((ROWS, N_ENVS, *SHAPE)),
    "list": lambda: [None] * ROWS,
    "objects": lambda: np.empty((ROWS, N_ENVS), object),
    "dict": lambda: {"cam": np.zeros((ROWS, N_ENVS, *SHAPE), np.uint8), "features": np.zeros(3)},
    "None": lambda: None,
}


@pytest.mark.parametrize("name", NEXT_OBSERVATIONS)
@pytest.mark.parametrize("kind", ROLLOUT_PAIRS)
def test_next_observations_of_rollout_buffers_are_the_users(kind: str, name: str) -> None:
    given = NEXT_OBSERVATIONS[name]()

    class Own(ROLLOUT_PAIRS[kind][0]):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.next_observations = None  # reset() is called by the constructor
            super().__init__(*args, **kwargs)

        def reset(self) -> None:
            super().reset()
            self.next_observations = given

    buffer = new(Own, kind)
    buffer.reset()
    assert buffer.next_observations is given
    assert "Own" in repr(buffer)
    assert buffer_statistics(buffer).raw_observations_nbytes == 0
    assert any(isinstance(array, CompressedArray) for array in leaves(buffer.observations))


EARLY: dict[str, Any] = {
    "next_observations": None, "observations": None, "actions": None, "rewards": None, "obs_shape": None, "pos": 0,
    "full": False, "n_envs": 2, "device": "cpu", "buffer_size": 8, "observation_space": None, "dones": None,
}  # fmt: skip


@pytest.mark.parametrize("name", EARLY)
@pytest.mark.parametrize("kind", ALL_PAIRS)
def test_attributes_may_be_set_before_the_constructor(kind: str, name: str) -> None:
    class Own(ALL_PAIRS[kind][0]):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            setattr(self, name, EARLY[name])
            super().__init__(*args, **kwargs)

    buffer, expected = new(Own, kind), new(ALL_PAIRS[kind][1], kind)
    for array, part in zip(leaves(buffer.observations), leaves(expected.observations), strict=True):
        assert (array.shape, array.dtype) == (part.shape, part.dtype)
        assert isinstance(array, CompressedArray) == (array.ndim == 5)


@pytest.mark.parametrize("kind", ["replay dict", "dict", "recurrent-dict", "maskable-dict"])
def test_pytorch_maps_trees_of_observations(kind: str) -> None:
    found = []
    for cls in ALL_PAIRS[kind]:
        observations = new(cls, kind).observations
        found.append(_pytree.tree_map(lambda array: (type(np.asarray(array)), array.shape), observations))
        leaves_of, spec = _pytree.tree_flatten(observations)
        assert type(_pytree.tree_unflatten(leaves_of, spec)) is dict
    assert found[0] == found[1]


def test_replay_buffers_keep_compressed_next_observations() -> None:
    buffer = new(CompressedDictReplayBuffer, "replay dict")
    buffer.next_observations = {key: np.array(array) for key, array in buffer.next_observations.items()}
    assert isinstance(buffer.next_observations["cam"], CompressedArray)
