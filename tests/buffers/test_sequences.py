"""``sample_sequences`` returns consecutive transitions as they were added, for every class, padding and output."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch as th
from drawn_examples import examples
from gathering import damage
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from support import ImageEnv, Transition, n_episode_ends

from sb3_compressed import (
    BufferNotReady,
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    CorruptPayload,
)
from sb3_compressed.samplers import PrioritizedSampler
from sb3_compressed.samplers.sequence_draw import Pad

PADS = get_args(Pad)
ROWS, N_ENVS, N_STACK = 60, 3, 4
FRAME = (6, 10)
ACTIONS = spaces.Box(-1e6, 1e6, (2,), np.float32)
VECTOR = spaces.Box(-np.inf, np.inf, (5,), np.float32)
STACK = spaces.Box(0, 255, (N_STACK, *FRAME), np.uint8)
RGB_STACK = spaces.Box(0, 255, (3 * N_STACK, *FRAME), np.uint8)
SPACES: dict[str, spaces.Space[Any]] = {
    "vector": VECTOR,
    "stack": STACK,
    "channel-last": spaces.Box(0, 255, (*FRAME, N_STACK), np.uint8),
    "rgb": RGB_STACK,
    "rgb-channel-last": spaces.Box(0, 255, (*FRAME, 3 * N_STACK), np.uint8),
    "image": spaces.Box(0, 255, (3, 6, 10), np.uint8),
    "dict": spaces.Dict({"screen": STACK, "vector": VECTOR}),
    "her": spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), VECTOR)),
}


class CountingEnv:
    """Environments whose transitions are numbered, with episodes of random lengths and stacks that begin with zeros.

    :param longest: the most steps of an episode
    :param is_still: whether most frames repeat the one before
    """

    def __init__(
        self, space: spaces.Space[Any], seed: int = 0, longest: int = 12, n_envs: int = N_ENVS, is_still: bool = False
    ) -> None:
        self.space, self.n_envs, self.longest, self.is_still = space, n_envs, longest, is_still
        self.rng = np.random.default_rng(seed)
        self.frames = np.zeros((n_envs, N_STACK, 3, *FRAME), np.uint8)
        for env in range(n_envs):
            self.reset(env)
        self.remaining = self.rng.integers(1, longest + 1, n_envs)
        self.n = 0

    def reset(self, env: int) -> None:
        """Begin an episode."""
        self.frames[env] = 0
        self.push(env)

    def push(self, env: int) -> None:
        """Add a frame to the stack."""
        self.frames[env, :-1] = self.frames[env, 1:]
        if not self.is_still or self.rng.random() < 0.2:
            self.frames[env, -1] = self.rng.integers(0, 256, self.frames.shape[2:])

    def observe(self, space: spaces.Space[Any] | None = None) -> Any:
        """Return the observations of all environments."""
        space = space or self.space
        if isinstance(space, spaces.Dict):
            return {key: self.observe(part) for key, part in space.spaces.items()}
        if space == VECTOR:
            return self.frames[:, -1].reshape(self.n_envs, -1)[:, :5].astype(np.float32) / np.float32(7)
        if space.shape == (3, *FRAME):
            return self.frames[:, -1].copy()
        is_rgb = 3 * N_STACK in (space.shape or ())
        stacks = self.frames.reshape(self.n_envs, -1, *FRAME) if is_rgb else self.frames[:, :, 0]
        return stacks.copy() if space in (STACK, RGB_STACK) else np.ascontiguousarray(np.moveaxis(stacks, 1, -1))

    def steps(self, n_steps: int) -> Iterator[Transition]:
        """Yield the next transitions."""
        for _ in range(n_steps):
            obs = self.observe()
            for env in range(self.n_envs):
                self.push(env)
            next_obs = self.observe()
            self.remaining -= 1
            done = self.remaining == 0
            infos = [{"TimeLimit.truncated": bool(done[env] and self.n % 2)} for env in range(self.n_envs)]
            for env in np.flatnonzero(done).tolist():
                self.reset(env)
                self.remaining[env] = self.rng.integers(1, self.longest + 1)
            numbers = self.n * self.n_envs + np.arange(self.n_envs)
            self.n += 1
            yield Transition(obs, next_obs, np.stack([numbers, -numbers], 1), numbers + 0.5, done, infos)


def seeded_sequences(buffer: Any, *args: Any, seed: int = 0, **options: Any) -> Any:
    """Return sequences that are drawn with the random numbers of a seed, as NumPy has them."""
    np.random.seed(seed)  # noqa: NPY002  # what buffers draw from
    return buffer.sample_sequences(*args, **options)


def class_of(name: str) -> Any:
    if name == "her":
        return CompressedHerReplayBuffer
    return CompressedDictReplayBuffer if isinstance(SPACES[name], spaces.Dict) else CompressedReplayBuffer


def fill(name: str, n_added: int, cls: Any = None, seed: int = 0, **options: Any) -> tuple[Any, list[Transition]]:
    """Return a buffer of ``ROWS`` rows and the transitions that were added to it."""
    space = SPACES[name]
    if name == "her":
        options["env"] = None
    elif name != "vector" and "frame_stack" not in options:
        is_dict, n_frames = isinstance(space, spaces.Dict), None if name == "image" else N_STACK
        options.update(frame_stack={"screen": n_frames} if is_dict else n_frames, compression_method="delta")
        if is_dict:
            options["compression_method"] = {"screen": "delta"}
    env = CountingEnv(space, seed, **{key: options.pop(key) for key in ("longest", "is_still") if key in options})
    buffer = (cls or class_of(name))(ROWS * N_ENVS, space, ACTIONS, device="cpu", n_envs=N_ENVS, **options)
    transitions = list(env.steps(n_added))
    for transition in transitions:
        transition.add_to(buffer)
    return buffer, transitions


def assert_sequences(
    samples: Any,
    transitions: list[Transition],
    oldest: int,
    length: int,
    burn_in: int = 0,
    pad: str = "none",
) -> None:
    """Assert that a batch consists of sequences of the transitions, computed one step at a time.

    :param oldest: the number of the oldest transition that is in the buffer
    """
    time = burn_in + length
    batch_size = len(samples.indices)
    assert samples.indices.dtype == np.int64
    assert samples.mask.shape == samples.rewards.shape == samples.dones.shape == (batch_size, time)
    assert samples.actions.shape == (batch_size, time, 2)
    keys = [*samples.observations] if isinstance(samples.observations, dict) else [None]

    def tensor(name: str, key: str | None) -> Any:
        found = getattr(samples, name)
        return found if key is None else found[key]

    for number, index in enumerate(samples.indices.tolist()):
        env = index % N_ENVS
        [anchor] = [step for step in range(oldest, len(transitions)) if step % ROWS == index // N_ENVS]
        steps: list[int | None] = []
        for position in range(anchor - burn_in, anchor + length):
            low, high = min(position, anchor), max(position, anchor)
            is_inside = low >= oldest and high < len(transitions)
            steps.append(position if is_inside and not any(t.done[env] for t in transitions[low:high]) else None)
        assert samples.mask[number].tolist() == [step is not None for step in steps]
        if pad == "none":
            assert None not in steps[burn_in:]
        real = [at for at, step in enumerate(steps) if step is not None]
        first, last = min(real), max(real)
        for at, step in enumerate(steps):
            if step is None:
                for name in ("actions", "rewards", "dones"):
                    assert not getattr(samples, name)[number, at].any()
                for key in keys:
                    assert at == last + 1 or not tensor("observations", key)[number, at].any()
                    assert at == first - 1 or not tensor("next_observations", key)[number, at].any()
                continue
            transition = transitions[step]
            timeout = transition.infos[env]["TimeLimit.truncated"]
            assert samples.rewards[number, at] == np.float32(transition.reward[env])
            assert samples.dones[number, at] == (transition.done[env] and not timeout)
            np.testing.assert_array_equal(samples.actions[number, at], transition.action[env].astype(np.float32))
            for key in keys:
                both = transition.obs, transition.next_obs
                obs, next_obs = ((each if key is None else each[key])[env] for each in both)
                np.testing.assert_array_equal(tensor("observations", key)[number, at], obs)
                np.testing.assert_array_equal(tensor("next_observations", key)[number, at], next_obs)
                np.testing.assert_array_equal(tensor("all_observations", key)[number, at], obs)
                np.testing.assert_array_equal(tensor("all_observations", key)[number, at + 1], next_obs)


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in SPACES},
    "zstd": ("stack", {"compression_method": "zstd3", "frame_stack": N_STACK}),
    "none": ("channel-last", {"compression_method": "none", "frame_stack": N_STACK}),
    "auto": ("stack", {"compression_method": "auto"}),
    "wide": ("stack", {"compression_method": "delta", "frame_stack": N_STACK, "dtypes": np.uint16}),
    "n-step": ("stack", {"cls": CompressedNStepReplayBuffer, "n_steps": 3, "gamma": 0.9}),
}


@pytest.mark.filterwarnings("ignore:.* times:UserWarning")  # of wide
@pytest.mark.parametrize("kind", KINDS)
def test_sequences_are_the_transitions_that_were_added(kind: str) -> None:
    name, options = KINDS[kind]
    for n_steps in (13, 2 * ROWS + 17):
        buffer, transitions = fill(name, n_steps, **options)
        assert n_episode_ends(transitions) >= 3
        for pad in PADS:
            kept = []
            for length, burn_in, stride in ((1, 0, 1), (4, 0, 1), (5, 3, 2)):
                samples = seeded_sequences(buffer, 6, length, burn_in, stride, pad, seed=n_steps)
                kept.append((samples, length, burn_in))
            for samples, length, burn_in in kept:  # whose memory is not shared
                oldest = max(n_steps - ROWS, 0)
                assert_sequences(samples, transitions, oldest, length, burn_in, pad)


@given(
    shape=st.tuples(st.integers(1, 8), st.integers(0, 5), st.integers(1, 6), st.sampled_from(PADS)),
    n_steps=st.integers(8, 3 * ROWS),
    longest=st.integers(1, 30),
    is_still=st.booleans(),
    seed=st.integers(0, 1000),
)
@examples(40)
def test_any_sequences_of_stacks_are_the_transitions_that_were_added(
    shape: tuple[int, int, int, Pad], n_steps: int, longest: int, is_still: bool, seed: int
) -> None:
    buffer, transitions = fill("stack", n_steps, seed=seed, longest=longest, is_still=is_still)
    length, burn_in, _, pad = shape
    try:
        samples = seeded_sequences(buffer, 9, *shape, seed=seed)
    except BufferNotReady:
        assert pad == "none"
        return
    assert_sequences(samples, transitions, max(n_steps - ROWS, 0), length, burn_in, pad)


@pytest.mark.parametrize("name", ["vector", "stack"])
def test_next_observations_that_are_not_the_following_observations_are_returned(name: str) -> None:
    buffer, transitions = fill(name, 40)
    rng = np.random.default_rng(0)
    for step in range(10, 40):  # as an agent that was reset without the end of an episode
        changed = rng.integers(0, 256, transitions[step].next_obs.shape).astype(transitions[step].next_obs.dtype)
        transitions[step].next_obs = changed
        buffer.next_observations[step] = changed
    samples = buffer.sample_sequences(20, 4, 1, pad="end")
    for number, index in enumerate(samples.indices.tolist()):
        row, env = divmod(index, N_ENVS)
        np.testing.assert_array_equal(samples.next_observations[number, 1], transitions[row].next_obs[env])
        np.testing.assert_array_equal(samples.observations[number, 1], transitions[row].obs[env])
        assert not samples.next_observations[number][~samples.mask[number]].any()


@pytest.mark.parametrize("name", ["vector", "stack"])
def test_next_observations_can_be_omitted(name: str) -> None:
    buffer, _ = fill(name, 100)
    samples = seeded_sequences(buffer, 10, 4, next_observations=False)
    assert samples.next_observations is None
    assert samples.all_observations is None
    assert samples.observations.is_contiguous()
    assert th.equal(seeded_sequences(buffer, 10, 4).observations, samples.observations)


def test_unknown_time_limits_warn() -> None:
    message = "does not know where time limits end episodes"
    buffer, _ = fill("vector", 20, handle_timeout_termination=False)
    with pytest.warns(UserWarning, match=f"{message}: sequences continue"):
        buffer.sample_sequences(4, 4)
    space = spaces.Box(0, 1, (3,))
    with pytest.warns(UserWarning, match=f"{message}: n-step returns continue"):
        CompressedNStepReplayBuffer(8, space, space, "cpu", n_steps=3, handle_timeout_termination=False)


@pytest.mark.parametrize("handles_timeouts", [False, True])
@pytest.mark.parametrize("name", ["vector", "stack"])
@pytest.mark.filterwarnings("ignore:.* time limits:UserWarning")
def test_optimize_memory_usage_returns_the_same_sequences(name: str, handles_timeouts: bool) -> None:
    options = {"optimize_memory_usage": True, "handle_timeout_termination": handles_timeouts}
    for n_steps in (20, 2 * ROWS + 11):
        buffer, transitions = fill(name, n_steps, **options)
        assert hasattr(buffer, "next_observations") == handles_timeouts
        if not handles_timeouts:
            for transition, following in pairwise(transitions):  # of the next episode after the end of one, as in SB3
                transition.next_obs = following.obs
            for transition in transitions:
                transition.infos = [{"TimeLimit.truncated": False}] * N_ENVS
        oldest = max(n_steps - ROWS + (not handles_timeouts), 0)  # SB3 reserves one row
        assert_sequences(buffer.sample_sequences(48, 4, 2, pad="end"), transitions, oldest, 4, 2, "end")


def test_folders_followers_and_copies_return_the_same_sequences(tmp_path: Path) -> None:
    buffer, transitions = fill("stack", 2 * ROWS + 5, storage=tmp_path / "buffer")
    buffer.save_checkpoint(tmp_path / "copy")
    follower = CompressedReplayBuffer.from_checkpoint(tmp_path / "buffer", follow=True, device="cpu")
    loaded = CompressedReplayBuffer.from_checkpoint(tmp_path / "copy", device="cpu")
    for each in (buffer, follower, loaded):
        assert_sequences(each.sample_sequences(16, 4, 2, pad="end"), transitions, ROWS + 5, 4, 2, "end")
    buffer.close()


@pytest.mark.parametrize("name", ["vector", "dict"])
def test_vec_normalize_normalizes_sequences_and_not_their_padding(name: str) -> None:
    buffer, _ = fill(name, 100)
    keys = ["vector"] if name == "dict" else None
    env = VecNormalize(DummyVecEnv([lambda: ImageEnv(SPACES[name], ACTIONS)]), norm_obs_keys=keys)
    env.ret_rms.var = np.array(4.0)
    rms: Any = env.obs_rms["vector"] if isinstance(env.obs_rms, dict) else env.obs_rms
    rms.mean, rms.var = np.full(5, 3.0), np.full(5, 2.0)
    raw = seeded_sequences(buffer, 16, 6, 2, pad="end")
    normalized = seeded_sequences(buffer, 16, 6, 2, pad="end", env=env)
    assert not raw.mask.all()
    for field in ("observations", "next_observations"):
        ours, theirs = getattr(normalized, field), getattr(raw, field)
        if name == "dict":
            assert th.equal(ours["screen"], theirs["screen"])
            ours, theirs = ours["vector"], theirs["vector"]
        expected = env.normalize_obs({"vector": theirs.numpy()} if name == "dict" else theirs.numpy())
        expected = expected["vector"] if name == "dict" else expected
        np.testing.assert_array_equal(ours[raw.mask], expected[raw.mask])
        assert not ours[~raw.mask & ~(theirs != 0).any(-1)].any()
    np.testing.assert_array_equal(normalized.rewards[raw.mask], env.normalize_reward(raw.rewards.numpy())[raw.mask])
    assert not normalized.rewards[~raw.mask].any()


def test_output_format_applies_to_sequences() -> None:
    expected = seeded_sequences(fill("stack", 100)[0], 16, 6)
    for options in ({"output_dtype": "float"}, {"normalize_images": True}):
        samples = seeded_sequences(fill("stack", 100, **options)[0], 16, 6)
        for field in ("observations", "next_observations"):
            tensor = getattr(expected, field).float()
            assert th.equal(getattr(samples, field), tensor / 255 if "normalize_images" in options else tensor)


def test_damaged_payload_is_an_error_that_names_its_slot() -> None:
    buffer, _ = fill("stack", ROWS, longest=1000, compression_method="zstd3", frame_stack=N_STACK)
    damage(buffer.observations, 30, 1)
    with pytest.raises(CorruptPayload) as caught:
        buffer.sample_sequences(2000, 30, next_observations=False)
    assert caught.value.slot == (30, 1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 4), ValueError, "batch_size"),
        ((4, 0), ValueError, "length"),
        ((4, 4, -1), ValueError, "burn_in"),
        ((4, 4, 0, 0), ValueError, "stride"),
        ((4, 2.0), TypeError, "length"),
        ((4, 4, 0, 1, "both"), ValueError, "pad"),
        ((4, 4, 0, 1, "start"), ValueError, "pad"),
        ((4, 61), BufferNotReady, "61"),
        ((4, 61, 0, 1, "end"), ValueError, "61"),
        ((4, 4, 10**9), ValueError, "1000000000"),
        ((4, 14), BufferNotReady, "14"),
    ],
)
def test_impossible_requests_are_errors(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    buffer, _ = fill("vector", 2 * ROWS)
    with pytest.raises(error, match=message):
        buffer.sample_sequences(*arguments)


def single_episodes(sampler: Any, lengths: list[int]) -> CompressedReplayBuffer:
    """Return a buffer with episodes of these lengths."""
    buffer = CompressedReplayBuffer(sum(lengths), VECTOR, spaces.Discrete(2), "cpu", sampler=sampler)
    zeros = np.zeros((1, 5), np.float32)
    for length in lengths:
        for step in range(length):
            done = np.array([step == length - 1])
            buffer.add(zeros, zeros, np.zeros((1, 1), np.int64), np.zeros(1), done, [{}])
    return buffer


@pytest.mark.parametrize(("length", "stride", "pad"), [(80, 1, "none"), (40, 40, "none"), (8, 4, "end")])
def test_sequences_are_drawn_after_their_priorities_became_small(length: int, stride: int, pad: Pad) -> None:
    # Other transitions keep the priority of new ones.
    buffer = single_episodes("prioritized", [100] * 20)
    for _ in range(40):
        sequences = buffer.sample_sequences(80, length, stride=stride, pad=pad)
        buffer.update_priorities(sequences.indices, np.zeros(80))
    assert sequences.mask.all() or pad == "end"


def test_few_anchors_are_drawn_in_proportion_to_their_priorities() -> None:
    buffer = single_episodes(PrioritizedSampler(alpha=1.0, beta=1.0, epsilon=0.0), [10] * 100 + [23])
    priorities = np.array([1e-5, 4e-5, 2e-5, 1e-5])  # of the only sequences of 20 transitions
    buffer.sample(1)
    buffer.update_priorities(np.arange(1000, 1004), priorities)
    counts = np.zeros(4)
    for _ in range(20):
        sequences = buffer.sample_sequences(160, 20)
        np.add.at(counts, sequences.indices - 1000, 1)
        chosen = priorities[sequences.indices - 1000]
        assert sequences.weights is not None
        np.testing.assert_allclose(sequences.weights.numpy()[:, 0], chosen.min() / chosen, rtol=1e-6)
    np.testing.assert_allclose(counts / counts.sum(), priorities / priorities.sum(), atol=0.02)


def test_each_batch_of_sequences_counts_once_for_beta() -> None:
    # Three in four transitions begin no sequence, so that a batch takes several draws.
    sampler = PrioritizedSampler(beta=0.0, beta_steps=10)
    buffer = single_episodes(sampler, [12] * 20)
    for n_batches in range(1, 6):
        buffer.sample_sequences(32, 10)
        assert isinstance(buffer.sampler, PrioritizedSampler)
        assert buffer.sampler.current_beta == n_batches / 10


def test_sequences_without_positive_priorities_are_an_error() -> None:
    buffer = single_episodes(PrioritizedSampler(epsilon=0.0), [10])
    buffer.sample(1)
    buffer.update_priorities([0], [0.0])
    with pytest.raises(ValueError, match="priorities of all"):
        buffer.sample_sequences(2, 10)


@pytest.mark.parametrize(
    ("name", "n_steps", "options"),
    [
        ("vector", 0, {}),
        ("vector", 0, {"sampler": "prioritized"}),
        ("her", 5, {"sampler": "prioritized", "longest": 999}),
    ],
)
def test_no_sequences_are_drawn_without_transitions(name: str, n_steps: int, options: dict[str, Any]) -> None:
    buffer, _ = fill(name, n_steps, **options)
    with pytest.raises(BufferNotReady, match="add"):
        buffer.sample_sequences(4, 2, pad="end")


def test_sequences_of_hindsight_replay_with_priorities_are_of_complete_episodes() -> None:
    buffer, transitions = fill("her", ROWS + 20, sampler="prioritized")
    samples = buffer.sample_sequences(64, 3)
    assert_sequences(samples, transitions, 20, 3)
    assert samples.weights.tolist() == [[1.0]] * 64
    assert (buffer.ep_length.reshape(-1)[samples.indices] > 0).all()


def test_other_samplers_draw_no_sequences() -> None:
    with pytest.raises(TypeError, match="RecentSampler"):
        fill("vector", 20, sampler="recent")[0].sample_sequences(4, 4)
