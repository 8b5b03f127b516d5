"""SAC from pixels: continuous control of a pendulum that the agent only sees, as three stacked color frames.

python examples/sac_pixels.py  # five minutes; Ctrl-C ends it early and still prints the table
python examples/sac_pixels.py --env-id CarRacing-v3 --size 96  # needs pip install 'gymnasium[box2d]'
python examples/sac_pixels.py --plain  # the same training with SB3's own buffer
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import cv2
import gymnasium as gym
import numpy as np
import typer
from common import Method, NEnvs, Seed, Steps, train
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

from sb3_compressed import CompressedReplayBuffer


class Pixels(gym.ObservationWrapper[NDArray[np.uint8], Any, Any]):
    """What an environment renders, resized to ``(size, size, 3)``, instead of its observations."""

    def __init__(self, env: gym.Env[Any, Any], size: int) -> None:
        super().__init__(env)
        self._size = (size, size)
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)

    def observation(self, observation: Any) -> NDArray[np.uint8]:
        """Return the picture of the current state."""
        rendered: Any = self.render()
        return np.asarray(cv2.resize(rendered, self._size, interpolation=cv2.INTER_AREA), np.uint8)


def main(
    env_id: Annotated[str, typer.Option(help="Environment with continuous actions.")] = "Pendulum-v1",
    steps: Steps = 4_000,
    buffer_size: Annotated[int, typer.Option(min=1, help="Capacity of the buffer in transitions.")] = 100_000,
    size: Annotated[int, typer.Option(min=36, help="Height and width of a frame in pixels.")] = 64,
    method: Method = "auto",
    n_envs: NEnvs = 1,
    seed: Seed = 0,
    plain: Annotated[bool, typer.Option("--plain", help="Use SB3's own buffer.")] = False,
) -> None:
    """Train SAC on what an environment renders, with a compressed replay buffer."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame then renders without looking for a display
    wrapper: Any = Pixels
    env = make_vec_env(
        env_id,
        n_envs,
        seed,
        env_kwargs={"render_mode": "rgb_array"},
        wrapper_class=wrapper,
        wrapper_kwargs={"size": size},
    )
    model = SAC(
        "CnnPolicy",
        VecFrameStack(env, 3),  # velocities cannot be seen in a single frame
        buffer_size=buffer_size,
        learning_starts=min(500, steps // 4),
        batch_size=64,
        train_freq=4,
        replay_buffer_class=None if plain else CompressedReplayBuffer,
        replay_buffer_kwargs=None if plain else {"compression_method": method},
        seed=seed,
    )
    train(model, steps)


if __name__ == "__main__":
    typer.run(main)
