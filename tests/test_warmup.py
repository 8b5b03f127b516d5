"""``warm_up`` stores, bit for bit, what SB3's own algorithms would have stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from support import atari_env, console_env

from sb3_compressed import CompressedDictReplayBuffer, CompressedHerReplayBuffer, CompressedReplayBuffer
from sb3_compressed.datasets import trajectories
from sb3_compressed.warmup import warm_up

STEPS = 400  # over all environments; some episodes end within them


def seeded(env: VecEnv) -> VecEnv:
    env.seed(0)
    env.action_space.seed(0)
    return env


ALGORITHMS: dict[str, tuple[Callable[..., OffPolicyAlgorithm], Callable[[], VecEnv]]] = {
    "atari": (partial(DQN, "CnnPolicy"), partial(atari_env, "Breakout", 2, max_steps=100)),
    "dict": (partial(DQN, "MultiInputPolicy"), console_env),
    "box actions": (partial(SAC, "MlpPolicy"), partial(make_vec_env, "Pendulum-v1", 2)),
    "time limits": (
        partial(DQN, "MlpPolicy"),
        partial(make_vec_env, "Acrobot-v1", 4, env_kwargs={"max_episode_steps": 30}),
    ),
    "normalised": (partial(DQN, "MlpPolicy"), lambda: VecNormalize(make_vec_env("CartPole-v1", 2))),
}


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_random_transitions_equal_those_of_an_algorithm(kind: str) -> None:
    make_model, make_env = ALGORITHMS[kind]
    small: dict[str, Any] = {"buffer_size": 1000, "device": "cpu", "policy_kwargs": {"net_arch": [8]}}
    model = make_model(seeded(make_env()), learning_starts=10**6, **small)
    model.learn(STEPS)
    theirs: Any = model.replay_buffer
    env = make_model(make_env(), **small).get_env()  # with the wrappers of a model
    assert env is not None
    seeded(env)
    cls = CompressedDictReplayBuffer if isinstance(theirs, DictReplayBuffer) else CompressedReplayBuffer
    options: dict[str, Any] = {"n_envs": env.num_envs, "device": "cpu"}
    compressed: Any = cls(1000, env.observation_space, env.action_space, **options)
    also = type(theirs)(1000, env.observation_space, env.action_space, **options)
    warm_up([compressed, also], env, STEPS, progress_bar=False)
    assert compressed.pos == also.pos == theirs.pos == STEPS // env.num_envs
    ended = theirs.dones[: theirs.pos - 1].sum()
    assert ended or kind == "box actions"
    for buffer in (compressed, also):
        for name in ("observations", "next_observations"):
            of_keys = getattr(theirs, name)
            for key in of_keys if isinstance(of_keys, dict) else [None]:
                ours, expected = (
                    np.asarray((arrays if key is None else arrays[key])[: theirs.pos])
                    for arrays in (getattr(buffer, name), of_keys)
                )
                np.testing.assert_array_equal(ours, expected, err_msg=f"{name} {key}")
        for name in ("actions", "rewards"):
            np.testing.assert_array_equal(getattr(buffer, name), getattr(theirs, name), err_msg=name)
        last = theirs.pos - 1
        for name in ("dones", "timeouts"):
            np.testing.assert_array_equal(getattr(buffer, name)[:last], getattr(theirs, name)[:last], err_msg=name)
        assert buffer.dones[last].all(), "every episode ends before the reset that follows"
        np.testing.assert_array_equal(buffer.timeouts[last], np.where(theirs.dones[last], theirs.timeouts[last], 1))


def test_actions_are_those_of_the_policy() -> None:
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", 2), n_steps=32, seed=0, device="cpu")
    env = seeded(make_vec_env("CartPole-v1", 2))
    buffer = CompressedReplayBuffer(200, env.observation_space, env.action_space, "cpu", n_envs=2)
    warm_up(buffer, env, 100, model, deterministic=True, progress_bar=False)
    assert buffer.pos == 50
    observations = np.asarray(buffer.observations[:50]).reshape(100, -1)
    expected, _ = model.predict(observations, deterministic=True)
    np.testing.assert_array_equal(buffer.actions[:50].reshape(100), expected)
    assert len(set(expected)) > 0


class Alternating:
    """A recurrent policy: its action depends on the number of steps since the start of the episode."""

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        steps = np.where(episode_start, 0, 0 if state is None else state[0] + 1)
        return steps % 2, (steps,)


def test_recurrent_policies_receive_episode_starts() -> None:
    env = seeded(make_vec_env("CartPole-v1", 1, env_kwargs={"max_episode_steps": 7}))
    buffer = ReplayBuffer(40, env.observation_space, env.action_space, "cpu")
    warm_up(buffer, env, 40, Alternating(), progress_bar=False)
    actions = [episode.actions.ravel() for episode in trajectories(buffer)]
    assert len(actions) > 3
    for of_episode in actions:
        np.testing.assert_array_equal(of_episode, np.arange(len(of_episode)) % 2)


def test_hindsight_buffers_can_be_sampled_after_warm_up() -> None:
    env = make_vec_env(BitFlippingEnv, 2, env_kwargs={"n_bits": 20, "max_steps": 9})
    model = DQN(
        "MultiInputPolicy", env, buffer_size=500, learning_starts=0, device="cpu", policy_kwargs={"net_arch": [8]},
        replay_buffer_class=CompressedHerReplayBuffer,
    )  # fmt: skip
    buffer: Any = model.replay_buffer
    space: Any = env.observation_space
    also = HerReplayBuffer(500, space, env.action_space, env, "cpu", n_envs=2)
    warm_up([buffer, also], env, 100, progress_bar=False)  # ends in the middle of an episode
    np.testing.assert_array_equal(buffer.ep_length, also.ep_length)
    assert buffer.ep_length[49, 0] == 50 % 9, "the unfinished episode can be sampled"
    model.learn(40)
    assert buffer.pos == 70


def test_n_steps_is_rounded_up_to_rows(capsys: pytest.CaptureFixture[str]) -> None:
    env = make_vec_env("CartPole-v1", 3)
    buffer = CompressedReplayBuffer(300, env.observation_space, env.action_space, n_envs=3)
    warm_up(buffer, env, 10)
    assert buffer.size() == 4
    printed = capsys.readouterr()
    assert "warming up" in printed.err
    assert not printed.out
    warm_up(buffer, env, 0, progress_bar=False)
    assert buffer.size() == 4


def test_mismatched_buffers_raise_before_anything_is_added() -> None:
    env = make_vec_env("CartPole-v1", 2)
    spaces = env.observation_space, env.action_space
    fits = CompressedReplayBuffer(100, *spaces, n_envs=2)
    with pytest.raises(ValueError, match="n_envs=2"):
        warm_up([fits, CompressedReplayBuffer(100, *spaces)], env, 10)
    other = make_vec_env("Acrobot-v1", 2)
    with pytest.raises(ValueError, match=r"the buffer has the observation_space .* pass model\.get_env\(\)"):
        warm_up(fits, other, 10)
    with pytest.raises(ValueError, match="n_steps must not be negative, got -1"):
        warm_up(fits, env, -1)
    assert fits.size() == 0
