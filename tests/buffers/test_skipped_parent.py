"""Classes that skip their parent: SB3's results, and compressed observations.

Users change the class name in the bases alone (``kept``), or everywhere (``renamed``).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from buffer_pairs import REPLAY_PAIRS, ROLLOUT_PAIRS
from gymnasium import spaces
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy
from support import GOALS, add_all, assert_same_batch, recorded, same_draws

from sb3_compressed import CompressedArray, CompressedReplayBuffer, CompressedRolloutBuffer, MixedReplayBuffer
from sb3_compressed.buffers.base import CompressedBuffer
from sb3_compressed.common.tree_map import leaves, tree_map

IMAGE = spaces.Box(0, 255, (4, 84, 84), np.uint8)
DICT = spaces.Dict(cam=IMAGE, other=IMAGE)
ACTIONS = spaces.Discrete(3)
ROWS = 48
#: A user's constructor begins after SB3's ``ReplayBuffer`` or ``RolloutBuffer``, after the class of SB3 or sb3-contrib
#: from which it was derived, or after ours in its place.
MODES = ["kept", "parent", "renamed"]


def modes_of(kinds: Iterable[str]) -> list[tuple[str, str]]:
    """Return the kinds of buffers with their modes; SB3's own Dict classes cannot skip theirs alone."""
    return [(kind, mode) for kind in kinds for mode in MODES if (kind, mode) != ("dict", "parent")]


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
    """Return a class whose constructor skips some, and allocates the arrays itself."""
    is_her = "Her" in base.__name__

    class Own(base):  # type: ignore[misc]
        def __init__(
            self,
            buffer_size: int,
            observation_space: Any,
            action_space: Any,
            *,
            optimize: bool = False,
            env: Any = None,
            **options: Any,
        ) -> None:
            if is_her and issubclass(skipped, CompressedBuffer):
                options["env"] = env
            super(skipped, self).__init__(buffer_size, observation_space, action_space, device="cpu", **options)
            n_envs = self.n_envs
            self.buffer_size = buffer_size // n_envs
            self.optimize_memory_usage, self.handle_timeout_termination = optimize, True
            rows, space = (self.buffer_size, n_envs), observation_space
            space = dict(space) if isinstance(space, spaces.Dict) else space
            zeros = tree_map(lambda part: np.zeros((*rows, *part.shape), part.dtype), space)
            self.observations = zeros
            self.next_observations = None if optimize else tree_map(np.copy, zeros)
            self.actions = np.zeros((*rows, self.action_dim), action_space.dtype)
            self.rewards, self.dones, self.timeouts, self.takeovers = (np.zeros(rows, np.float32) for _ in range(4))
            self.n_steps, self.gamma = 3, 0.99
            if not is_her:
                return
            self.env, self.copy_info_dict, self.goal_selection_strategy = env, False, GoalSelectionStrategy.FUTURE
            self.n_sampled_goal, self.her_ratio = 4, 0.8
            self.ep_start, self.ep_length = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
            self._current_ep_start = np.zeros(n_envs, np.int64)

        def add(self, *args: Any) -> None:
            self.takeovers[self.pos] = [info.get("takeover", 0) for info in args[-1]]
            super().add(*args)

    return Own


def skipped_by(mode: str, base: Any, ours: Any, theirs: Any, root: Any) -> Any:
    """Return the class after which a user's constructor begins."""
    if mode == "renamed" and base is ours:
        return ours
    return theirs if mode == "parent" else root


@pytest.mark.parametrize(
    ("kind", "mode", "optimize"),
    [(*each, False) for each in modes_of(["replay", "dict", "n-step"])] + [("replay", mode, True) for mode in MODES],
)
def test_constructors_of_replay_buffers(kind: str, optimize: bool, mode: str) -> None:
    ours, theirs = REPLAY_PAIRS[kind]
    buffers = []
    for base in (ours, theirs):
        cls = own_replay(base, skipped_by(mode, base, ours, theirs, ReplayBuffer))
        space = DICT if kind == "dict" else IMAGE
        buffer = cls(ROWS, space, ACTIONS, optimize=optimize)
        for step in range(70):
            both = observation(space, step), observation(space, step + 1)
            buffer.add(*both, np.array([[step % 3]]), np.ones(1), np.array([step % 9 == 8]), [{"takeover": step % 2}])
        buffers.append(buffer)
    assert_equal(*buffers)
    np.testing.assert_array_equal(*[buffer.takeovers for buffer in buffers])


@pytest.mark.parametrize("mode", MODES)
def test_constructors_of_hindsight_replay(mode: str) -> None:
    ours, theirs = REPLAY_PAIRS["her"]
    space, actions, n_envs, transitions = recorded("bits")
    env = GOALS["bits"]()
    env.reset()
    buffers = []
    for base in (ours, theirs):
        cls = own_replay(base, skipped_by(mode, base, ours, theirs, ReplayBuffer))
        buffers.append(cls(100 * n_envs, space, actions, env=env, n_envs=n_envs))
    add_all(transitions[:150], *buffers)
    assert any(isinstance(array, CompressedArray) for array in leaves(buffers[0].observations))
    assert_same_batch(*same_draws(*[partial(buffer.sample, 64) for buffer in buffers], seed=0))


@pytest.mark.parametrize("kind", ["replay", "n-step", "dict"])
def test_constructors_with_a_sampler(kind: str) -> None:
    [ours, _], space = REPLAY_PAIRS[kind], DICT if kind == "dict" else IMAGE
    with pytest.raises(TypeError, match="skips the constructor that takes sampler"):
        own_replay(ours, ReplayBuffer)(ROWS, space, ACTIONS, sampler="prioritized")
    buffers = [cls(ROWS, space, ACTIONS, sampler="prioritized") for cls in (own_replay(ours, ours), ours)]
    batches = []
    for buffer in buffers:
        for step in range(70):
            both = observation(space, step), observation(space, step + 1)
            buffer.add(*both, np.array([[step % 3]]), np.ones(1), np.array([step % 9 == 8]), [{}])
        [first] = same_draws(partial(buffer.sample, 32), seed=0)
        buffer.update_priorities(first.indices, 1.0 + first.indices)
        batches.append(same_draws(partial(buffer.sample, 32), seed=1)[0])
    assert len({*batches[0].weights.flatten().tolist()}) > 1
    assert_same_batch(*batches)


@pytest.mark.parametrize("mode", MODES)
def test_buffers_of_a_mix(mode: str) -> None:
    ours, theirs = REPLAY_PAIRS["replay"]
    mixed = []
    for base in (ours, theirs):
        cls = own_replay(base, skipped_by(mode, base, ours, theirs, ReplayBuffer))
        buffers = [cls(ROWS, IMAGE, ACTIONS) for _ in range(2)]
        for step in range(70):
            both = observation(IMAGE, step), observation(IMAGE, step + 1)
            buffers[step % 2].add(*both, np.array([[step % 3]]), np.ones(1), np.array([step % 9 == 8]), [{}])
        mixed.append(MixedReplayBuffer.from_buffers(buffers, [3, 1]))
    ours_mixed, theirs_mixed = same_draws(*[partial(each.sample, 32) for each in mixed], seed=0)
    assert_same_batch(ours_mixed, theirs_mixed)


@pytest.mark.parametrize("skipped", [ReplayBuffer, MixedReplayBuffer])
def test_the_constructor_of_a_mix_cannot_be_skipped(skipped: Any) -> None:
    with pytest.raises(TypeError, match="from_buffers"):
        own_replay(MixedReplayBuffer, skipped)(ROWS, IMAGE, ACTIONS)


NAMES = "rewards", "returns", "episode_starts", "values", "log_probs", "advantages"
STATES = "hidden_states_pi", "cell_states_pi", "hidden_states_vf", "cell_states_vf"
HIDDEN_SHAPE = ROWS, 1, 1, 4
#: Further arguments of ``add``.
FURTHER: dict[str, dict[str, Any]] = {
    "maskable": {"action_masks": np.array([[1, 0, 1]])},
    "recurrent": {"lstm_states": RNNStates((th.ones(1, 1, 4), th.ones(1, 1, 4)), (th.zeros(1, 1, 4),) * 2)},
}


def own_rollout(base: Any, skipped: Any, parts: str) -> Any:
    """Return a class that skips its parent in some methods."""

    class Init(base):  # type: ignore[misc]
        def __init__(
            self, buffer_size: int, space: Any, action_space: Any, hidden_state_shape: Any = None, device: str = "auto"
        ) -> None:
            takes_shape = is_recurrent and issubclass(skipped, CompressedBuffer)
            options = {"hidden_state_shape": hidden_state_shape} if takes_shape else {}
            self.hidden_state_shape = hidden_state_shape  # before SB3's constructor, which calls reset()
            super(skipped, self).__init__(buffer_size, space, action_space, device=device, n_envs=1, **options)
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
            for name in STATES if is_recurrent else ():
                setattr(self, name, np.zeros(self.hidden_state_shape, np.float32))
            self.mask_dims = self.action_space.n
            self.action_masks = np.ones((*rows, self.mask_dims), np.float32)
            self.generator_ready = False
            super(skipped, self).reset()

    class Explicit(base):  # type: ignore[misc]
        def reset(self) -> None:
            skipped.reset(self)

        def add(self, *args: Any, **kwargs: Any) -> None:
            skipped.add(self, *args, **kwargs)

    is_dict, is_recurrent = "Dict" in base.__name__, "Recurrent" in base.__name__
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


@pytest.mark.parametrize("parts", ["init", "reset", "both", "explicit"])
@pytest.mark.parametrize(("kind", "mode"), modes_of(ROLLOUT_PAIRS))
def test_rollout_buffers(kind: str, parts: str, mode: str) -> None:
    (ours, theirs), algorithm = ROLLOUT_PAIRS[kind], kind.removesuffix("-dict")
    buffers = []
    for base in (ours, theirs):
        # Methods that are called explicitly must take masks, states or dicts.
        skipped = skipped_by(mode, base, ours, theirs, theirs if parts == "explicit" else RolloutBuffer)
        cls, options = own_rollout(base, skipped, parts), {}
        if algorithm == "recurrent":
            options = {"hidden_state_shape": HIDDEN_SHAPE}
        buffer = cls(ROWS, DICT if "dict" in kind else IMAGE, ACTIONS, device="cpu", **options)
        buffers.append(rollouts(buffer, **FURTHER.get(algorithm, {})))
    assert_equal(*buffers)


@pytest.mark.parametrize("mode", ["kept", "renamed"])
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


@pytest.mark.parametrize("mode", ["kept", "renamed"])
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
