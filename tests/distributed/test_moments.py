"""Merged statistics of several collectors equal those of a single VecNormalize that has seen everything."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from drawn_examples import examples
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sb3_compressed.common.tree_map import leaves
from sb3_compressed.distributed.moments import CollectorNormalizer, Moments, merge

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
NORMALIZED_KEYS = ["vector", "image"]
DICT = spaces.Dict(
    {
        "vector": VECTOR,
        "image": spaces.Box(0, 255, (1, 4, 4), np.uint8),
        "other": spaces.Discrete(3),
    }
)


class Recording:
    """Random observations, rewards and episode ends of some environments, ``(n_steps, n_envs, ...)``."""

    def __init__(self, is_dict: bool, n_steps: int, n_envs: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        scales = rng.uniform(0.1, 30, (n_envs, 3))  # environments differ
        vectors = (rng.standard_normal((n_steps + 1, n_envs, 3)) * scales + 5 * scales).astype(np.float32)
        self.observations: Any = vectors
        if is_dict:
            self.observations = {
                "vector": vectors,
                "image": rng.integers(0, 256, (n_steps + 1, n_envs, 1, 4, 4), np.uint8),
                "other": rng.integers(0, 3, (n_steps + 1, n_envs)),
            }
        self.rewards = rng.normal(0.3, 2, (n_steps, n_envs)).astype(np.float32)
        self.dones = rng.random((n_steps, n_envs)) < 0.1
        self.n_steps, self.n_envs = n_steps, n_envs

    def observation(self, step: int, envs: slice = slice(None)) -> Any:
        if isinstance(self.observations, dict):
            return {key: values[step, envs] for key, values in self.observations.items()}
        return self.observations[step, envs]


class RecordedEnv(DummyVecEnv):
    """Environments that return a recording, whatever the actions are."""

    def __init__(self, recording: Recording) -> None:
        # A space of its own, since VecNormalize changes the Dict space of its environments.
        space = pickle.loads(pickle.dumps(DICT if isinstance(recording.observations, dict) else VECTOR))
        self.recording, self.step_number = recording, 0
        self.envs = [gym.Env() for _ in range(recording.n_envs)]  # never stepped
        VecEnv.__init__(self, recording.n_envs, space, spaces.Discrete(2))

    def reset(self) -> Any:
        self.step_number = 0
        return self.recording.observation(0)

    def step_async(self, actions: NDArray[Any]) -> None:
        self.step_number += 1

    def step_wait(self) -> VecEnvStepReturn:
        at = self.step_number
        recording = self.recording
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        return recording.observation(at), recording.rewards[at - 1], recording.dones[at - 1], infos


def vec_normalize(recording: Recording, **options: Any) -> VecNormalize:
    is_dict = isinstance(recording.observations, dict)
    keys = NORMALIZED_KEYS if is_dict and options.get("norm_obs", True) else None
    return VecNormalize(RecordedEnv(recording), norm_obs_keys=keys, **options)


def play(normalized: VecNormalize, n_steps: int) -> None:
    normalized.reset()
    for _ in range(n_steps):
        normalized.step(np.zeros(normalized.num_envs, np.int64))


def statistics(normalized: VecNormalize) -> dict[str, RunningMeanStd]:
    found = {"returns": normalized.ret_rms}
    if normalized.norm_obs:
        rms: Any = normalized.obs_rms
        found.update(rms if isinstance(rms, dict) else {"observations": rms})
    return found


def assert_same_statistics(ours: VecNormalize, theirs: VecNormalize) -> None:
    assert statistics(ours).keys() == statistics(theirs).keys()
    for key, expected in statistics(theirs).items():
        found = statistics(ours)[key]
        np.testing.assert_allclose(found.count, expected.count, rtol=1e-12)
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-6, atol=1e-6, err_msg=key)
        np.testing.assert_allclose(found.var, expected.var, rtol=1e-6, atol=1e-6, err_msg=key)


def through_pickle(value: Any) -> Any:
    """Return a value as another process receives it; arrays are read-only there, as those of Ray."""
    received = pickle.loads(pickle.dumps(value))
    if isinstance(received, Moments):
        for each in (*leaves(received.observations), received.returns):
            for values in (each.mean, each.var):
                if isinstance(values, np.ndarray):
                    values.setflags(write=False)
    return received


@examples(60)
@given(
    is_dict=st.booleans(),
    norm_obs=st.booleans(),
    norm_reward=st.booleans(),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    n_steps=st.integers(0, 25),
    seed=st.integers(0, 2**32 - 1),
)
def test_merged_statistics_equal_those_of_a_single_vec_normalize(
    is_dict: bool, norm_obs: bool, norm_reward: bool, sizes: Sequence[int], n_steps: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    recording = Recording(is_dict, n_steps, sum(sizes), seed)
    options = {"norm_obs": norm_obs, "norm_reward": norm_reward, "gamma": 0.9}
    single = vec_normalize(recording, **options)
    play(single, n_steps)

    learner = vec_normalize(recording, **options)
    ends = np.cumsum(sizes)
    collectors = [
        (CollectorNormalizer(through_pickle(learner)), slice(end - size, end)) for end, size in zip(ends, sizes)
    ]
    increments = []
    # Collectors step in random order, take increments now and then, and receive broadcasts now and then.
    turns = rng.permutation(np.repeat(np.arange(len(sizes)), n_steps + 1))
    positions = [0] * len(sizes)
    for turn in turns:
        normalizer, envs = collectors[turn]
        step = positions[turn]
        positions[turn] += 1
        observations = recording.observation(step, envs)
        if step == 0:
            normalizer.reset(observations)
        else:
            normalizer.step(observations, recording.rewards[step - 1, envs], recording.dones[step - 1, envs])
        if rng.random() < 0.3:
            increments.append(normalizer.take_increment())
        if increments and rng.random() < 0.3:
            merge(learner, through_pickle(increments.pop(rng.integers(len(increments)))))
        if rng.random() < 0.3:
            normalizer.load(through_pickle(Moments.of(learner)))
    increments += [normalizer.take_increment() for normalizer, _ in collectors]
    for i in rng.permutation(len(increments)):
        merge(learner, increments[i])

    assert_same_statistics(learner, single)
    normalizer, envs = collectors[0]
    normalizer.load(through_pickle(Moments.of(learner)))
    observations = recording.observation(n_steps)
    expected: Any = learner.normalize_obs(observations)
    found = normalizer.normalize(observations)
    for key in expected if is_dict else [...]:
        np.testing.assert_array_equal(found[key], expected[key])
        assert found[key].dtype == expected[key].dtype


def test_resets_start_new_returns_as_in_vec_normalize() -> None:
    recording = Recording(False, 8, 3, seed=1)
    single, learner = vec_normalize(recording), vec_normalize(recording)
    play(single, 8)
    play(single, 8)
    normalizer = CollectorNormalizer(learner)
    for _ in range(2):
        normalizer.reset(recording.observation(0))
        for step in range(8):
            normalizer.step(recording.observation(step + 1), recording.rewards[step], recording.dones[step])
    merge(learner, normalizer.take_increment())
    assert_same_statistics(learner, single)


def test_collectors_normalize_with_the_last_broadcast_only() -> None:
    recording = Recording(False, 5, 2, seed=0)
    learner = vec_normalize(recording)
    normalizer = CollectorNormalizer(learner)
    observations = recording.observation(0)
    before = normalizer.reset(observations)
    np.testing.assert_allclose(before, np.clip(observations, -10, 10), rtol=1e-6)
    np.testing.assert_array_equal(normalizer.normalize(observations), before)
    merge(learner, normalizer.take_increment())
    np.testing.assert_array_equal(normalizer.normalize(observations), before)
    normalizer.load(Moments.of(learner))
    np.testing.assert_array_equal(normalizer.normalize(observations), learner.normalize_obs(observations))
    assert not np.array_equal(normalizer.normalize(observations), before)


def test_nothing_is_merged_unless_in_training() -> None:
    recording = Recording(False, 5, 2, seed=0)
    learner = vec_normalize(recording)
    normalizer = CollectorNormalizer(learner)
    normalizer.reset(recording.observation(0))
    learner.training = False
    merge(learner, normalizer.take_increment())
    assert statistics(learner)["observations"].count == 1e-4
