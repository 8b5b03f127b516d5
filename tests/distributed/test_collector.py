"""A collector stores exactly the transitions that SB3's algorithms store with the same actions."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from interrupts import Bytecode, bytecodes, evenly, interrupt
from stable_baselines3 import DQN, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecEnv

from distributed.collected_envs import (
    Numbered,
    breakout,
    broken,
    cart,
    carts,
    console,
    failing,
    normalized_carts,
    pendulum,
)
from sb3_compressed import CompressedDictReplayBuffer, CompressedReplayBuffer, __version__
from sb3_compressed.distributed import collector as collector_module
from sb3_compressed.distributed.collector import (
    Collector,
    CollectorNotPrepared,
    CollectorSettings,
)
from sb3_compressed.distributed.exploration import ExplorationConfig
from sb3_compressed.distributed.policy_copy import policy_factory, policy_weights
from sb3_compressed.distributed.shard import ShardStatus

SEED = 5
N_STEPS = 150
GREEDY = ExplorationConfig()


class LocalWriter:
    """Adds transitions to a buffer in this process, with the interface of writers."""

    def __init__(self, env: VecEnv) -> None:
        cls = CompressedDictReplayBuffer if isinstance(env.observation_space, spaces.Dict) else CompressedReplayBuffer
        self.buffer = cls(1000, env.observation_space, env.action_space, "cpu", env.num_envs)
        self.add = self.buffer.add

    status: ShardStatus | None = None

    def flush(self) -> None:
        """Do nothing, as nothing is on its way."""


class Uniform(BasePolicy):
    """Is only called for actions that are not random, which these tests do not need."""

    def _predict(self, observation: Any, deterministic: bool = False) -> Any:
        raise NotImplementedError


def settings_of(make_env: Any, env: VecEnv, **options: Any) -> CollectorSettings:
    """Return settings of collectors that act at random.

    :param env: that of the learner
    """
    spaces_of = env.observation_space, env.action_space
    defaults: Any = {"new_policy": partial(Uniform, *spaces_of), "exploration": GREEDY, "seed": SEED}
    return CollectorSettings(make_env, *spaces_of, **{**defaults, **options})


def wrapped(make_env: Callable[[], Any]) -> VecEnv:
    return BaseAlgorithm._wrap_env(make_env())


def prepared(make_env: Callable[[], Any], *, index: int = 0, n_restarts: int = 0, **options: Any) -> Any:
    """Return a collector that writes to a buffer in this process, and the buffer."""
    collector = Collector()
    collector.prepare(__version__, settings_of(make_env, wrapped(make_env), **options), index, n_restarts)
    assert collector._env is not None
    writer: Any = LocalWriter(collector._env)
    collector.connect(writer)
    return collector, writer.buffer


def fields_of(buffer: Any, n_steps: int) -> dict[str, Any]:
    """Return the first steps of a buffer."""
    fields: dict[str, Any] = {}
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        value = getattr(buffer, name)
        for key, array in value.items() if isinstance(value, dict) else [("", value)]:
            fields[name + key] = np.array(array[:n_steps])
    return fields


class Replayed(DQN):
    """Chooses given actions."""

    actions: Any

    def _sample_action(self, *args: Any, **kwargs: Any) -> Any:
        return next(self.actions)


class ReplayedContinuous(TD3):
    """Chooses given actions, scaled."""

    actions: Any

    def _sample_action(self, *args: Any, **kwargs: Any) -> Any:
        scaled, stored = next(self.actions)
        return self.policy.unscale_action(scaled), stored


def sb3_transitions(env: VecEnv, actions: Any, callback: BaseCallback | None = None) -> Any:
    """Return the buffer in which SB3 stores transitions with these actions, ``(n_steps, n_envs, action_size)``."""
    is_continuous = isinstance(env.action_space, spaces.Box)
    policy = "MultiInputPolicy" if isinstance(env.observation_space, spaces.Dict) else "MlpPolicy"
    options: Any = {"buffer_size": 1000, "learning_starts": 10_000, "train_freq": 1, "seed": SEED, "device": "cpu"}
    algorithm: Any = ReplayedContinuous if is_continuous else Replayed
    model = algorithm(policy, env, policy_kwargs={"net_arch": [4]}, **options)
    given = actions if is_continuous else actions[..., 0]
    model.actions = iter(zip(given, given, strict=True))
    model.learn(len(given) * env.num_envs, callback)
    return model.replay_buffer


# -- the same transitions as SB3 -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make_env",
    [cart, pendulum, breakout, console, Numbered, carts],
    ids=["vector", "continuous", "image", "dict", "no-time-limit", "vectorized"],
)
def test_transitions_are_those_of_sb3(make_env: Callable[[], Any]) -> None:
    collector, buffer = prepared(make_env)
    result = collector.collect(N_STEPS, n_random_steps=N_STEPS)
    collector.close()
    ours = fields_of(buffer, N_STEPS)
    theirs = fields_of(sb3_transitions(wrapped(make_env), ours["actions"]), N_STEPS)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    assert result.n_transitions == N_STEPS * buffer.n_envs
    assert len(result.episodes) >= ours["dones"].sum() > 0


@pytest.mark.parametrize(("algorithm", "make_env"), [(DQN, carts), (TD3, pendulum)])
def test_actions_are_those_of_sb3(algorithm: Any, make_env: Callable[[], Any]) -> None:
    env = wrapped(make_env)
    options: Any = {"learning_starts": 0, "buffer_size": 1000, "train_freq": N_STEPS, "seed": SEED, "device": "cpu"}
    if algorithm is DQN:
        options |= {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0}
    model = algorithm("MlpPolicy", env, **options)
    for parameter in model.policy.parameters():  # new policies choose one action nearly always
        th.nn.init.normal_(parameter)
    exploration = ExplorationConfig()
    collector, buffer = prepared(make_env, new_policy=policy_factory(model.policy), exploration=exploration)
    weights = policy_weights(model.policy)
    _, callback = model._setup_learn(N_STEPS, None)
    model.collect_rollouts(env, callback, model.train_freq, model.replay_buffer)
    collector.collect(N_STEPS, 1, weights)
    ours, theirs = fields_of(buffer, N_STEPS), fields_of(model.replay_buffer, N_STEPS)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    assert len(np.unique(ours["actions"])) > 1


class InfoRecorder(BaseCallback):
    """Records what callbacks find of the ends of episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[Any] = []

    def _on_step(self) -> bool:
        for env, (info, done) in enumerate(zip(self.locals["infos"], self.locals["dones"], strict=True)):
            if done or "episode" in info:
                step = (self.n_calls - 1) * len(self.locals["dones"]) + env
                episode = info.get("episode", {})
                self.ends.append((step, episode.get("r"), episode.get("l"), info.get("is_success"), bool(done)))
        return True


@pytest.mark.parametrize("make_env", [carts, Numbered, breakout], ids=["vector", "success", "lives"])
def test_ends_of_episodes_are_those_of_sb3(make_env: Callable[[], Any]) -> None:
    collector, buffer = prepared(make_env)
    result = collector.collect(N_STEPS, n_random_steps=N_STEPS)
    recorder = InfoRecorder()
    sb3_transitions(wrapped(make_env), fields_of(buffer, N_STEPS)["actions"], recorder)
    ours = []
    for end in result.episodes:
        episode = end.info.get("episode", {})
        ours.append((end.offset, episode.get("r"), episode.get("l"), end.info.get("is_success"), end.done))
    assert ours == recorder.ends
    assert ours


def test_several_calls_continue_the_episodes() -> None:
    one, buffer = prepared(cart)
    one.collect(60, n_random_steps=60)
    several, other_buffer = prepared(cart)
    for n_steps in (1, 0, 27, 32):
        assert several.collect(n_steps, n_random_steps=n_steps).n_transitions == n_steps
    expected = fields_of(buffer, 60)
    for name, array in fields_of(other_buffer, 60).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


# -- environments ----------------------------------------------------------------------------------------------


def observations(index: int, n_restarts: int, seed: int | None = SEED) -> Any:
    collector, buffer = prepared(cart, index=index, n_restarts=n_restarts, seed=seed, n_collectors=2)
    collector.collect(20, n_random_steps=20)
    return np.array(buffer.observations[:20])


def test_runs_are_reproducible_and_differ_between_collectors_and_after_restarts() -> None:
    np.testing.assert_array_equal(observations(1, 3), observations(1, 3))
    runs = [
        observations(0, 0),
        observations(1, 0),
        observations(0, 1),
        observations(0, 0, None),
        observations(0, 0, None),
    ]
    assert len(np.unique([run[0, 0] for run in runs], axis=0)) == len(runs)


def test_environments_with_other_spaces_are_refused() -> None:
    with pytest.raises(ValueError, match=r"observation space Box.*\(3,\).*the learner has Box.*\(4,\)"):
        Collector().prepare(__version__, settings_of(pendulum, wrapped(cart)), 0)
    other = dataclasses.replace(settings_of(cart, wrapped(cart)), action_space=spaces.Discrete(5))
    with pytest.raises(ValueError, match=r"action space Discrete\(2\), the learner has Discrete\(5\)"):
        Collector().prepare(__version__, other, 0)


@pytest.mark.parametrize(
    ("make_env", "error", "message"),
    [
        (broken, LookupError, "no such game"),
        (lambda: "CartPole-v1", TypeError, "got str"),
        (normalized_carts, ValueError, "without VecNormalize"),
    ],
)
def test_invalid_environments_are_refused(make_env: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Collector().prepare(__version__, settings_of(make_env, wrapped(cart)), 0)


def test_another_version_of_the_package_is_refused() -> None:
    with pytest.raises(RuntimeError, match=rf"0\.0\.1.*{__version__}"):
        Collector().prepare("0.0.1", settings_of(cart, wrapped(cart)), 0)


# -- calls -----------------------------------------------------------------------------------------------------


def test_a_collector_must_be_prepared() -> None:
    collector = Collector()
    with pytest.raises(CollectorNotPrepared):
        collector.collect(1)
    collector.prepare(__version__, settings_of(cart, wrapped(cart)), 0)
    with pytest.raises(CollectorNotPrepared):
        collector.collect(1, n_random_steps=1)
    collector.close()
    with pytest.raises(CollectorNotPrepared):
        collector.collect(1, n_random_steps=1)


def test_after_an_exception_a_collector_must_be_prepared_again() -> None:
    collector, buffer = prepared(failing(n_steps=10))
    with pytest.raises(OSError, match="crashed"):
        collector.collect(20, n_random_steps=20)
    with pytest.raises(CollectorNotPrepared):
        collector.collect(1, n_random_steps=1)
    assert buffer.pos == 10


def test_after_ctrl_c_no_transition_begins_with_an_earlier_observation() -> None:
    def collect(at: Bytecode | None) -> list[Bytecode]:
        collector, buffer = prepared(lambda: Numbered(length=1000))
        collector.collect(3, n_random_steps=3)
        if at is None:
            return bytecodes(lambda: collector.collect(2, n_random_steps=2))
        interrupt(lambda: collector.collect(2, n_random_steps=2), at)
        with contextlib.suppress(CollectorNotPrepared):
            collector.collect(3, n_random_steps=3)
        fields = fields_of(buffer, buffer.pos)
        assert (fields["next_observations"][..., 0] == fields["observations"][..., 0] + 1).all()
        return []

    found = [each for each in collect(None) if each[0].co_filename == collector_module.__file__]
    for at in evenly(found, 20):
        collect(at)


def test_random_steps_precede_those_of_the_policy() -> None:
    model = DQN("MlpPolicy", cart(), seed=0, device="cpu", buffer_size=100)
    collector, buffer = prepared(cart, new_policy=policy_factory(model.policy), exploration=GREEDY)
    weights = {name: np.zeros_like(array) for name, array in policy_weights(model.policy).items()}
    weights["q_net.q_net.4.bias"] = np.array([0.0, 1.0], np.float32)  # always the second action
    collector.collect(200, 1, weights, n_random_steps=100)
    actions = buffer.actions[:200, 0, 0]
    assert set(actions[:100].tolist()) == {0, 1}
    assert set(actions[100:].tolist()) == {1}


def test_monitors_are_not_added_twice() -> None:
    collector, _ = prepared(lambda: gym.wrappers.TimeLimit(Numbered(), 100))
    result = collector.collect(20, n_random_steps=20)
    assert [end.info["episode"]["l"] for end in result.episodes] == [7, 7]
