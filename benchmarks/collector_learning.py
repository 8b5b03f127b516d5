"""Train DQN on MinAtar games with four collectors and without, and compare the returns at equal numbers of updates.

    pip install --no-deps minatar
    nice python benchmarks/collector_learning.py --games Breakout --rounds 3 --runs runs.jsonl --out results.json

``uniform`` is SB3's DQN as in ``prioritized_learning.py``, ``collectors`` the same with a distributed buffer and four
collectors, which explore with the schedule of the model and are kept at the same eight samples per insert. Runs and
scores are those of ``prioritized_learning.py``.
"""

from __future__ import annotations

import importlib
import time
from functools import partial
from typing import Any

import gymnasium as gym
import prioritized_learning
import torch as th
from prioritized_learning import SETTINGS, MinAtarNetwork, ReturnsCallback, run_of
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

from sb3_compressed.distributed import Collectors, DistributedReplayBuffer

N_COLLECTORS = 4


def make_env(game: str) -> gym.Env[Any, Any]:
    """Return a game."""
    if f"MinAtar/{game}-v1" not in gym.registry:
        importlib.import_module("minatar.gym").register_envs()
    return gym.make(f"MinAtar/{game}-v1")


def train(game: str, replay: str, seed: int, steps: int) -> dict[str, Any]:
    """Train once and return the score and the learning curve."""
    if replay == "uniform":
        return prioritized_learning.train(game, replay, seed, steps)
    th.set_num_threads(1)
    model = DQN(
        "MlpPolicy",
        make_vec_env(partial(make_env, game), seed=seed),
        replay_buffer_class=DistributedReplayBuffer,
        policy_kwargs={"features_extractor_class": MinAtarNetwork, "net_arch": []},
        seed=seed,
        device="cpu",
        **SETTINGS,
    )
    returns, begin = ReturnsCallback(), time.process_time()
    samples_per_insert = SETTINGS["batch_size"] / SETTINGS["train_freq"]
    collectors = Collectors(
        partial(make_env, game), N_COLLECTORS, samples_per_insert=samples_per_insert, exploration="schedule",
        steps_per_call=32, weights_interval=50, seed=1000 * seed,
    )  # fmt: skip
    model.learn(steps, callback=[collectors, returns])
    seconds = time.process_time() - begin
    buffer: Any = model.replay_buffer
    buffer.close()
    return run_of(returns, game, replay, seed, steps, seconds)


if __name__ == "__main__":
    prioritized_learning.compare(
        __doc__, "collector_learning", train, ["uniform", "collectors"], ["uniform", "collectors"]
    )
