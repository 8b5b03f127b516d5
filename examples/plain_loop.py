"""DQN without SB3's algorithms: a loop over vector environments of Gymnasium, as in CleanRL, with a compressed buffer.

The buffer has the interface of SB3's ``ReplayBuffer``, which such loops usually copy, so only its class differs.

python examples/plain_loop.py
python examples/plain_loop.py --uncompressed  # the same with SB3's buffer; it ends with the same weights
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch as th
import torch.nn.functional as F
import typer
from common import SUFFIX, Game, NEnvs, Seed, Steps
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from rich.progress import track
from stable_baselines3.common.buffers import ReplayBuffer
from torch import nn

from sb3_compressed import CompressedReplayBuffer, buffer_statistics

BATCH_SIZE, GAMMA, LEARNING_RATE = 32, 0.99, 1e-4
LEARNING_STARTS, TRAIN_FREQUENCY, TARGET_FREQUENCY = 200, 4, 400  # steps of all environments


def make_env(game: str) -> gym.Env[Any, Any]:
    """Return a game with four stacked frames ``(4, 84, 84)`` of uint8."""
    return FrameStackObservation(AtariPreprocessing(gym.make(f"{game}{SUFFIX}")), 4)


def new_network(n_actions: int) -> nn.Module:
    """Return a Q-network: observations ``(n, 4, 84, 84)`` to values ``(n, n_actions)``."""
    return nn.Sequential(
        nn.Conv2d(4, 16, 8, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 9 * 9, 256), nn.ReLU(), nn.Linear(256, n_actions),
    )  # fmt: skip


def main(
    game: Game = "Pong",
    steps: Steps = 4_000,
    buffer_size: Annotated[int, typer.Option(min=1, help="Capacity of the buffer in transitions.")] = 100_000,
    uncompressed: Annotated[bool, typer.Option("--uncompressed", help="Use SB3's buffer.")] = False,
    n_envs: NEnvs = 4,
    seed: Seed = 0,
) -> None:
    """Train a Q-network on an Atari game, and print what its replay buffer takes."""
    np.random.seed(seed)  # noqa: NPY002  # SB3's buffer, and so this one, draw batches with the global generator
    th.manual_seed(seed)
    th.set_num_threads(1)  # on several, sums may be rounded differently from run to run
    rng = np.random.default_rng(seed)
    # With the default mode, NEXT_STEP, the step after an episode would be no transition.
    envs = SyncVectorEnv([partial(make_env, game)] * n_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    device = th.device("cuda" if th.cuda.is_available() else "cpu")
    buffer = (ReplayBuffer if uncompressed else CompressedReplayBuffer)(
        buffer_size, envs.single_observation_space, envs.single_action_space, device, n_envs=n_envs,
        handle_timeout_termination=False,  # only terminations are added as ends
    )  # fmt: skip
    n_actions = int(envs.single_action_space.n)  # type: ignore[attr-defined]
    network, target = (new_network(n_actions).to(device) for _ in range(2))
    target.load_state_dict(network.state_dict())
    optimizer = th.optim.Adam(network.parameters(), LEARNING_RATE)

    obs, _ = envs.reset(seed=seed)
    for step in track(range(n_envs, steps + 1, n_envs), "training"):
        actions = rng.integers(n_actions, size=n_envs)
        is_greedy = rng.random(n_envs) > max(0.05, 1 - 2 * step / steps)
        if is_greedy.any():
            with th.no_grad():
                values = network(th.as_tensor(obs[is_greedy], device=device) / 255)
            actions[is_greedy] = values.argmax(dim=1).cpu().numpy()

        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        last_obs = next_obs  # where an episode ends, the first observation of the next one
        if "final_obs" in infos:
            last_obs = next_obs.copy()
            for env in np.flatnonzero(terminations | truncations):
                last_obs[env] = infos["final_obs"][env]
        buffer.add(obs, last_obs, actions, rewards, terminations, [{}] * n_envs)
        obs = next_obs

        if step >= LEARNING_STARTS and step % TRAIN_FREQUENCY < n_envs:
            batch = buffer.sample(BATCH_SIZE)
            with th.no_grad():
                next_values = target(batch.next_observations / 255).amax(dim=1, keepdim=True)
                expected = batch.rewards + GAMMA * (1 - batch.dones) * next_values
            values = network(batch.observations / 255).gather(1, batch.actions)
            optimizer.zero_grad()
            F.mse_loss(values, expected).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if step % TARGET_FREQUENCY < n_envs:
            target.load_state_dict(network.state_dict())
    envs.close()

    weights = hashlib.sha256(b"".join(each.cpu().numpy().tobytes() for each in network.state_dict().values()))
    print(f"Digest of the weights: {weights.hexdigest()[:16]}.")
    if isinstance(buffer, CompressedReplayBuffer):
        found = buffer_statistics(buffer)
        n = found.transitions
        print(
            f"{found.memory_nbytes / n:,.0f} bytes per transition instead of {found.raw_memory_nbytes / n:,.0f}, "
            f"with {n:,} transitions."
        )


if __name__ == "__main__":
    typer.run(main)
