"""``reset`` after sizes or spaces were changed: rollout buffers allocate anew as SB3's, replay buffers keep arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from buffer_pairs import REPLAY_PAIRS, ROLLOUT_PAIRS, SB3_OPTIMIZED
from gymnasium import spaces
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3 import PPO
from support import assert_same_batch, same_draws

from sb3_compressed import CompressedArray, CompressedReplayBuffer, CompressedRolloutBuffer, StorageError
from sb3_compressed.common.tree_map import leaves

IMAGE = spaces.Box(0, 255, (4, 84, 84), np.uint8)
VECTOR = spaces.Box(-1, 1, (3,), np.float32)
SPACES = {False: IMAGE, True: spaces.Dict(cam=IMAGE, vec=VECTOR)}
ACTIONS = spaces.Discrete(3)


def observation(space: spaces.Space[Any], n_envs: int, step: int) -> Any:
    """Return observations in which each environment and step has another number."""
    if isinstance(space, spaces.Dict):
        return {key: observation(part, n_envs, step) for key, part in space.items()}
    numbers = (np.arange(n_envs) * 50 + step + 1).reshape(n_envs, *[1] * len(space.shape or ()))
    return np.broadcast_to(numbers, (n_envs, *(space.shape or ()))).astype(space.dtype)


def states(n_envs: int) -> RNNStates:
    return RNNStates((th.ones(1, n_envs, 4),) * 2, (th.zeros(1, n_envs, 4),) * 2)


def rollout(buffer: Any, n_steps: int) -> None:
    n_envs = buffer.n_envs
    further = {"lstm_states": states(n_envs)} if hasattr(buffer, "hidden_state_shape") else {}
    if hasattr(buffer, "mask_dims"):
        further = {"action_masks": np.eye(buffer.mask_dims)[np.arange(n_envs) % buffer.mask_dims]}
    for step in range(n_steps):
        numbers = np.full(n_envs, float(step))
        arguments = np.full((n_envs, 1), step % 3), numbers, np.zeros(n_envs), th.tensor(numbers), th.zeros(n_envs)
        buffer.add(observation(buffer.observation_space, n_envs, step), *arguments, **further)
    buffer.compute_returns_and_advantage(th.zeros(n_envs), np.zeros(n_envs))


def new_rollout(cls: Any, kind: str, n_envs: int = 2) -> Any:
    further = {"hidden_state_shape": (10, 1, n_envs, 4)} if "recurrent" in kind else {}
    return cls(10, SPACES["dict" in kind], ACTIONS, device="cpu", n_envs=n_envs, **further)


def set_sizes(buffer: Any, rows: int, n_envs: int) -> None:
    buffer.buffer_size, buffer.n_envs = rows, n_envs
    if hasattr(buffer, "hidden_state_shape"):
        buffer.hidden_state_shape = (rows, 1, n_envs, 4)


def set_space(buffer: Any, space: spaces.Space[Any]) -> None:
    is_dict = isinstance(buffer.observation_space, spaces.Dict)
    buffer.observation_space = spaces.Dict(cam=space, vec=VECTOR) if is_dict else space
    buffer.obs_shape = {"cam": space.shape, "vec": VECTOR.shape} if is_dict else space.shape


CHANGES: dict[str, Callable[[Any], Any]] = {
    "fewer rows": lambda buffer: set_sizes(buffer, 6, 2),
    "more rows": lambda buffer: set_sizes(buffer, 20, 2),
    "fewer environments": lambda buffer: set_sizes(buffer, 10, 1),
    "both": lambda buffer: set_sizes(buffer, 5, 4),
    "another shape": lambda buffer: set_space(buffer, spaces.Box(0, 255, (1, 40, 40), np.uint8)),
    "another dtype": lambda buffer: set_space(buffer, spaces.Box(0, 1, (4, 84, 84), np.float32)),
    "not a picture": lambda buffer: set_space(buffer, VECTOR),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ROLLOUT_PAIRS)
def test_rollouts_have_the_present_sizes_and_space(kind: str, change: str) -> None:
    buffers = [new_rollout(cls, kind) for cls in ROLLOUT_PAIRS[kind]]
    for buffer in buffers:
        rollout(buffer, 10)
        [*buffer.get(8)]
        CHANGES[change](buffer)
        buffer.reset()
        rollout(buffer, buffer.buffer_size)
    ours, theirs = buffers
    for array, expected in zip(leaves(ours.observations), leaves(theirs.observations), strict=True):
        assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
        assert isinstance(array, CompressedArray) == (array.ndim > 3)
    batches = same_draws(lambda: [*ours.get(8)], lambda: [*theirs.get(8)], seed=0)
    for batch, expected in zip(*batches, strict=True):
        assert_same_batch(batch, expected)


@pytest.mark.parametrize("kind", ["plain", "maskable"])
def test_another_action_space(kind: str) -> None:
    found = []
    for cls in ROLLOUT_PAIRS[kind]:
        buffer = new_rollout(cls, kind)
        buffer.action_space = spaces.MultiDiscrete([2, 3])
        buffer.action_dim = 2
        buffer.reset()
        found.append([buffer.actions.shape, buffer.actions.dtype, getattr(buffer, "mask_dims", None)])
    assert found[0] == found[1]


class Images(gym.Env[Any, Any]):
    """Random images."""

    observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = spaces.Discrete(2)
    rng = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin anew."""
        self.rng = np.random.default_rng(0)
        return self.rng.integers(0, 255, (36, 36, 1), np.uint8), {}

    def step(self, action: Any) -> Any:
        """Return the next image."""
        return self.rng.integers(0, 255, (36, 36, 1), np.uint8), 1.0, False, False, {}


def test_weights_of_a_model_with_another_n_steps_are_those_with_sb3s_buffer() -> None:
    weights = []
    for cls in (None, CompressedRolloutBuffer):
        model = PPO(
            "CnnPolicy", Images(), n_steps=32, batch_size=16, n_epochs=1, seed=0, device="cpu", rollout_buffer_class=cls
        )
        model.learn(32)
        model.n_steps = model.rollout_buffer.buffer_size = 64
        model.rollout_buffer.reset()
        model.learn(64)
        weights.append(th.cat([part.flatten() for part in model.policy.parameters()]))
    assert th.equal(*weights)


def replay(cls: Any, space: spaces.Space[Any] = IMAGE, n_envs: int = 2, **options: Any) -> Any:
    return cls(20, space, ACTIONS, device="cpu", n_envs=n_envs, **options)


def fill(buffer: Any, n_steps: int) -> None:
    n_envs, space = buffer.n_envs, buffer.observation_space
    for step in range(n_steps):
        arguments = np.full((n_envs, 1), step % 3), np.full(n_envs, step), np.full(n_envs, step % 5 == 4)
        buffer.add(observation(space, n_envs, step), observation(space, n_envs, step + 1), *arguments, [{}] * n_envs)


@pytest.mark.parametrize("position", [-2, 8])
def test_positions_outside_of_the_rows_are_sb3s(position: int) -> None:
    buffers = [replay(cls) for cls in REPLAY_PAIRS["replay"]]
    for buffer in buffers:
        fill(buffer, 9)
        buffer.buffer_size, buffer.pos = 5, position
        fill(buffer, 1)
    assert buffers[0].pos == buffers[1].pos
    np.testing.assert_array_equal(buffers[0].observations[:], buffers[1].observations)


@pytest.mark.parametrize("kind", ["replay", "n-step", "dict", "optimized"])
def test_replay_buffers_use_fewer_rows_as_sb3s(kind: str) -> None:
    options = SB3_OPTIMIZED if kind == "optimized" else {}
    pair = REPLAY_PAIRS["replay" if kind == "optimized" else kind]
    ours, theirs = (replay(cls, SPACES[kind == "dict"], **options) for cls in pair)
    for buffer in (ours, theirs):
        fill(buffer, 7)
        buffer.buffer_size = 4
        buffer.reset()
        fill(buffer, 12)
    assert_same_batch(*same_draws(lambda: ours.sample(40), lambda: theirs.sample(40), seed=0))


@pytest.mark.parametrize(
    ("sizes", "options"), [((20, 2), {}), ((4, 2), {"sampler": "prioritized"}), ((10, 1), {}), ((10, 4), {})]
)
def test_sizes_that_the_arrays_of_a_replay_buffer_do_not_have_raise(sizes: Any, options: dict[str, Any]) -> None:
    buffer = replay(CompressedReplayBuffer, **options)
    fill(buffer, 7)
    buffer.buffer_size, buffer.n_envs = sizes
    with pytest.raises(ValueError, match="create a new buffer"):
        buffer.reset()


@pytest.mark.parametrize("call", [lambda buffer: buffer.sample(4), lambda buffer: buffer.sample_sequences(2, 3)])
def test_another_number_of_environments_raises_at_samples(call: Callable[[Any], Any]) -> None:
    # Flat indices would be those of other transitions.
    buffer = replay(CompressedReplayBuffer)
    fill(buffer, 7)
    buffer.n_envs = 1
    with pytest.raises(ValueError, match="n_envs"):
        call(buffer)


def test_a_folder_keeps_its_size(tmp_path: Path) -> None:
    buffer = replay(CompressedReplayBuffer, storage=tmp_path)
    fill(buffer, 7)
    buffer.buffer_size = 4
    with pytest.raises(ValueError, match="buffer_size"):
        buffer.reset()
    # Otherwise the ring would be full when its last row is written, and resumed with unwritten ones.
    for write in (lambda: fill(buffer, 1), buffer.flush, lambda: buffer.joint_commit(2).__enter__()):
        with pytest.raises(StorageError, match="buffer_size was changed to 4"):
            write()
    buffer.buffer_size = 10
    fill(buffer, 1)
    buffer.close()


def test_a_changed_size_is_not_saved(tmp_path: Path) -> None:
    buffer = replay(CompressedReplayBuffer)
    fill(buffer, 7)
    buffer.buffer_size = 8
    with pytest.raises(StorageError, match="buffer_size was changed to 8 rows, and the arrays have 10"):
        buffer.save_checkpoint(tmp_path)
