"""Recurrent Q-learning on an Atari game: sequences from a compressed replay buffer, with burn-in as in R2D2.

python examples/sequences.py  # a minute or two
python examples/sequences.py --game Breakout --length 40 --burn-in 20
"""

from __future__ import annotations

import copy
import time
from typing import Annotated, Any

import numpy as np
import torch as th
import typer
from common import Game, NEnvs, Seed, Steps, make_atari, memory_table
from rich.console import Console
from rich.progress import track
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv, VecTransposeImage

from sb3_compressed import CompressedReplayBuffer

State = tuple[th.Tensor, th.Tensor]
GAMMA, TARGET_INTERVAL = 0.99, 50


class RecurrentQNetwork(th.nn.Module):
    """A convolutional network, an LSTM, and a linear layer that returns Q-values."""

    def __init__(self, n_frames: int, n_actions: int, n_units: int) -> None:
        super().__init__()
        self.encoder = th.nn.Sequential(
            th.nn.Conv2d(n_frames, 16, 8, stride=4), th.nn.ReLU(),
            th.nn.Conv2d(16, 32, 4, stride=3), th.nn.ReLU(), th.nn.Flatten(), th.nn.Linear(32 * 6 * 6, n_units),
        )  # fmt: skip
        self.cell = th.nn.LSTMCell(n_units, n_units)
        self.head = th.nn.Linear(n_units, n_actions)

    def initial_state(self, n: int) -> State:
        """Return the state at the beginning of ``n`` episodes."""
        return th.zeros(n, self.cell.hidden_size), th.zeros(n, self.cell.hidden_size)

    def forward(self, observations: th.Tensor, starts: th.Tensor, state: State) -> tuple[th.Tensor, State]:
        """Return Q-values ``(batch, time, n_actions)`` and the state after the last step.

        :param observations: ``(batch, time, n_frames, height, width)``
        :param starts: 1 where the state is reset before a step, else 0; ``(batch, time)``
        """
        batch_size, n_steps = observations.shape[:2]
        features = self.encoder((observations.float() / 255).flatten(0, 1)).unflatten(0, (batch_size, n_steps))
        outputs = []
        for step in range(n_steps):
            kept = 1 - starts[:, step, None]
            state = self.cell(features[:, step], (state[0] * kept, state[1] * kept))
            outputs.append(state[0])
        return self.head(th.stack(outputs, dim=1)), state


def sequence_loss(network: RecurrentQNetwork, target: RecurrentQNetwork, batch: Any, burn_in: int) -> th.Tensor:
    """Return the loss of double Q-learning over the steps after the burn-in, which only computes their states."""
    observations = batch.all_observations
    # No episode begins with the next observation of a sequence's last step.
    starts = th.nn.functional.pad(batch.episode_starts, (0, 1))
    initial = network.initial_state(len(observations))
    with th.no_grad():
        next_values, _ = target(observations, starts, initial)
        state = network(observations[:, :burn_in], starts[:, :burn_in], initial)[1] if burn_in else initial
    values, _ = network(observations[:, burn_in:], starts[:, burn_in:], state)
    actions = values[:, 1:].argmax(dim=2, keepdim=True)
    next_values = next_values[:, burn_in + 1 :].gather(2, actions).squeeze(2)
    targets = batch.rewards[:, burn_in:] + GAMMA * (1 - batch.dones[:, burn_in:]) * next_values
    chosen = values[:, :-1].gather(2, batch.actions[:, burn_in:].long()).squeeze(2)
    errors = th.nn.functional.smooth_l1_loss(chosen, targets.detach(), reduction="none")
    mask = batch.mask[:, burn_in:]
    return errors[mask].mean()


class Player:
    """Plays epsilon-greedily with a recurrent network, and adds the transitions to a buffer."""

    def __init__(self, env: VecEnv, network: RecurrentQNetwork, buffer: CompressedReplayBuffer) -> None:
        self.env, self.network, self.buffer = env, network, buffer
        self.obs: Any = env.reset()
        self.starts, self.state = th.ones(env.num_envs, 1), network.initial_state(env.num_envs)

    def step(self, share_random: float) -> None:
        """Play one step in every environment."""
        with th.no_grad():
            values, self.state = self.network(th.as_tensor(self.obs)[:, None], self.starts, self.state)
        actions = values[:, 0].argmax(dim=1).numpy()
        is_random = np.random.random(len(actions)) < share_random  # noqa: NPY002  # seeded by SB3
        actions[is_random] = [self.env.action_space.sample() for _ in range(is_random.sum())]
        new_obs, rewards, dones, infos = self.env.step(actions)
        assert isinstance(new_obs, np.ndarray)
        next_obs = new_obs.copy()
        for index in np.flatnonzero(dones).tolist():
            next_obs[index] = infos[index]["terminal_observation"]
        self.buffer.add(self.obs, next_obs, actions, rewards, dones, infos)
        self.obs, self.starts = new_obs, th.as_tensor(dones[:, None], dtype=th.float32)


def main(
    game: Game = "Pong",
    steps: Steps = 6_000,
    updates: Annotated[int, typer.Option(min=1, help="Gradient steps.")] = 150,
    length: Annotated[int, typer.Option(min=1, help="Transitions of a sequence to train on.")] = 20,
    burn_in: Annotated[int, typer.Option(min=0, help="Transitions before them, which compute the state.")] = 10,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences of a batch.")] = 16,
    n_units: Annotated[int, typer.Option(min=1, help="Units of the LSTM.")] = 64,
    n_envs: NEnvs = 4,
    seed: Seed = 0,
) -> None:
    """Train a recurrent Q-network on sequences from a compressed replay buffer."""
    set_random_seed(seed)
    th.set_num_threads(1)
    env = VecTransposeImage(make_atari(game, n_envs, seed))
    env.action_space.seed(seed)
    space: Any = env.observation_space
    network = RecurrentQNetwork(space.shape[0], env.action_space.n, n_units)  # type: ignore[attr-defined]
    target, optimizer = copy.deepcopy(network), th.optim.Adam(network.parameters(), lr=3e-4)
    buffer = CompressedReplayBuffer(steps, space, env.action_space, device="cpu", n_envs=n_envs)
    player = Player(env, network, buffer)
    n_rows, n_first = steps // n_envs, steps // n_envs // 2
    for _ in track(range(n_first), "playing at random"):
        player.step(share_random=1.0)
    losses, sampling = [], 0.0
    rows = np.array_split(np.arange(n_first, n_rows), updates)  # played between the updates
    for update in track(range(updates), "training"):
        for _ in rows[update]:
            player.step(share_random=max(1 - update / updates, 0.1))
        begin = time.perf_counter()
        batch = buffer.sample_sequences(batch_size, length, burn_in, stride=length // 2 or 1, pad="end")
        sampling += time.perf_counter() - begin
        loss = sequence_loss(network, target, batch, burn_in)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        th.nn.utils.clip_grad_norm_(network.parameters(), 10.0)
        optimizer.step()
        losses.append(loss.item())
        if update % TARGET_INTERVAL == 0:
            target.load_state_dict(network.state_dict())
    env.close()
    Console().print(memory_table(buffer))
    first, last = (float(np.mean(part)) for part in (losses[: updates // 4 or 1], losses[-(updates // 4 or 1) :]))
    print(
        f"{updates} updates with {batch_size} sequences of {burn_in} + {length} observations: "
        f"{sampling / updates * 1e3:.2f} ms to sample each, loss {first:.4f} at first and {last:.4f} at last."
    )


if __name__ == "__main__":
    typer.run(main)
