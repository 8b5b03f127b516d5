"""A recording replays the environments as SB3's algorithms would have added them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frame_recording import Recording, play, random_policy, write_recording
from sb3_envs import make_env
from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage
from support import console_env

N_ENVS = 2


#: Environment, number of stacked frames, and whether images are transposed.
RECORDED: dict[str, tuple[Callable[[], Any], int, bool]] = {
    "atari": (partial(make_env, "BreakoutNoFrameskip-v4", N_ENVS, atari=True), 4, True),
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
