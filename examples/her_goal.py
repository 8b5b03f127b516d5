"""Hindsight experience replay with images as observations and goals, in a compressed buffer.

The task is SB3's bit flipping: an image shows bits, an action flips one, and the goal is the image with all bits set.
The reward is sparse: random actions hardly ever reach the goal.

python examples/her_goal.py --n-bits 12
"""

from __future__ import annotations

from typing import Annotated

import torch as th
import typer
from common import Method, NEnvs, Seed, Steps, train
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.preprocessing import get_flattened_obs_dim
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from sb3_compressed import CompressedHerReplayBuffer


class Pixels(BaseFeaturesExtractor):
    """Flattens all images: each bit is one pixel, so convolutions have nothing to detect."""

    def __init__(self, space: spaces.Dict) -> None:
        super().__init__(space, get_flattened_obs_dim(space))

    def forward(self, images: dict[str, th.Tensor]) -> th.Tensor:
        """Concatenate the flattened images."""
        return th.cat([image.flatten(1) for image in images.values()], dim=1)


def main(
    n_bits: Annotated[int, typer.Option(min=2, max=1296, help="Number of bits, and of steps in an episode.")] = 10,
    steps: Steps = 20_000,
    n_goals: Annotated[int, typer.Option(min=0, help="Relabeled goals per original goal in a batch.")] = 4,
    method: Method = "auto",
    n_envs: NEnvs = 4,
    seed: Seed = 0,
) -> None:
    """Train DQN with hindsight goals on bit flipping from images, with a compressed replay buffer."""
    env = make_vec_env(BitFlippingEnv, n_envs, seed, env_kwargs={"n_bits": n_bits, "image_obs_space": True})
    model = DQN(
        "MultiInputPolicy",
        env,
        buffer_size=steps,
        learning_rate=1e-3,
        gradient_steps=n_envs,
        gamma=0.95,
        target_update_interval=500,
        exploration_fraction=0.5,
        policy_kwargs={"features_extractor_class": Pixels},
        replay_buffer_class=CompressedHerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": n_goals, "compression_method": method},
        seed=seed,
    )
    train(model, steps)


if __name__ == "__main__":
    typer.run(main)
