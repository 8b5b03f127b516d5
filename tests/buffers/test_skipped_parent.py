"""Classes that skip their parent: SB3's results, and compressed observations.

Users change the class name in the bases alone (``kept``), or everywhere (``renamed``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from buffer_pairs import REPLAY_PAIRS, ROLLOUT_PAIRS
from gymnasium import spaces
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import DictRolloutBuffer, ReplayBuffer, RolloutBuffer
from support import assert_same_batch, same_draws

from sb3_compressed import CompressedArray, CompressedReplayBuffer, CompressedRolloutBuffer
from sb3_compressed.common.tree_map import leaves, tree_map

IMAGE = spaces.Box(0, 255, (4, 84, 84), np.uint8)
DICT = spaces.Dict(cam=IMAGE, other=IMAGE)
ACTIONS = spaces.Discrete(3)
ROWS = 48
MODES = ["kept", "renamed"]


def observation(space: spaces.Space[Any], step: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: observation(part, step) for key, part in space.items()}
    frames = np.zeros((1, 4, 84, 84), np.uint8)
    for number in range(4):
        frames[:, number, (step + number) % 84] = step + number
    return frames


def assert_equal(ours: Any, theirs: Any) -> None:
    arrays = [*leaves(ours.observations)]
    assert all(isinstance(array, CompressedArray) for array in arrays)
    assert ours.observations_nbytes < 0.2 * sum(array.nbytes for array in leaves(theirs.observations))
    sample = [
        lambda each=each: each.sample(32) if hasattr(each, "dones") else [*each.get(16)] for each in (ours, theirs)
    ]
    batches = same_draws(*sample, seed=0)
    pairs = [batches] if hasattr(ours, "dones") else zip(*batches, strict=True)
    for batch, expected in pairs:
        assert_same_batch(batch, expected)


def own_replay(base: Any, skipped: Any) -> Any:
    class Own(base):  # type: ignore[misc]
        def __init__(
            self, buffer_size: int, observation_space: Any, action_space: Any, *, optimize: bool, given: Any = None
        ) -> None:
            super(skipped, self).__init__(buffer_size, observation_space, action_space, "cpu", n_envs=1)
            self.buffer_size = buffer_size
            self.optimize_memory_usage, self.handle_timeout_termination = optimize, True
            rows, space = (buffer_size, 1), observation_space
            zeros = tree_map(lambda part: np.zeros((*rows, *part.shape), part.dtype), dict(space) if is_dict else space)
            self.observations = zeros
            self.next_observations = None if optimize else tree_map(np.copy, zeros)
            self.actions = np.zeros((*rows, self.action_dim), action_space.dtype)
            self.rewards, self.dones, self.timeouts, self.takeovers = (np.zeros(rows, np.float32) for _ in range(4))

        def add(self, *args: Any) -> None:
            self.takeovers[self.pos] = [info["takeover"] for info in args[-1]]
            super().add(*args)

    is_dict = "Dict" in base.__name__
    return Own


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "optimize"), [("replay", False), ("replay", True), ("dict", False)])
def test_constructors_of_replay_buffers(kind: str, optimize: bool, mode: str) -> None:
    ours, theirs = REPLAY_PAIRS[kind]
    buffers = []
    for base in (ours, theirs):
        cls = own_replay(base, ours if base is ours and mode == "renamed" else ReplayBuffer)
        space = DICT if kind == "dict" else IMAGE
        buffer = cls(ROWS, space, ACTIONS, optimize=optimize)
        for step in range(70):
            both = observation(space, step), observation(space, step + 1)
            buffer.add(*both, np.array([[step % 3]]), np.ones(1), np.array([step % 9 == 8]), [{"takeover": step % 2}])
        buffers.append(buffer)
    assert_equal(*buffers)


NAMES = "rewards", "returns", "episode_starts", "values", "log_probs", "advantages"


def own_rollout(base: Any, skipped: Any, parts: str) -> Any:
    """Return a class that skips its parent in some methods."""

    class Init(base):  # type: ignore[misc]
        def __init__(self, buffer_size: int, space: Any, action_space: Any, device: str = "auto") -> None:
            super(skipped, self).__init__(buffer_size, space, action_space, device, n_envs=1)
            self.gae_lambda, self.gamma, self.generator_ready = 1, 0.99, False
            self.observations, self.actions = None, None
            self.reset()

    class Reset(base):  # type: ignore[misc]
        def reset(self) -> None:
            rows, shapes = (self.buffer_size, self.n_envs), self.obs_shape
            zeros = {key: np.zeros((*rows, *shape), np.uint8) for key, shape in shapes.items()} if is_dict else None
            self.observations = zeros if is_dict else np.zeros((*rows, *shapes), np.uint8)
            self.actions = np.zeros((*rows, self.action_dim), self.action_space.dtype)
            for name in NAMES:
                setattr(self, name, np.zeros(rows, np.float32))
            self.generator_ready = False
            super(skipped, self).reset()

    class Explicit(base):  # type: ignore[misc]
        def reset(self) -> None:
            skipped.reset(self)

        def add(self, *args: Any, **kwargs: Any) -> None:
            skipped.add(self, *args, **kwargs)

    is_dict = "Dict" in base.__name__
    classes = {"init": (Init,), "reset": (Reset,), "both": (Init, Reset), "explicit": (Explicit,)}[parts]
    return type("Own", classes, {})


def rollouts(buffer: Any, **further: Any) -> Any:
    for lap in range(2):
        buffer.reset()
        for step in range(ROWS):
            obs = observation(buffer.observation_space, step + 7 * lap)
            arguments = np.array([[step % 3]]), np.ones(1), np.zeros(1), th.ones(1), th.zeros(1)
            buffer.add(obs, *arguments, **further)
    buffer.compute_returns_and_advantage(th.zeros(1), np.zeros(1))
    return buffer


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("parts", ["init", "reset", "both", "explicit"])
@pytest.mark.parametrize("kind", ["plain", "dict"])
def test_rollout_buffers(kind: str, parts: str, mode: str) -> None:
    ours, theirs = ROLLOUT_PAIRS[kind]
    buffers = []
    for base in (ours, theirs):
        skipped: Any = DictRolloutBuffer if kind == "dict" and parts == "explicit" else RolloutBuffer
        if base is ours and mode == "renamed":
            skipped = ours
        cls = own_rollout(base, skipped, parts)
        buffers.append(rollouts(cls(ROWS, DICT if kind == "dict" else IMAGE, ACTIONS, device="cpu")))
    assert_equal(*buffers)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["maskable", "maskable-dict"])
def test_masks_of_another_size(kind: str, mode: str) -> None:
    ours, theirs = ROLLOUT_PAIRS[kind]
    buffers = []
    for base in (ours, theirs):
        skipped: Any = ours if base is ours and mode == "renamed" else theirs

        def reset(self: Any, skipped: Any = skipped) -> None:
            self.mask_dims = 5
            self.action_masks = np.ones((self.buffer_size, self.n_envs, 5), bool)
            super(skipped, self).reset()

        cls = type("Own", (base,), {"reset": reset})
        buffer = cls(ROWS, DICT if "dict" in kind else IMAGE, ACTIONS, device="cpu")
        buffers.append(rollouts(buffer, action_masks=np.array([[1, 0, 1, 1, 0]])))
    assert_equal(*buffers)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["recurrent", "recurrent-dict"])
def test_states_of_a_users_own(kind: str, mode: str) -> None:
    ours, theirs = ROLLOUT_PAIRS[kind]
    plain, sb3 = ROLLOUT_PAIRS["dict" if "dict" in kind else "plain"]
    states = RNNStates((th.ones(1, 1, 4),) * 2, (th.zeros(1, 1, 4),) * 2)
    buffers = []
    for base in (ours, theirs):
        called: Any = plain if base is ours and mode == "renamed" else sb3

        def reset(self: Any, called: Any = called) -> None:
            called.reset(self)
            for name in ("hidden_states_pi", "cell_states_pi", "hidden_states_vf", "cell_states_vf"):
                setattr(self, name, np.zeros(self.hidden_state_shape, np.float32))

        def add(self: Any, *args: Any, lstm_states: Any, called: Any = called) -> None:
            self.hidden_states_pi[self.pos] = lstm_states.pi[0].numpy()
            called.add(self, *args)

        cls = type("Own", (base,), {"reset": reset, "add": add})
        buffer = cls(ROWS, DICT if "dict" in kind else IMAGE, ACTIONS, (ROWS, 1, 1, 4), device="cpu")
        buffers.append(rollouts(buffer, lstm_states=states))
    assert_equal(*buffers)


@pytest.mark.parametrize("kind", ["plain", "dict", "maskable", "recurrent"])
def test_resets_between_ours_and_sb3s_are_called(kind: str) -> None:
    ours, theirs = ROLLOUT_PAIRS[kind]

    class Counting(theirs):  # type: ignore[misc, valid-type]
        n_resets = 0

        def reset(self) -> None:
            shape = self.obs_shape["cam"] if isinstance(self.obs_shape, dict) else self.obs_shape
            assert shape == IMAGE.shape
            super().reset()
            self.n_resets += 1

    cls = type("Both", (ours, Counting), {})
    further = {"hidden_state_shape": (ROWS, 1, 1, 4)} if kind == "recurrent" else {}
    buffer: Any = cls(ROWS, DICT if kind == "dict" else IMAGE, ACTIONS, device="cpu", **further)
    buffer.reset()
    assert buffer.n_resets == 2
    assert all(isinstance(array, CompressedArray) for array in leaves(buffer.observations))
    buffer.buffer_size = 5
    buffer.reset()
    assert {len(array) for array in leaves(buffer.observations)} == {5}


def test_assigned_zeros_keep_what_was_there_for_those_who_have_it() -> None:
    buffer: Any = CompressedRolloutBuffer(ROWS, IMAGE, ACTIONS, device="cpu")
    rollouts(buffer)
    before = buffer.observations
    expected = np.array(before)
    RolloutBuffer.reset(buffer)
    assert not np.array(buffer.observations).any()
    assert np.array_equal(before, expected)


def test_negative_zeros_are_not_zeros() -> None:
    space = spaces.Box(-1, 1, (4, 20, 20), np.float32)
    buffer = CompressedReplayBuffer(5, space, ACTIONS, device="cpu")
    buffer.observations = np.full((5, 1, 4, 20, 20), -0.0, np.float32)
    assert np.signbit(np.array(buffer.observations)).all()


def test_a_skipped_constructor_has_checkpoints_that_can_be_loaded(tmp_path: Path) -> None:
    buffer = own_replay(CompressedReplayBuffer, ReplayBuffer)(ROWS, IMAGE, ACTIONS, optimize=False)
    for step in range(20):
        both = observation(IMAGE, step), observation(IMAGE, step + 1)
        buffer.add(*both, np.array([[step % 3]]), np.ones(1), np.array([step % 9 == 8]), [{"takeover": 0}])
    buffer.save_checkpoint(tmp_path)
    loaded = CompressedReplayBuffer.from_checkpoint(tmp_path, device="cpu")
    assert_same_batch(*same_draws(lambda: loaded.sample(16), lambda: buffer.sample(16), seed=0))
