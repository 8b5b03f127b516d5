"""``record_episodes`` records complete episodes, the same ones as SB3's evaluation, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sb3_compressed import load_checkpoint
from sb3_compressed.datasets import trajectories
from sb3_compressed.recording import FramelessRecordBuffer, RecordBuffer, record_episodes


def cart_env(n_envs: int = 3, **kwargs: Any) -> VecEnv:
    return make_vec_env("CartPole-v1", n_envs=n_envs, seed=5, env_kwargs=kwargs)


def small_ppo(env: Any) -> PPO:
    return PPO("MlpPolicy", env, n_steps=8, batch_size=8, policy_kwargs={"net_arch": [8]}, seed=0, device="cpu")


class StepLog(VecEnvWrapper):
    """Records the episodes of each environment independently, as lists of steps."""

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)
        self.obs: Any = None
        self.running: list[list[Any]] = [[] for _ in range(self.num_envs)]
        self.ended: list[dict[str, list[Any]]] = []

    def reset(self) -> Any:
        self.obs = self.venv.reset()
        self.running = [[] for _ in range(self.num_envs)]
        return self.obs

    def step_async(self, actions: NDArray[Any]) -> None:
        self.actions = actions
        self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, dones, infos = self.venv.step_wait()
        for env in range(self.num_envs):
            self.running[env].append((self.obs[env].copy(), self.actions[env], rewards[env]))
            if dones[env]:
                names = ("observations", "actions", "rewards")
                episode = dict(zip(names, map(list, zip(*self.running[env], strict=True)), strict=True))
                episode["observations"].append(infos[env]["terminal_observation"])
                episode["truncated"] = infos[env]["TimeLimit.truncated"]
                self.ended.append(episode)
                self.running[env] = []
        self.obs = obs
        return obs, rewards, dones, infos


@pytest.mark.parametrize("make", [lambda: cart_env(1), cart_env, lambda: cart_env(3, max_episode_steps=9)])
def test_every_episode_equals_the_steps_of_the_environment(make: Callable[[], VecEnv]) -> None:
    env = StepLog(make())
    recording = record_episodes(small_ppo(env), env, 7)
    found = [*trajectories(recording.buffer)]
    assert len(found) == 7
    logged = {np.array(each["observations"]).tobytes(): each for each in env.ended}
    for episode in found:
        assert episode.has_begin
        assert episode.has_end
        expected = logged.pop(episode.observations.tobytes())
        np.testing.assert_array_equal(episode.actions, expected["actions"])
        np.testing.assert_array_equal(episode.rewards, expected["rewards"])
        assert (episode.truncations[-1], episode.terminations[-1]) == (expected["truncated"], not expected["truncated"])


@pytest.mark.parametrize("n_episodes", [1, 5, 8])
@pytest.mark.parametrize("algorithm", [PPO, RecurrentPPO])
def test_episodes_are_those_of_evaluate_policy(algorithm: Any, n_episodes: int) -> None:
    policy = "MlpLstmPolicy" if algorithm is RecurrentPPO else "MlpPolicy"
    model = algorithm(policy, cart_env(), n_steps=8, batch_size=8, seed=1, device="cpu")
    rewards, lengths = evaluate_policy(model, cart_env(), n_episodes, return_episode_rewards=True)
    found = [*trajectories(record_episodes(model, cart_env(), n_episodes).buffer)]
    assert [len(episode) for episode in found] == lengths
    assert [episode.rewards.sum() for episode in found] == rewards


def test_episodes_are_appended_to_a_recording_in_a_folder(tmp_path: Path) -> None:
    env = cart_env()
    model = small_ppo(env)
    recording = record_episodes(model, env, 2, storage=tmp_path / "recording")
    assert record_episodes(model, env, 3, recording) is recording
    recording.close()
    episodes = [*trajectories(load_checkpoint(tmp_path / "recording"))]
    assert [episode.has_end for episode in episodes] == [True] * 5


def test_observations_may_be_omitted() -> None:
    env = StepLog(cart_env())
    recording = FramelessRecordBuffer(env.observation_space, env.action_space)
    assert record_episodes(small_ppo(env), env, 4, recording) is recording
    lengths = [len(episode) for episode in trajectories(recording.buffer)]
    assert len(lengths) == 4
    assert set(lengths) <= {len(episode["actions"]) for episode in env.ended}


class Failing(VecEnvWrapper):
    """An environment that fails after 100 steps."""

    n_steps = 0

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        self.n_steps += 1
        if self.n_steps > 100:
            raise ConnectionError("lost the simulator")
        return self.venv.step_wait()


def test_an_exception_leaves_complete_episodes() -> None:
    env = Failing(cart_env(3))
    recording = RecordBuffer(env.observation_space, env.action_space)
    with pytest.raises(ConnectionError):
        record_episodes(small_ppo(env), env, 500, recording)
    episodes = [*trajectories(recording.buffer)]
    assert len(episodes) > 3
    assert all(episode.has_end for episode in episodes)


def test_the_progress_bar_is_optional(capsys: pytest.CaptureFixture[str]) -> None:
    env = cart_env()
    record_episodes(small_ppo(env), env, 3, progress_bar=True)
    assert "recording episodes" in capsys.readouterr().err
    record_episodes(small_ppo(env), env, 3)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ({"n_envs": 2}, {}, "a recording of one environment .*n_envs=2"),
        ({}, {"compression_method": "zstd3"}, r"options are for a new recording.*\['compression_method'\]"),
        ({}, {"n_episodes": 0}, "n_episodes must be positive, got 0"),
        ({"feature_space": 3}, {}, "without features"),
        (None, {"n_envs": 2}, "a recording of one environment .*n_envs=2"),
    ],
)
def test_invalid_arguments_raise_and_record_nothing(arguments: Any, options: Any, message: str) -> None:
    env = cart_env()
    recording = None if arguments is None else RecordBuffer(env.observation_space, env.action_space, **arguments)
    with pytest.raises(ValueError, match=message):
        record_episodes(small_ppo(env), env, **{"n_episodes": 2, "recording": recording, **options})
    assert recording is None or len(recording) == 0
