"""``BufferStatsCallback`` logs the statistics of every kind of buffer, as read back from TensorBoard's events."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from support import atari_env
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from callbacks.failing import FailingCallback
from sb3_compressed import (
    BufferStatsCallback,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    MixedReplayBuffer,
    buffer_statistics,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.samplers import PrioritizedSampler

SIZES = {
    "transitions", "memory_mb", "full_memory_mb", "batch_memory_mb", "compression_ratio",
    "payload_bytes_per_transition", "shared_frames",
}  # fmt: skip
TIMES = {"add_us", "sample_us"}
SMALL_CNN = {"net_arch": [8], "features_extractor_kwargs": {"features_dim": 16}}


def dqn(folder: Path | None = None, n_envs: int = 2, **kwargs: Any) -> DQN:
    options: dict[str, Any] = {
        "policy": "CnnPolicy", "env": atari_env(n_envs=n_envs, max_steps=40), "buffer_size": 300,
        "learning_starts": 20, "batch_size": 4, "seed": 0, "device": "cpu", "policy_kwargs": SMALL_CNN,
        "replay_buffer_class": CompressedReplayBuffer, "tensorboard_log": None if folder is None else str(folder),
    }  # fmt: skip
    return DQN(**{**options, **kwargs})


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return step and value of the points of each ``buffer/`` curve."""
    [run] = folder.iterdir()
    events = EventAccumulator(str(run)).Reload()
    names = [tag for tag in events.Tags()["scalars"] if tag.startswith("buffer/")]
    return {name.partition("/")[2]: [(point.step, point.value) for point in events.Scalars(name)] for name in names}


def test_replay_buffers_are_logged_every_log_freq_steps(tmp_path: Path) -> None:
    model = dqn(tmp_path)
    model.learn(400, callback=BufferStatsCallback(log_freq=100), log_interval=1)  # until the loop is known
    found = curves(tmp_path)
    assert set(found) == SIZES | TIMES
    last = {name: points[-1] for name, points in found.items()}
    assert {step for step, _ in last.values()} == {400}
    assert last["transitions"][1] == 300
    expected = buffer_statistics(model.replay_buffer)
    assert last["memory_mb"][1] == pytest.approx(expected.memory_nbytes / 1e6)
    assert last["compression_ratio"][1] == pytest.approx(expected.compression_ratio)
    assert last["payload_bytes_per_transition"][1] == pytest.approx(expected.payload_nbytes_per_transition)
    assert last["shared_frames"][1] == pytest.approx(expected.shared_frames)
    for name in TIMES:
        assert 0 < last[name][1] < 1e6
    steps = [step for step, _ in found["transitions"]]
    assert len(steps) >= 4, "every 100 steps and at the end"
    assert steps == sorted(set(steps))


def test_training_is_unchanged_and_the_timers_are_removed() -> None:
    watched = dqn().learn(80, callback=BufferStatsCallback(20))
    alone = dqn().learn(80)
    assert set(vars(watched.replay_buffer)) == set(vars(alone.replay_buffer))
    assert type(watched.replay_buffer) is CompressedReplayBuffer
    both = watched.policy.state_dict().values(), alone.policy.state_dict().values()
    assert all(th.equal(ours, theirs) for ours, theirs in zip(*both, strict=True))


def test_rollout_buffers_are_logged_with_each_rollout(tmp_path: Path) -> None:
    model = PPO(
        "CnnPolicy", atari_env(n_envs=2), n_steps=32, n_epochs=1, device="cpu", policy_kwargs=SMALL_CNN,
        rollout_buffer_class=CompressedRolloutBuffer, tensorboard_log=str(tmp_path),
    )  # fmt: skip
    model.learn(192, callback=BufferStatsCallback())
    found = curves(tmp_path)
    assert set(found) == SIZES | TIMES
    assert found["transitions"] == [(64, 64.0), (128, 64.0), (192, 64.0)]
    assert [step for step, _ in found["sample_us"]] == [128, 192, 192], "batches are sampled after the rollout"
    assert all(0.6 < value < 0.8 for _, value in found["shared_frames"])
    assert all(value > 2 for _, value in found["compression_ratio"])


class SavesWhileMeasured(BaseCallback):
    """Saves and copies a model and its buffer in the middle of a training."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.done = False

    def _on_step(self) -> bool:
        buffer: Any = self.model.replay_buffer  # type: ignore[attr-defined]
        if self.num_timesteps < 60 or self.done:
            return True
        self.done = True
        assert "add" in vars(buffer), "a timer is installed"
        self.model.save(self.folder / "model")
        save_checkpoint(buffer, self.folder / "checkpoint")
        for other in (
            copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer)),
            load_checkpoint(self.folder / "checkpoint", device="cpu"),
        ):  # fmt: skip
            assert not {"add", "sample"} & set(vars(other))
            assert type(other) is type(buffer)
            assert other.sample(5).rewards.shape == (5, 1)
        return True


def test_models_and_buffers_can_be_saved_and_copied_while_timed(tmp_path: Path) -> None:
    saves = SavesWhileMeasured(tmp_path)
    dqn().learn(80, callback=[BufferStatsCallback(), saves])
    assert saves.done
    assert DQN.load(tmp_path / "model", env=atari_env(n_envs=2)).num_timesteps == 60


def test_a_training_after_a_failed_one_is_timed_once() -> None:
    model = dqn()
    with pytest.raises(ZeroDivisionError):
        model.learn(100, callback=[BufferStatsCallback(), FailingCallback(60, ZeroDivisionError())])
    callback = BufferStatsCallback()
    model.learn(100, callback=callback)
    assert not {"add", "sample"} & set(vars(model.replay_buffer))
    callback.on_training_end()  # rl-baselines3-zoo calls this twice
    assert not {"add", "sample"} & set(vars(model.replay_buffer))


class CountsCalls:
    """Counts the calls of ``sample``, as a method of one buffer that pickles contain."""

    def __init__(self) -> None:
        self.n_calls = 0
        self.buffer: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.n_calls += 1
        return type(self.buffer).sample(self.buffer, *args, **kwargs)


def test_a_method_that_a_user_has_assigned_to_the_buffer_is_timed_and_stays() -> None:
    model = dqn()
    buffer: Any = model.replay_buffer
    own = CountsCalls()
    own.buffer, buffer.sample = buffer, own
    with pytest.raises(ZeroDivisionError):
        model.learn(100, callback=[BufferStatsCallback(), FailingCallback(60, ZeroDivisionError())])
    n_calls = own.n_calls
    assert n_calls > 0
    for other in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        other.sample(5)
        assert vars(other)["sample"].n_calls == n_calls + 1
    model.learn(100, callback=BufferStatsCallback())
    assert own.n_calls > n_calls
    assert buffer.sample is own


PRIORITIES = {"priority_max", "effective_sample_size", "never_sampled", "skipped_updates"}


class RaisePriorities(BaseCallback):
    """Updates priorities in a training, as a prioritized algorithm does."""

    def _on_step(self) -> bool:
        buffer: Any = self.model.replay_buffer  # type: ignore[attr-defined]
        if self.num_timesteps > 40:
            batch = buffer.sample(4)
            buffer.update_priorities(batch.indices, np.full(4, 5.0))
        return True


def test_priorities_are_logged(tmp_path: Path) -> None:
    model = dqn(tmp_path, replay_buffer_kwargs={"sampler": PrioritizedSampler(alpha=1.0, epsilon=0.0)})
    model.learn(120, callback=[RaisePriorities(), BufferStatsCallback(50)])
    logged = curves(tmp_path)
    assert logged.keys() >= PRIORITIES
    buffer: Any = model.replay_buffer
    assert {value for _, value in logged["priority_max"]} == {5.0}
    assert logged["effective_sample_size"][-1][1] == pytest.approx(buffer.sampler.effective_sample_size)
    assert 0 < logged["effective_sample_size"][-1][1] <= 1
    assert 0 < logged["never_sampled"][-1][1] < 1
    assert logged["never_sampled"][-1][1] == pytest.approx(buffer.sampler.share_never_sampled)
    assert logged["skipped_updates"][-1][1] == buffer.n_skipped_updates


def test_mixed_buffers_are_logged_and_timed(tmp_path: Path) -> None:
    model = dqn()
    model.learn(40)
    online: Any = model.replay_buffer
    model.tensorboard_log = str(tmp_path)
    model.replay_buffer = MixedReplayBuffer.from_buffers([online, copy.deepcopy(online)], [0.5, 0.5])
    model.learn(60, callback=BufferStatsCallback(50), reset_num_timesteps=False, tb_log_name="mixed")
    logged = curves(tmp_path)
    assert logged.keys() >= SIZES | TIMES
    assert not logged.keys() & PRIORITIES
    assert logged["transitions"][-1][1] == buffer_statistics(online).transitions > 100
    assert {"add", "sample"}.isdisjoint(vars(model.replay_buffer))


def test_a_buffer_of_sb3_raises_before_training() -> None:
    with pytest.raises(TypeError, match=r"ReplayBuffer; .* as replay_buffer_class"):
        dqn(replay_buffer_class=None).learn(10, callback=BufferStatsCallback())
    with pytest.raises(TypeError, match=r"RolloutBuffer; .* as rollout_buffer_class"):
        PPO("MlpPolicy", "CartPole-v1", device="cpu").learn(10, callback=BufferStatsCallback())
    with pytest.raises(ValueError, match="got 0"):
        BufferStatsCallback(0)
