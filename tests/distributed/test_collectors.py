"""During ``learn``, the transitions of collectors count as those of the model's own environment would."""

from __future__ import annotations

import math
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import cloudpickle
import numpy as np
import pytest
import ray
import torch as th
from stable_baselines3 import DQN, PPO, TD3
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CheckpointCallback,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecNormalize

from distributed.collected_envs import Endless, Numbered, broken, cart, pendulum
from distributed.stopped import until, until_ended
from sb3_compressed import CompressedReplayBuffer, PrioritizedReplayCallback, prioritize
from sb3_compressed.distributed import Collectors, DistributedReplayBuffer
from sb3_compressed.errors import ShardUnavailable

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


def model_of(make_env: Callable[[], Any] = Numbered, algorithm: Any = DQN, **options: Any) -> Any:
    """Return a small model with a distributed buffer."""
    defaults = {
        "buffer_size": 5000, "learning_starts": 100, "batch_size": 32, "policy_kwargs": {"net_arch": [8]},
        "replay_buffer_class": DistributedReplayBuffer, "replay_buffer_kwargs": {"prefetch": 2}, "seed": 0,
        "device": "cpu",
    }  # fmt: skip
    if algorithm is DQN:
        defaults["target_update_interval"] = 20
    return algorithm("MlpPolicy", make_env(), **{**defaults, **options})


@pytest.fixture(scope="module")
def model(local_ray: None) -> Iterator[Any]:
    """Return a model that several tests train, each anew."""
    model: Any = model_of()
    buffer = model.replay_buffer
    yield model
    assert type(model) is DQN
    buffer.close()


def collectors(make_env: Any = Numbered, n_collectors: int = 1, **options: Any) -> Collectors:
    return Collectors(make_env, n_collectors, **{"steps_per_call": 16, **options})


def pids_of(callback: Collectors) -> set[int]:
    """Return the processes of the collectors."""
    group: Any = callback._rollouts._group  # type: ignore[union-attr]
    return set(ray.get([member.actor.__ray_call__.remote(lambda _: os.getpid()) for member in group.members]))


def assert_ended(model: Any, pids: set[int]) -> None:
    """Assert that collectors end soon, and that the model is as before."""
    assert type(model) is DQN
    until_ended(pids)


class Recorder(BaseCallback):
    """Records what callbacks see, and calls a function in the first step after training has begun."""

    def __init__(self, remote: Collectors, action: Callable[[Any], Any] | None = None, at: int = 120) -> None:
        super().__init__()
        self.remote, self.action, self.at = remote, action, at
        self.timesteps: list[int] = []
        self.n_episodes = self.n_rollouts = 0
        self.rates: list[float] = []
        self.pids: set[int] = set()

    def _on_rollout_end(self) -> None:
        self.n_rollouts += 1

    def _on_step(self) -> bool:
        self.timesteps.append(self.num_timesteps)
        self.n_episodes += int(self.locals["dones"].sum())
        self.rates.append(getattr(self.model, "exploration_rate", 0.0))
        if self.at is not None and self.num_timesteps >= self.at and not self.pids:
            self.pids = pids_of(self.remote)
            if self.action is not None:
                return self.action(self.model) is not False
        return True


# -- counting --------------------------------------------------------------------------------------------------


def test_transitions_of_collectors_count_as_steps(model: Any) -> None:
    env = model.env.envs[0].unwrapped
    n_steps, n_resets, n_calls, n_updates = env.n_steps, env.n_resets, model._n_calls, model._n_updates
    remote = collectors(n_collectors=2, samples_per_insert=8, weights_interval=20)
    logged: dict[str, float] = {}

    def record_logs(model: Any) -> None:
        dump = model.logger.dump

        def record(step: int) -> None:
            logged.update(model.logger.name_to_value)
            dump(step)

        model.logger.dump = record

    recorder = Recorder(remote, record_logs)
    model.learn(500, callback=[remote, recorder], log_interval=4)
    assert (env.n_steps, env.n_resets) == (n_steps, n_resets + 1)
    assert model.num_timesteps == 500
    assert recorder.timesteps == list(range(1, 501))
    assert recorder.n_rollouts == 125  # of 32 / 8 transitions
    assert model._n_calls - n_calls == 500
    assert model._n_updates - n_updates == 100  # from the first rollout after 100 transitions
    assert (model._current_progress_remaining, model.exploration_rate) == (0, 0.05)
    assert sorted(recorder.rates[1:], reverse=True) == recorder.rates[1:]  # SB3's first one is 0
    assert model._episode_num == recorder.n_episodes in {500 // 7, 500 // 7 - 1}  # of two collectors
    assert [info["l"] for info in model.ep_info_buffer] == [7] * recorder.n_episodes
    assert len(model.ep_success_buffer) == recorder.n_episodes
    assert_ended(model, recorder.pids)
    statistics = remote.statistics()
    assert (statistics.n_collected, statistics.n_sampled) == (500, 3200)
    assert statistics.samples_per_insert == 3200 / (500 - 100)
    assert (statistics.n_lost, statistics.n_restarts) == (0, 0)
    assert statistics.policy_version > 1
    values = {name.removeprefix("distributed/"): logged[name] for name in logged if name.startswith("distributed/")}
    assert set(values) == {
        "samples_per_insert", "learner_waited", "restarts", "lost",
        "transitions", "memory_mb",
    }  # fmt: skip
    assert 0 < values["samples_per_insert"] <= 8
    assert values["transitions"] > 0
    assert values["memory_mb"] > 10, "a Python process"
    assert logged["rollout/ep_len_mean"] == 7
    assert logged["rollout/success_rate"] <= 1


def test_training_can_continue(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """SB3 accepts ``learn(1e6)`` and ``learning_starts=1e4``, and continues until there are no fewer steps."""
    monkeypatch.setattr(model, "learning_starts", 5e1)
    n_updates = model._n_updates
    model.learn(1.005e2, callback=collectors())
    assert (model.num_timesteps, model._n_updates - n_updates) == (101, 14)  # the last rollout is shorter
    model.learn(70, callback=collectors(), reset_num_timesteps=False)
    assert model.num_timesteps == model._total_timesteps == 171
    model.learn(20)  # without collectors
    assert model.num_timesteps == 20
    assert model.env.envs[0].unwrapped.n_steps >= 20


def test_fractions_of_transitions_accumulate() -> None:
    noise = NormalActionNoise(np.zeros(1), np.ones(1))
    options: Any = {"learning_starts": 10, "batch_size": 16, "action_noise": noise}
    model = model_of(lambda: make_vec_env(pendulum, 2), TD3, **options)
    remote = collectors(lambda: make_vec_env(pendulum, 3), n_collectors=1, samples_per_insert=32, lock_step=True)
    recorder = Recorder(remote)
    model.learn(40, callback=[remote, recorder])
    assert recorder.timesteps == list(range(2, 41, 2))
    assert model._n_updates == 57  # half a transition for each, from 12 of them until there are 40
    assert remote.statistics().n_collected == 42
    model.replay_buffer.close()


def test_no_more_steps_are_counted_than_were_ordered() -> None:
    model = model_of(lambda: make_vec_env(cart, 4), gradient_steps=0, train_freq=3, learning_starts=0)
    remote = collectors(cart)
    recorder = Recorder(remote)
    model.learn(30, callback=[remote, recorder])
    assert recorder.timesteps == [4, 8, 12, 16, 20, 24, 28, 30]
    assert recorder.n_rollouts == 3  # of three steps each
    assert (model._n_updates, model.replay_buffer.n_transitions) == (0, 30)
    model.replay_buffer.close()


def test_without_a_limit_the_learner_waits_before_learning_starts_only(model: Any) -> None:
    remote = collectors(n_collectors=2, samples_per_insert=None)
    model.learn(300, callback=remote)
    assert (model.num_timesteps, remote.statistics().n_collected) == (300, 300)


# -- exploration and policies ----------------------------------------------------------------------------------


def test_actions_are_random_until_learning_starts() -> None:
    model = model_of(gradient_steps=0)
    for parameter in model.policy.parameters():
        th.nn.init.zeros_(parameter)
    model.policy.q_net.q_net[-1].bias.data[1] = 1  # always the second action
    model.learn(300, callback=collectors(exploration=0.0, lock_step=True))
    samples = model.replay_buffer.sample(5000)
    is_random = samples.observations[:, 0] < 100
    assert set(samples.actions[is_random].flatten().tolist()) == {0, 1, 2}
    assert set(samples.actions[~is_random].flatten().tolist()) == {1}
    model.replay_buffer.close()


def weights_after_training() -> tuple[Any, Any]:
    model = model_of(cart, learning_starts=50, replay_buffer_kwargs={"prefetch": 0}, seed=3)
    remote = collectors(cart, lock_step=True)
    model.learn(100, callback=remote)
    assert (remote.statistics().n_collected, remote.statistics().n_sampled) == (100, 13 * 32)
    weights = np.concatenate([value.numpy().ravel() for value in model.policy.state_dict().values()])
    returns = [info["r"] for info in model.ep_info_buffer]
    model.replay_buffer.close()
    return weights, returns


def test_runs_in_lock_step_are_reproducible() -> None:
    weights, returns = weights_after_training()
    same_weights, same_returns = weights_after_training()
    np.testing.assert_array_equal(weights, same_weights)
    assert returns == same_returns


# -- callbacks, ends and errors --------------------------------------------------------------------------------


def test_callbacks_can_end_the_training(model: Any) -> None:
    remote = collectors()
    recorder = Recorder(remote, lambda _: False)
    model.learn(10_000, callback=[remote, recorder])
    assert model.num_timesteps == 120
    assert_ended(model, recorder.pids)


def test_exceptions_of_callbacks_end_the_collectors(model: Any) -> None:
    def action(model: Any) -> None:
        raise ValueError("stop")

    remote = collectors(n_collectors=2)
    recorder = Recorder(remote, action)
    with pytest.raises(ValueError, match="stop"):
        model.learn(10_000, callback=[remote, recorder])
    assert len(recorder.pids) == 2
    assert_ended(model, recorder.pids)
    model.learn(10)


def test_interrupts_of_waits_end_the_collectors(model: Any) -> None:
    remote = collectors(Endless)

    def interrupt() -> None:
        until(lambda: remote._rollouts and remote.statistics().learner_waited > 1)
        group: Any = remote._rollouts._group  # type: ignore[union-attr]
        members.extend(group.members)
        os.kill(os.getpid(), signal.SIGINT)

    members: list[Any] = []
    thread = Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        model.learn(500, callback=remote)
    thread.join()
    assert_ended(model, set())
    for member in members:
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(member.actor.__ray_call__.remote(lambda _: os.getpid()))


def test_errors_at_the_start_end_the_collectors(model: Any) -> None:
    with pytest.raises(LookupError, match="no such game"):
        model.learn(500, callback=collectors(broken))
    assert_ended(model, set())
    with pytest.raises(ValueError, match="observation space"):
        model.learn(500, callback=collectors(cart))
    assert_ended(model, set())


class FailingStart(BaseCallback):
    """Fails when the training starts."""

    def _on_training_start(self) -> None:
        raise ValueError("not today")

    def _on_step(self) -> bool:
        return True


def test_an_interrupted_call_of_learn_does_not_change_the_next_one(model: Any) -> None:
    remote = collectors()
    with pytest.raises(ValueError, match="not today"):
        model.learn(500, callback=[remote, FailingStart()])
    env = model.env.envs[0].unwrapped
    n_steps = env.n_steps
    model.learn(20)
    assert env.n_steps == n_steps + 20
    assert type(model) is DQN
    with pytest.raises(ValueError, match="not today"):
        model.learn(500, callback=[remote, FailingStart()])
    remote.close()
    assert type(model) is DQN


# -- saving ----------------------------------------------------------------------------------------------------


def test_models_are_saved_without_anything_of_this(model: Any, tmp_path: Path) -> None:
    pickles: list[bytes] = []

    def action(model: Any) -> None:
        excluded = model._excluded_save_params()
        state = {name: value for name, value in vars(model).items() if name not in excluded}
        pickles.append(pickle.dumps({name: cloudpickle.dumps(value) for name, value in state.items()}))
        model.save(tmp_path / "during")

    remote = collectors()
    checkpoints = CheckpointCallback(150, str(tmp_path))
    model.learn(300, callback=[remote, Recorder(remote, action), checkpoints])
    model.save(tmp_path / "after")
    assert pickles
    for word in (b"ActorHandle", b"RemoteRollouts", b"CollectorGroup"):
        assert word not in pickles[0]
        for path in tmp_path.iterdir():
            assert word not in path.read_bytes()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"during.zip", "after.zip", "rl_model_150_steps.zip", "rl_model_300_steps.zip"}


# -- with prioritized replay -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prioritized(local_ray: None) -> Iterator[Any]:
    """Return a model with a prioritized buffer."""
    model = model_of(replay_buffer_kwargs={"sampler": "prioritized", "prefetch": 0})
    yield model
    model.replay_buffer.close()


@pytest.mark.parametrize("order", ["before learn", "last"])
def test_prioritized_replay_works_with_collectors(prioritized: Any, order: str) -> None:
    model, remote = prioritized, collectors()
    errors: list[float] = []

    def action(model: Any) -> None:
        errors.append(model.logger.name_to_value["train/td_error"])

    callbacks: list[BaseCallback] = [remote, Recorder(remote, action)]
    if order == "last":
        callbacks.insert(1, PrioritizedReplayCallback())
    handle = prioritize(model) if order == "before learn" else None
    model.learn(200, callback=callbacks)
    assert errors[0] > 0
    if handle is not None:
        assert type(model) is not DQN
        handle.remove()
    assert type(model) is DQN


# -- mistakes --------------------------------------------------------------------------------------------------


def test_models_that_are_not_supported_are_refused(model: Any) -> None:
    compressed = model_of(replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs={})
    with pytest.raises(TypeError, match="replay_buffer_class=Dist"):
        compressed.learn(10, callback=collectors())
    assert type(compressed) is DQN
    with pytest.raises(TypeError, match="got PPO"):
        PPO("MlpPolicy", cart(), device="cpu", n_steps=8, batch_size=8).learn(8, callback=collectors())
    normalized = model_of(lambda: VecNormalize(make_vec_env(Numbered)))
    with pytest.raises(ValueError, match="VecNormalize"):
        normalized.learn(10, callback=collectors())
    normalized.replay_buffer.close()
    model.gradient_steps = -1
    with pytest.raises(ValueError, match="got gradient_steps=-1"):
        model.learn(10, callback=collectors())
    model.gradient_steps = 1
    with pytest.raises(ValueError, match="one Collectors callback"):
        model.learn(10, callback=[collectors(), collectors()])
    with pytest.raises(ValueError, match="between 0 and 1"):
        model.learn(10, callback=collectors(exploration=2.0))
    model.learn(10)
    assert type(model) is DQN


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"make_env": "CartPole-v1"}, TypeError, "make_env must be a function.*'CartPole-v1'"),
        ({"n_collectors": 0}, ValueError, "n_collectors must be .*got 0"),
        ({"steps_per_call": 1.5}, TypeError, "steps_per_call must be an int"),
        ({"samples_per_insert": 0}, ValueError, "samples_per_insert must be positive.*got 0"),
        ({"samples_per_insert": None, "lock_step": True}, ValueError, "lock_step needs a limit"),
        ({"timeout": 0}, ValueError, "timeout must be a positive number of seconds, got 0"),
        ({"timeout": math.inf}, ValueError, "timeout must be a positive number of seconds, got inf"),
    ],
)
def test_invalid_arguments_are_refused(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Collectors(**{"make_env": cart, **options})


def test_statistics_need_a_training() -> None:
    with pytest.raises(ValueError, match="before learn"):
        collectors().statistics()


@pytest.mark.parametrize("gradient_steps", [0, 1])
def test_a_shard_that_ray_gives_up_ends_the_training(gradient_steps: int) -> None:
    """Without gradient steps, nothing is sampled, so that collectors find it."""
    model = model_of(gradient_steps=gradient_steps)
    remote = collectors()
    recorder = Recorder(remote, lambda model: ray.kill(model.replay_buffer._group.shards[0].actor))
    with pytest.raises(ShardUnavailable, match="shard 0"):
        model.learn(100_000, callback=[remote, recorder])
    assert remote.statistics().n_restarts == 0
    assert_ended(model, recorder.pids)
    model.replay_buffer.close()
