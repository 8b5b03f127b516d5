"""Buffers with ``storage="device"``, whose batches the kernel of GPUs decodes, here compiled for the CPU."""

from __future__ import annotations

import copy
import pickle
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from buffer_pairs import REPLAY_PAIRS, ROLLOUT_PAIRS, SB3_OPTIMIZED
from device_emulator import Emulator, compiler
from gymnasium import spaces
from interrupts import bytecodes, call_within, evenly, interrupt
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from support import ImageEnv, add_all, assert_same_batch, atari_env, filled, new_buffer, recorded, same_draws
from trainings import SMALL_CNN, assert_same_weights

from sb3_compressed import (
    BufferStatsCallback,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    CorruptPayload,
    StorageError,
    buffer_statistics,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.arrays import memory_log
from sb3_compressed.arrays.device_log import DeviceLog, new_device_log
from sb3_compressed.arrays.memory_log import MemoryLog
from sb3_compressed.buffers import array_factory
from sb3_compressed.buffers.resize import resize
from sb3_compressed.codecs import get_codec

if compiler() is None:
    pytest.skip("there is no C++ compiler: c++, or what CXX names", allow_module_level=True)

STREAMS = {"replay": "atari", "n-step": "atari", "dict": "console", "her": "bits"}
ROLLOUT_STREAMS = {"plain": "atari", "dict": "console"}
CPU = th.device("cpu")
#: The buffer on a device, and that of SB3.
PAIR_AND_OPTIONS: Any = [*zip(REPLAY_PAIRS["replay"], ({"storage": "device"}, {}), strict=True)]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("device"), lanes=1)


@pytest.fixture(autouse=True)
def _emulated_device(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the memory of the process be that of a device, in small segments."""

    def emulated_log(device: th.device) -> Any:
        return partial(DeviceLog, device, launch=emulator.launch)

    monkeypatch.setattr(array_factory, "new_device_log", emulated_log)
    for name in ("MIN_NBYTES", "MAX_NBYTES"):
        monkeypatch.setattr(memory_log, name, 32_768)


def on_device(*args: Any, **options: Any) -> Any:
    return filled(*args, storage="device", **options)


def assert_same_samples(ours: Any, theirs: Any, env: Any = None) -> None:
    for seed, batch_size in enumerate((2, 32, 200)):
        draws = [partial(buffer.sample, batch_size, env=env) for buffer in (ours, theirs)]
        assert_same_batch(*same_draws(*draws, seed=seed))


# -- equal to SB3 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "none"])
@pytest.mark.parametrize("kind", REPLAY_PAIRS)
def test_batches_are_those_of_sb3(kind: str, method: str) -> None:
    ours, theirs = REPLAY_PAIRS[kind]
    buffers = (
        on_device(STREAMS[kind], 300, 200, ours, compression_method=method),
        filled(STREAMS[kind], 300, 200, theirs),
    )
    assert_same_samples(*buffers)
    assert_same_samples(*buffers)


@pytest.mark.parametrize("stream", ["atari-single", "atari-channel-last", "pendulum", "multi-binary"])
def test_batches_of_other_observations_are_those_of_sb3(stream: str) -> None:
    ours, theirs = REPLAY_PAIRS["replay"]
    assert_same_samples(on_device(stream, 300, 200, ours), filled(stream, 300, 200, theirs))


@pytest.mark.parametrize("method", ["auto", "none"])
def test_nothing_written_yet_reads_as_zeros(method: str) -> None:
    cls, _ = REPLAY_PAIRS["replay"]
    buffer = new_buffer(cls, "atari", 20, storage="device", compression_method=method)
    assert len(buffer.sample(0).observations) == 0
    assert not buffer._get_samples(np.array([0, 3])).observations.any()
    assert not np.asarray(buffer.observations).any()
    buffer.observations[0, 0, 0, 0] = 5
    assert buffer.observations[0].sum() == 5 * 84


@pytest.mark.filterwarnings("ignore::sb3_compressed.LossyDtypeWarning")
@pytest.mark.parametrize(("stream", "dtype"), [("atari", "int8"), ("pendulum", "float16")])
def test_observations_of_a_narrower_dtype_are_those_of_a_buffer_in_memory(stream: str, dtype: str) -> None:
    options: Any = {"dtypes": {"elem_type": dtype}, "compression_method": "none"}
    ours, others = on_device(stream, 300, 200, **options), filled(stream, 300, 200, **options)
    assert ours.observations.elem_type != ours.observations.dtype
    assert_same_samples(ours, others)


@pytest.mark.parametrize("device", ["cpu", "cpu:0", None])
def test_the_device_may_be_a_string(device: Any) -> None:
    ours, theirs = (filled("atari", 60, 30, cls, **options) for cls, options in PAIR_AND_OPTIONS)
    for buffer in (ours, theirs):
        buffer.device = device
    assert_same_batch(*same_draws(lambda: ours.sample(32), lambda: theirs.sample(32), seed=0))


def test_batches_move_to_another_device() -> None:
    buffer = on_device("atari", 60, 30)
    buffer.device = "meta"  # the only other one that each machine has
    batch = buffer.sample(8)
    assert {batch.observations.device.type, batch.next_observations.device.type} == {"meta"}


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_arrays_of_another_dtype_are_on_the_device(dtype: Any) -> None:
    ours, theirs = (filled("atari", 30, 60, cls, **options) for cls, options in PAIR_AND_OPTIONS)
    for buffer in (ours, theirs):
        for name in ("observations", "next_observations"):
            setattr(buffer, name, np.zeros(getattr(buffer, name).shape, dtype))
        add_all(recorded("atari")[-1][30:60], buffer)
    assert isinstance(ours.observations.stream.log, DeviceLog)
    assert_same_batch(*same_draws(lambda: ours.sample(32), lambda: theirs.sample(32), seed=0))


def test_optimized_buffers_have_the_same_batches() -> None:
    ours, theirs = (
        filled("atari", 300, 200, cls, **SB3_OPTIMIZED, **options)
        for cls, options in zip(REPLAY_PAIRS["replay"], ({"storage": "device"}, {}), strict=True)
    )
    assert_same_samples(ours, theirs)


@pytest.mark.parametrize("kind", ROLLOUT_STREAMS)
def test_rollouts_are_those_of_sb3(kind: str) -> None:
    space, action_space, n_envs, transitions = recorded(ROLLOUT_STREAMS[kind])
    batches: list[list[Any]] = []
    for cls, options in zip(ROLLOUT_PAIRS[kind], ({"storage": "device"}, {}), strict=True):
        buffer = cls(64, space, action_space, "cpu", n_envs=n_envs, **options)
        rng = np.random.default_rng(0)
        batches.append([])
        for rollout in range(3):
            start = np.ones(n_envs)
            for transition in transitions[64 * rollout : 64 * (rollout + 1)]:
                transition.add_to_rollout(buffer, start, rng)
                start = transition.done
            buffer.compute_returns_and_advantage(th.zeros(n_envs), start)
            np.random.seed(0)  # noqa: NPY002  # what SB3 draws from
            batches[-1] += [copy.copy(batch) for _ in range(2) for batch in buffer.get(32)]
            buffer.reset()
    for batch, expected in zip(*batches, strict=True):
        assert_same_batch(batch, expected)


def test_batches_are_normalized_as_by_sb3() -> None:
    space, action_space, _, transitions = recorded("atari")
    env = VecNormalize(DummyVecEnv([lambda: ImageEnv(space, action_space)]))
    env.obs_rms.update(np.concatenate([transition.obs for transition in transitions]))
    ours, theirs = REPLAY_PAIRS["replay"]
    assert_same_samples(on_device("atari", 100, 200, ours), filled("atari", 100, 200, theirs), env)


class Halved(CompressedReplayBuffer):
    """A user's class, which converts the arrays of a batch itself."""

    def to_torch(self, array: np.ndarray[Any, Any], copy: bool = True) -> th.Tensor:
        assert type(array) is np.ndarray
        return super().to_torch(array, copy) // 2 if array.dtype == np.uint8 else super().to_torch(array, copy)


def test_what_a_user_overrides_receives_arrays() -> None:
    ours, others = on_device("atari", 100, 200, Halved), filled("atari", 100, 200, Halved)
    assert_same_samples(ours, others)
    sequences = [partial(buffer.sample_sequences, 5, 7) for buffer in (ours, others)]
    assert_same_batch(*same_draws(*sequences, seed=0))


@pytest.mark.parametrize("stream", ["atari", "console"])
def test_sequences_and_samplers_are_those_of_a_buffer_in_memory(stream: str) -> None:
    buffers = [filled(stream, 300, 200, storage=storage, sampler="prioritized") for storage in ("device", "memory")]
    for seed in range(3):
        sequences = [partial(buffer.sample_sequences, 8, 12, burn_in=4, pad="end") for buffer in buffers]
        assert_same_batch(*same_draws(*sequences, seed=seed))
        ours, theirs = same_draws(*[partial(buffer.sample, 32) for buffer in buffers], seed=seed)
        assert_same_batch(ours, theirs)
        for buffer in buffers:
            buffer.update_priorities(ours.indices, ours.rewards.reshape(-1).abs() + 0.1)


def test_final_weights_are_bit_identical() -> None:
    weights = []
    for options in ({}, {"storage": "device"}):
        model: Any = DQN(
            "CnnPolicy", atari_env("Breakout", 2), buffer_size=100, learning_starts=60, train_freq=4, seed=1,
            device="cpu", policy_kwargs=SMALL_CNN, replay_buffer_class=CompressedReplayBuffer,
            replay_buffer_kwargs=options,
        ).learn(200)  # fmt: skip
        weights.append(model.get_parameters())
        model = PPO(
            "CnnPolicy", atari_env("Breakout", 2), n_steps=32, batch_size=16, n_epochs=2, seed=1, device="cpu",
            policy_kwargs=SMALL_CNN, rollout_buffer_class=CompressedRolloutBuffer, rollout_buffer_kwargs=options,
        ).learn(128)  # fmt: skip
        weights.append(model.get_parameters())
    assert_same_weights(weights[0], weights[2])
    assert_same_weights(weights[1], weights[3])


# -- copies and checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_added", [0, 300])
def test_copies_and_pickles_are_in_memory(n_added: int) -> None:
    buffer, others = on_device("atari", n_added, 200), filled("atari", 250, 200)
    assert buffer.observations.stream.log.is_on_device
    for twin in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        assert type(twin.observations.stream.log) is MemoryLog
        np.testing.assert_array_equal(twin.observations, buffer.observations)
        if n_added:
            assert_same_samples(twin, buffer)
        twin.reset()
        add_all(recorded("atari")[-1][:250], twin)
        np.testing.assert_array_equal(twin.observations, others.observations)
    expected = filled("atari", n_added, 200).next_observations
    np.testing.assert_array_equal(buffer.next_observations[:], expected[:])


def test_checkpoints_load_into_memory_and_a_device(tmp_path: Path) -> None:
    buffer = on_device("console", 120, 200)
    save_checkpoint(buffer, tmp_path / "saved")
    for storage in ("memory", "device"):
        loaded = load_checkpoint(tmp_path / "saved", device="cpu", storage=storage, buffer_size=400)
        assert_same_samples(loaded, buffer)
        add_all(recorded("console")[-1][120:200], loaded)
        assert_same_samples(loaded, filled("console", 200, 200))
    add_all(recorded("console")[-1][120:200], buffer)
    save_checkpoint(buffer, tmp_path / "saved")
    assert_same_samples(load_checkpoint(tmp_path / "saved", device="cpu"), buffer)


def test_buffers_of_codecs_with_zstd_are_refused_on_a_device(tmp_path: Path) -> None:
    save_checkpoint(filled("atari", 120, 200, compression_method="delta"), tmp_path)
    with pytest.raises(StorageError, match="storage='memory'"):
        load_checkpoint(tmp_path, device="cpu", storage="device", compression_method="auto")
    assert load_checkpoint(tmp_path, device="cpu").size() == 120


def test_arrays_are_those_of_numpy_and_can_be_assigned() -> None:
    buffer, others = on_device("atari", 150, 200), filled("atari", 150, 200)
    np.testing.assert_array_equal(buffer.observations, others.observations)
    for each in (buffer, others):
        each.observations[10:90:7] = each.next_observations[20:32].copy()
        each.observations[3, 0, 1] = 0
    assert_same_samples(buffer, others)


def test_statistics_and_repr_show_the_memory_of_the_device() -> None:
    buffer, others = on_device("atari", 150, 200), filled("atari", 150, 200)
    statistics = buffer_statistics(buffer)
    assert statistics.device_memory_nbytes >= statistics.payload_nbytes > 0
    assert statistics.payload_nbytes == pytest.approx(buffer_statistics(others).payload_nbytes, rel=0.1)
    assert buffer_statistics(others).device_memory_nbytes == 0
    assert "MB of cpu" in repr(buffer)


def test_the_memory_of_the_device_is_logged() -> None:
    model = DQN(
        "CnnPolicy", atari_env("Breakout", 2), buffer_size=100, learning_starts=60, device="cpu",
        policy_kwargs=SMALL_CNN, replay_buffer_class=CompressedReplayBuffer,
        replay_buffer_kwargs={"storage": "device"},
    )  # fmt: skip
    logged: list[float] = []

    class Recorder(BaseCallback):
        def _on_step(self) -> bool:
            logged.append(self.logger.name_to_value["buffer/device_memory_mb"])
            return True

    model.learn(40, callback=[BufferStatsCallback(log_freq=20), Recorder()])
    assert max(logged) == pytest.approx(buffer_statistics(model.replay_buffer).device_memory_nbytes / 1e6)


def test_overwritten_rows_are_freed_on_the_device() -> None:
    buffer = new_buffer(CompressedReplayBuffer, "atari", 50, storage="device")
    transitions, sizes = recorded("atari")[-1], []
    for _ in range(6):
        add_all(transitions, buffer)
        sizes.append(buffer_statistics(buffer).device_memory_nbytes)
    assert max(sizes) < 1.5 * sizes[0]
    on_host = [segment.is_on_host for segment in buffer.observations.stream.log.segments.values()]
    assert sum(on_host) <= 2, "the others are on the device alone"


# -- errors --------------------------------------------------------------------------------------------------


def test_a_damaged_payload_is_reported_by_a_later_batch() -> None:
    buffer = on_device("atari", 100, 200)
    buffer.sample(8)
    log = buffer.observations.stream.log
    for segment in log.segments.values():
        segment.block.fill_(255)
    damaged = buffer.sample(8)
    assert damaged.observations.shape[0] == 8
    with pytest.raises(CorruptPayload, match="earlier batch") as caught:
        buffer.sample(8)
    assert caught.value.slot is not None
    assert caught.value.slot[0] < 100
    with pytest.raises(CorruptPayload) as caught:
        buffer.observations[3:]
    assert caught.value.slot == (3, 0)


@pytest.mark.parametrize(
    ("error", "converted", "message"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"), MemoryError, "no 0.5 MB left for payloads"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), StorageError, "cpu failed"),
        (RuntimeError("sizes of tensors must match"), RuntimeError, "sizes of tensors must match"),
    ],
)
def test_errors_of_a_device_say_what_is_lost(
    error: Exception, converted: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = on_device("atari", 100, 200)

    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(buffer.observations.stream.log._decoder, "_launch", fail)
        with pytest.raises(converted, match=message) as caught:
            buffer.sample(8)
    assert caught.type is converted
    assert len(buffer.sample(8).rewards) == 8


@pytest.mark.parametrize("method", ["zstd3", "delta", "lz4-block", "packed", "rle"])
def test_codecs_that_a_device_cannot_decode_are_refused(method: str) -> None:
    with pytest.raises(ValueError, match="'auto' and 'none'"):
        new_buffer(CompressedReplayBuffer, "atari", 50, storage="device", compression_method=method)


def test_the_cpu_needs_no_device() -> None:
    assert type(new_device_log(CPU)(get_codec("none"))) is MemoryLog
    with pytest.raises(ValueError, match="got device='mps'"):
        new_device_log(th.device("mps"))


def test_vectors_stay_plain_arrays() -> None:
    buffer = on_device("pendulum", 50, 100)
    assert type(buffer.observations) is np.ndarray
    assert buffer_statistics(buffer).device_memory_nbytes == 0


def test_resized_buffers_stay_on_the_device() -> None:
    buffers = [filled("atari", 150, 100, storage=storage) for storage in ("device", "memory")]
    for buffer in buffers:
        resize(buffer, 400 * buffer.n_envs)
        add_all(recorded("atari")[-1][150:250], buffer)
    assert buffers[0].observations.stream.log.is_on_device
    assert_same_samples(*buffers)


def test_distributed_buffers_are_on_no_device() -> None:
    pytest.importorskip("ray", reason="needs Ray")
    from sb3_compressed.distributed import DistributedReplayBuffer

    space, action_space, *_ = recorded("atari")
    with pytest.raises(ValueError, match="one process"):
        DistributedReplayBuffer(100, space, action_space, storage="device")


class PictureGoals(gym.Env[Any, Any]):
    """An environment whose goals are pictures, from which it computes rewards with NumPy."""

    PICTURE = spaces.Box(0, 255, (36, 36, 1), np.uint8)

    def __init__(self) -> None:
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(dict.fromkeys(names, self.PICTURE))
        self.action_space = spaces.Discrete(2)
        self._step = 0

    def _observation(self) -> dict[str, np.ndarray[Any, Any]]:
        shown = np.full(self.PICTURE.shape, self._step % 200, np.uint8)
        return {"observation": shown, "achieved_goal": shown // 2, "desired_goal": shown // 3}

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**options)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._observation(), 0.0, self._step % 11 == 0, False, {}

    def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> Any:
        assert type(achieved) is type(desired) is np.ndarray
        return -np.abs(achieved.astype(float) - desired).mean(axis=(1, 2, 3))


def test_hindsight_replay_computes_rewards_of_pictures() -> None:
    env = DummyVecEnv([PictureGoals])
    buffers = [
        cls(200, env.observation_space, env.action_space, env, device="cpu", **options)
        for cls, options in zip(REPLAY_PAIRS["her"], ({"storage": "device"}, {}), strict=True)
    ]
    observation: Any = env.reset()
    for _ in range(60):
        action = np.zeros((1, 1), np.int64)
        following, rewards, dones, infos = env.step(action[0])
        for buffer in buffers:
            buffer.add(observation, following, action, rewards, dones, infos)
        observation = following
    assert buffers[0].observations["achieved_goal"].stream.log.is_on_device
    assert_same_samples(*buffers)


@pytest.mark.parametrize("method", ["auto", "none"])
def test_slots_are_stored_whatever_the_codec(method: str, tmp_path: Path) -> None:
    buffer = on_device("atari", 150, 100, compression_method=method)
    save_checkpoint(buffer, tmp_path)
    for loaded in (
        load_checkpoint(tmp_path, device="cpu", storage="device"),
        new_buffer(CompressedReplayBuffer, "atari", 100, storage="device", compression_method=method),
    ):
        if not loaded.size():
            add_all(recorded("atari")[-1][:150], loaded)
            loaded.observations = buffer.observations
        assert_same_samples(loaded, buffer)


def test_earlier_batches_keep_no_rollout() -> None:
    space, action_space, n_envs, transitions = recorded("atari")
    buffer: Any = CompressedRolloutBuffer(32, space, action_space, "cpu", n_envs=n_envs, storage="device")
    rng, sizes = np.random.default_rng(0), []
    for rollout in range(12):
        for transition in transitions[8 * rollout : 8 * rollout + 32]:
            transition.add_to_rollout(buffer, np.zeros(n_envs), rng)
        buffer.compute_returns_and_advantage(th.zeros(n_envs), np.zeros(n_envs))
        assert len([*buffer.get(None)]) == 1
        sizes.append(buffer_statistics(buffer).device_memory_nbytes)
        buffer.reset()
    assert max(sizes[4:]) < 2 * max(sizes[:4])
    log = weakref.ref(buffer.observations.stream.log)
    del buffer
    assert log() is None, "without garbage collection"


def test_what_numpy_reads_stays_on_the_device() -> None:
    buffer = on_device("atari", 300, 200)
    buffer.observations[:], buffer.observations[3], repr(buffer), buffer_statistics(buffer)
    for _ in range(5):
        buffer.sample_sequences(8, 12)
    save = copy.deepcopy(buffer)
    log = buffer.observations.stream.log
    mapped = sum(len(block) for block in log._mapped[0])
    assert mapped <= sum(len(segment.bytes) for segment in log.mapped_segments.values())
    assert len(log.mapped_segments) <= 2 < len(log.segments)
    assert_same_samples(save, buffer)


def test_growth_of_a_segment_is_seen_by_the_next_batch() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 1, 3, 64, 64), np.uint8)
    space, button = spaces.Box(0, 255, (3, 64, 64), np.uint8), spaces.Discrete(2)
    buffers = [cls(50, space, button, "cpu", **options) for cls, options in PAIR_AND_OPTIONS]
    for step in range(39):
        for buffer in buffers:
            buffer.add(noise[step], noise[step + 1], np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
        if step:
            assert_same_batch(*same_draws(*[partial(buffer.sample, 20) for buffer in buffers], seed=step))


@pytest.mark.parametrize("is_copied", [False, True])
def test_what_is_written_while_a_handler_samples_is_uploaded(is_copied: bool) -> None:
    stream = recorded("atari")[-1]
    other = on_device("atari", 100, 40)

    def write(buffer: Any) -> None:
        if is_copied:
            buffer.observations.assign(other.observations)
        else:
            add_all(stream[60:61], buffer)

    expected = on_device("atari", 60, 40)
    write(expected)
    names = {"append", "append_claimed", "claim", "copy", "_copy_from_segment"}
    found = [at for at in bytecodes(partial(write, on_device("atari", 60, 40))) if at[0].co_name in names]
    for at in evenly(found, 40):
        buffer = on_device("atari", 60, 40)
        call_within(partial(write, buffer), at, lambda: buffer.sample(4))  # noqa: B023
        np.testing.assert_array_equal(buffer.observations, expected.observations)
        np.testing.assert_array_equal(buffer.next_observations, expected.next_observations)


def test_an_interrupt_leaves_no_segment_half_changed() -> None:
    stream = recorded("atari")[-1]
    for _ in range(2):  # the first call runs what no later one does, such as imports
        found = bytecodes(partial(add_all, stream[:40], on_device("atari", 0, 100)))
    for at in evenly(found, 40):
        buffer, expected = on_device("atari", 0, 100), new_buffer(REPLAY_PAIRS["replay"][1], "atari", 100)
        interrupt(partial(add_all, stream[:40], buffer), at)
        add_all(stream[: buffer.pos], expected)
        add_all(stream[buffer.pos : 80], buffer, expected)
        assert_same_batch(*same_draws(partial(buffer.sample, 64), partial(expected.sample, 64), seed=0))
        buffer.observations.stream.log._decoder.check()
