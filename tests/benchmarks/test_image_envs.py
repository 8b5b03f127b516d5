"""The image environments of the benchmarks return images of their spaces, and the same ones for the same seed."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import image_envs
import numpy as np
import pytest

NAMES = [
    "Crafter-v0",
    "ProcgenJumper-v0",
    "MiniGridRGB-v0",
    "MiniGridWholeRGB-v0",
    "Doom84-v0",
    "Doom120x160Nearest-v0",
]
NAMES += ["Video128-v0", "Camera256-v0", "Noise84-v0", "DoomDepth84-v0", "DoomLabels-v0", "Audio-v0"]


def images_of(name: str, n_steps: int) -> tuple[gym.Env[Any, Any], list[Any]]:
    env = gym.make(name, disable_env_checker=True)
    images = [env.reset(seed=1)[0]]
    rng = np.random.default_rng(0)
    for _ in range(n_steps):
        image, _, terminated, truncated, _ = env.step(int(rng.integers(env.action_space.n)))  # type: ignore[attr-defined]
        images.append(image)
        if terminated or truncated:
            images.append(env.reset()[0])
    env.close()
    return env, images


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*")  # of the packages
def test_images_are_of_the_space_change_and_repeat(name: str) -> None:
    if module := image_envs.missing_module(name):
        pytest.skip(f"{module} is not installed: benchmarks/environments.txt")
    env, images = images_of(name, 60)
    assert all(env.observation_space.contains(image) for image in images)
    assert len({image.tobytes() for image in images}) > 5
    again = images_of(name, 30)[1]
    assert all(np.array_equal(first, second) for first, second in zip(images, again))
