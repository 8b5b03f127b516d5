"""``prioritize`` changes nothing but the training, validates the model, and can be undone."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from sb3_contrib import QRDQN, TQC
from small_samplers import ValidSampler
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from weighted_losses import DoubleDQN, double_dqn_errors

from sb3_compressed import (
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    MixedReplayBuffer,
)
from sb3_compressed.samplers import PrioritizedSampler
from sb3_compressed.training.prioritized_replay import prioritize

PER = {"sampler": "prioritized"}


def cart_pole(n_envs: int = 1) -> VecEnv:
    return make_vec_env("CartPole-v1", n_envs, seed=0)


def dqn(algorithm: Any = DQN, env: Any = None, **arguments: Any) -> Any:
    """Return a model that trains after 20 steps, with priorities unless the arguments are others."""
    arguments = {
        "buffer_size": 200, "learning_starts": 20, "batch_size": 16, "policy_kwargs": {"net_arch": [16]},
        "target_update_interval": 40, "replay_buffer_class": CompressedReplayBuffer, "replay_buffer_kwargs": PER,
        **arguments,
    }  # fmt: skip
    return algorithm("MlpPolicy", env or cart_pole(), seed=0, device="cpu", **arguments)


def updated_priorities(model: Any) -> bool:
    """Return whether the priorities of the model's buffer differ from each other, which those of new items do not."""
    sampler = model.replay_buffer.sampler
    return len(np.unique(sampler.priorities[sampler.is_valid])) > 1


def hooks_of(model: Any) -> list[Any]:
    return [hook for module in model.policy.modules() for hook in module._forward_hooks.values()]


def weights_of(model: Any) -> bytes:
    return b"".join(value.numpy().tobytes() for value in model.policy.state_dict().values())


# -- attaching and detaching -----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [DQN, QRDQN])
def test_training_updates_priorities_and_logs_td_errors(algorithm: Any) -> None:
    model = dqn(algorithm)
    prioritize(model)
    model.learn(60)
    assert updated_priorities(model)
    assert hooks_of(model) == []
    assert "sample" not in vars(model.replay_buffer)
    assert model.logger.name_to_value["train/td_error"] > 0
    assert model.logger.name_to_value["train/loss"] > 0


def test_removing_restores_the_model() -> None:
    model = dqn()
    attributes, buffer_attributes = set(vars(model)), set(vars(model.replay_buffer))
    handle = prioritize(model)
    assert isinstance(model, DQN)
    assert (type(model).__name__, type(model).__module__) == ("DQN", DQN.__module__)
    assert set(vars(model)) == attributes
    assert set(vars(model.replay_buffer)) == buffer_attributes
    handle.remove()
    assert type(model) is DQN
    assert hooks_of(model) == []
    model.learn(60)
    assert not updated_priorities(model)
    handle.remove()
    assert type(model) is DQN


def test_a_second_call_replaces_the_first() -> None:
    model, called = dqn(), []

    def td_error(model: DQN, batch: Any) -> th.Tensor:
        called.append(len(batch.indices))
        return double_dqn_errors(model, batch)

    first = prioritize(model)
    second = prioritize(model, td_error=td_error)
    first.remove()
    model.learn(60)
    assert called == [16] * model._n_updates
    second.remove()
    assert type(model) is DQN


@pytest.mark.parametrize(("algorithm", "shape"), [(DQN, (16,)), (QRDQN, (16, 1))])
def test_priorities_are_those_of_given_td_errors(algorithm: Any, shape: tuple[int, ...]) -> None:
    def td_error(model: Any, batch: Any) -> th.Tensor:
        assert not th.is_grad_enabled()
        return th.full(shape, -3.0)

    model = dqn(algorithm)
    with prioritize(model, td_error=td_error):
        model.learn(100)
    priorities = model.replay_buffer.sampler.priorities
    np.testing.assert_allclose(np.unique(priorities[priorities != 1])[-1], (3 + 1e-6) ** 0.6)
    assert model.logger.name_to_value["train/td_error"] == 3


@pytest.mark.parametrize("errors", [th.zeros(3), th.zeros(16, 2), th.zeros(())])
def test_given_td_errors_must_be_one_for_each_transition(errors: th.Tensor) -> None:
    model = dqn()
    prioritize(model, td_error=lambda model, batch: errors)
    with pytest.raises(ValueError, match=r"td_errors must have the same shape .* got \(16,\) and "):
        model.learn(60)
    assert hooks_of(model) == []


# -- saving and loading ----------------------------------------------------------------------------------------


def test_saved_files_are_those_of_a_model_that_is_not_prioritized(tmp_path: Path) -> None:
    model = dqn()
    model.learn(30)
    model.save(tmp_path / "plain")
    handle = prioritize(model)
    model.save(tmp_path / "prioritized")
    with zipfile.ZipFile(tmp_path / "plain.zip") as plain, zipfile.ZipFile(tmp_path / "prioritized.zip") as ours:
        assert plain.read("data") == ours.read("data")
        assert [each.file_size for each in plain.infolist()] == [each.file_size for each in ours.infolist()]
    handle.remove()


def test_a_model_is_trained_saved_loaded_and_trained_further(tmp_path: Path) -> None:
    model = dqn()
    prioritize(model)
    model.learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")

    loaded = DQN.load(tmp_path / "model", env=cart_pole())
    assert type(loaded) is DQN
    loaded.load_replay_buffer(tmp_path / "buffer")
    buffer: Any = loaded.replay_buffer
    before = buffer.sampler.priorities
    np.testing.assert_array_equal(before, model.replay_buffer.sampler.priorities)

    with prioritize(loaded):
        loaded.learn(60, reset_num_timesteps=False)
    assert loaded._n_updates > model._n_updates
    assert (buffer.sampler.priorities[:60] != before[:60]).any()


def test_a_loaded_buffer_without_priorities_is_an_error(tmp_path: Path) -> None:
    dqn(replay_buffer_kwargs=None).learn(30).save_replay_buffer(tmp_path / "buffer")
    model = dqn()
    prioritize(model)
    model.load_replay_buffer(tmp_path / "buffer")
    with pytest.raises(ValueError, match=r"got 'uniform'.*take_over"):
        model.learn(60)

    buffer = dqn().replay_buffer
    buffer.take_over(model.replay_buffer)
    model.replay_buffer = buffer
    model.train(1, 8)
    assert updated_priorities(model)


# -- trainings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{"gradient_steps": -1}, {"train_freq": (1, "episode"), "gradient_steps": 2}])
def test_every_gradient_step_updates_priorities_once(arguments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = dqn(**arguments), []
    update = type(model.replay_buffer).update_priorities

    def record(self: Any, indices: Any, errors: Any) -> Any:
        sizes.append(len(indices))
        return update(self, indices, errors)

    monkeypatch.setattr(type(model.replay_buffer), "update_priorities", record)
    with prioritize(model):
        model.learn(100)
    assert sizes == [16] * model._n_updates
    assert sizes


def test_evaluations_and_predictions_during_the_training_change_nothing() -> None:
    class Predict(BaseCallback):
        def _on_step(self) -> bool:
            model: Any = self.model
            model.q_net(th.as_tensor(self.locals["new_obs"])).sum().backward()
            model.policy.optimizer.zero_grad()
            return True

    trained = []
    for callbacks in ([], [Predict(), EvalCallback(gym.make("CartPole-v1"), eval_freq=20, warn=False, verbose=0)]):
        model = dqn()
        with prioritize(model):
            model.learn(80, callback=callbacks)
        trained.append(model)
    assert weights_of(trained[0]) == weights_of(trained[1])


@pytest.mark.parametrize("kind", ["normalized", "zstd", "mixed"])
def test_priorities_of_other_buffers_are_updated(kind: str, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"env": VecNormalize(cart_pole(2))}
    if kind == "zstd":
        arguments = {"replay_buffer_kwargs": {**PER, "compression_method": "zstd-3"}}
    elif kind == "mixed":
        dqn().learn(100).replay_buffer.save_checkpoint(tmp_path)
        kwargs = {**PER, "demonstrations": tmp_path, "share": 0.25}
        arguments = {"replay_buffer_class": MixedReplayBuffer, "replay_buffer_kwargs": kwargs}
    model = dqn(**arguments)
    prioritize(model)
    model.learn(100)
    for buffer in getattr(model.replay_buffer, "buffers", [model.replay_buffer]):
        assert len(np.unique(buffer.sampler.priorities[buffer.sampler.is_valid])) > 1


def fail_once(owner: Any, name: str) -> None:
    """Replace a method of an object by one that raises, and restores the method."""

    def fail(*args: Any) -> None:
        del vars(owner)[name]
        raise ArithmeticError(f"{name} failed")

    vars(owner)[name] = fail


@pytest.mark.parametrize("where", ["forward", "step"])
def test_a_failed_step_does_not_affect_the_next_pass(where: str) -> None:
    model = dqn()
    prioritize(model)
    model.learn(40)
    fail_once(*{"forward": (model.q_net, "forward"), "step": (model.policy.optimizer, "zero_grad")}[where])
    before = model.replay_buffer.sampler.priorities[:40]
    with pytest.raises(ArithmeticError):
        model.train(1, 16)
    np.testing.assert_array_equal(model.replay_buffer.sampler.priorities[:40], before)
    assert hooks_of(model) == []
    assert "sample" not in vars(model.replay_buffer)

    obs = th.zeros(3, 4)
    model.policy.optimizer.zero_grad()
    model.q_net(obs).sum().backward()
    ours = [parameter.grad.clone() for parameter in model.q_net.parameters()]
    plain = dqn()
    plain.policy.load_state_dict(model.policy.state_dict())
    plain.q_net(obs).sum().backward()
    for gradient, parameter in zip(ours, plain.q_net.parameters(), strict=True):
        assert th.equal(gradient, parameter.grad)
    model.learn(40, reset_num_timesteps=False)


# -- errors ----------------------------------------------------------------------------------------------------


UNCOMPRESSED = {"replay_buffer_class": None, "replay_buffer_kwargs": None}
OTHER_GAMMA = {"replay_buffer_class": CompressedNStepReplayBuffer, "replay_buffer_kwargs": {**PER, "gamma": 0.9}}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (UNCOMPRESSED, TypeError, "ReplayBuffer"),
        ({"replay_buffer_kwargs": None}, ValueError, "'uniform'"),
        ({"replay_buffer_kwargs": {"sampler": ValidSampler()}}, ValueError, "'ValidSampler'"),
        ({**UNCOMPRESSED, "n_steps": 3, "gamma": 0.9}, TypeError, "n_steps=3, gamma=0.9"),
        (OTHER_GAMMA, ValueError, "gamma=0.99, but its buffer gamma=0.9"),
    ],
)
def test_a_buffer_that_does_not_fit_is_an_error(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        prioritize(dqn(**arguments))


@pytest.mark.filterwarnings("ignore:`n_steps")
def test_n_steps_must_be_those_of_the_model() -> None:
    several = {"replay_buffer_class": CompressedNStepReplayBuffer}
    for options, kwargs, found in (({}, {}, "one step"), (several, {"n_steps": 5}, "n_steps=5")):
        model = dqn(n_steps=3, replay_buffer_kwargs={**PER, **kwargs}, **options)
        with pytest.raises(ValueError, match=f"n_steps=3, but its buffer {found}"):
            prioritize(model)
    model = dqn(n_steps=3, replay_buffer_kwargs={**PER, "n_steps": 3, "gamma": 0.99}, **several)
    with prioritize(model):
        model.learn(60)
    assert updated_priorities(model)


def test_a_train_of_its_own_needs_a_function_of_td_errors() -> None:
    with pytest.raises(TypeError, match=r"DoubleDQN has a train\(\) of its own.* td_error="):
        prioritize(dqn(DoubleDQN))


def test_an_assigned_train_is_an_error() -> None:
    model = dqn()
    model.train = lambda *args: None
    with pytest.raises(TypeError, match="train was assigned"):
        prioritize(model)


def test_train_may_be_wrapped_afterwards() -> None:
    model, n_calls = dqn(), 0
    prioritize(model)
    train = model.train

    def counted(*args: Any, **kwargs: Any) -> None:
        nonlocal n_calls
        n_calls += 1
        train(*args, **kwargs)

    model.train = counted
    model.learn(60)
    assert n_calls > 0
    assert updated_priorities(model)


class GradientsEverywhereDQN(DoubleDQN):
    """Double DQN that computes its targets with gradients, before the values in the loss."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Train on unweighted losses."""
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size)  # type: ignore[union-attr]
            targets = batch.rewards + self.q_net(batch.next_observations).max(dim=1, keepdim=True).values.detach()
            values = th.gather(self.q_net(batch.observations), dim=1, index=batch.actions.long())
            (values - targets).square().mean().backward()
            self.policy.optimizer.step()


class ConcatenatingDQN(DoubleDQN):
    """DQN that passes all observations through the network at once."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Train on nothing."""
        batch = self.replay_buffer.sample(batch_size)  # type: ignore[union-attr]
        self.q_net(th.cat([batch.observations, batch.next_observations])).mean().backward()


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (GradientsEverywhereDQN, "compute other outputs under"),
        (ConcatenatingDQN, "must be called with the 16 observations of the batch, got 32"),
    ],
)
def test_a_train_whose_loss_cannot_be_weighted_is_an_error(algorithm: Any, message: str) -> None:
    model = dqn(algorithm)
    prioritize(model, td_error=double_dqn_errors)
    with pytest.raises(RuntimeError, match=message):
        model.learn(60)
    assert hooks_of(model) == []


class QuietTD3(TD3):
    """TD3 with a training of its own."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("algorithm", "mode", "td_error", "error", "message"),
    [
        (SAC, "per", None, ValueError, r"weights impair SAC .*mode=\"lap\""),
        (TD3, "per", None, ValueError, r"weights impair TD3 .*mode=\"lap\""),
        (TD3, "lap", double_dqn_errors, TypeError, "td_error is not supported for TD3"),
        (QuietTD3, "lap", None, TypeError, r"got QuietTD3 with a train\(\) of its own"),
        (TQC, "per", None, TypeError, "supports DQN, QRDQN and, with LAP, TD3, DDPG and SAC, got TQC"),
        (TD3, "lap", 3, TypeError, "td_error must be a function of the model and a batch, got 3"),
    ],
)
def test_unsupported_actor_critics_are_errors(
    algorithm: Any, mode: Any, td_error: Any, error: type[Exception], message: str
) -> None:
    kwargs = {"sampler": PrioritizedSampler(mode=mode)}
    model = algorithm(
        "MlpPolicy", "Pendulum-v1", replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs=kwargs,
        buffer_size=100, policy_kwargs={"net_arch": [8]}, device="cpu",
    )  # fmt: skip
    with pytest.raises(error, match=message):
        prioritize(model, td_error=td_error)


def test_on_policy_algorithms_are_errors() -> None:
    with pytest.raises(TypeError, match="got PPO"):
        prioritize(PPO("MlpPolicy", "CartPole-v1", device="cpu"))  # type: ignore[arg-type]
