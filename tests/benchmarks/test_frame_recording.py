"""A recording replays the environments as SB3's algorithms would have added them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from frame_recording import Recording, play, random_policy, write_recording
from gymnasium import spaces
from sb3_envs import make_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecTransposeImage
from support import console_env

N_ENVS = 2


#: Environment, number of stacked frames, and whether images are transposed.
RECORDED: dict[str, tuple[Callable[[], Any], int, bool]] = {
    "atari": (partial(make_env, "BreakoutNoFrameskip-v4", N_ENVS, atari=True), 4, True),
    "stacked vectors": (partial(make_env, "CartPole-v1", N_ENVS, atari=False), 3, False),
    "discrete": (partial(make_env, "FrozenLake-v1", N_ENVS, atari=False), 1, False),
    "dict": (partial(console_env, N_ENVS, max_steps=90), 1, True),
}


def parts(obs: Any) -> dict[str, Any]:
    return obs if isinstance(obs, dict) else {"": obs}


@pytest.mark.parametrize("name", RECORDED)
def test_recording_replays_observations(name: str, tmp_path: Path) -> None:
    new_env, n_stack, is_image = RECORDED[name]
    n_steps = 200 if name == "atari" else 60
    path = tmp_path / "recording.zst"
    written = write_recording(path, new_env(), n_steps, n_stack=n_stack)
    recording = Recording.open(path)
    assert recording == written
    assert list(tmp_path.iterdir()) == [path]

    env = new_env()
    policy = random_policy(env.action_space, N_ENVS)  # the same actions
    env = VecFrameStack(env, n_stack) if n_stack > 1 else env
    env = VecTransposeImage(env) if is_image else env
    assert recording.observation_space == env.observation_space
    assert recording.action_space == env.action_space
    obs, n_ends = env.reset(), 0
    steps = list(play(recording))
    assert len(steps) == n_steps
    for number, step in enumerate(steps):
        assert parts(step.obs).keys() == parts(step.next_obs).keys() == parts(obs).keys()
        for key, part in parts(step.obs).items():
            np.testing.assert_array_equal(part, parts(obs)[key])
        obs, _, dones, infos = env.step(policy(obs))
        np.testing.assert_array_equal(step.done, dones)
        for i, done in enumerate(dones):
            for key, part in parts(step.next_obs).items():
                last = parts(infos[i]["terminal_observation"])[key] if done else parts(obs)[key][i]
                np.testing.assert_array_equal(part[i], last)
        np.testing.assert_array_equal(step.reward, [number * N_ENVS, number * N_ENVS + 1])
        n_ends += dones.sum()
    assert n_ends
    env.close()


class OtherDtype(gym.Env[Any, Any]):
    """Returns observations with a dtype other than its space's, as many environments do."""

    observation_space = spaces.Box(-10, 10, (3,), np.float32)
    action_space = spaces.Discrete(2)
    n_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.n_steps = 0
        return np.zeros(self.observation_space.shape, np.float64), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n_steps += 1
        return np.full(self.observation_space.shape, self.n_steps, np.float64), 0.0, self.n_steps == 4, False, {}


def test_terminal_observations_are_cast_to_the_dtype_of_the_space(tmp_path: Path) -> None:
    env = DummyVecEnv([OtherDtype, OtherDtype])
    steps = list(play(write_recording(tmp_path / "recording.zst", env, 10)))
    assert [step.obs[0, 0] for step in steps] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert [step.next_obs[1, 2] for step in steps] == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    assert {step.next_obs.dtype for step in steps} == {np.dtype(np.float32)}


def test_failed_recording_leaves_no_file(tmp_path: Path) -> None:
    def policy(obs: Any) -> Any:
        raise RuntimeError("no action")

    with pytest.raises(RuntimeError, match="no action"):
        write_recording(tmp_path / "recording.zst", make_env("CartPole-v1", 1, atari=False), 10, policy=policy)
    assert not list(tmp_path.iterdir())
