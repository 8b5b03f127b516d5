"""``MixedReplayBuffer``: batches from several buffers, by weights, in a training and alone."""

from __future__ import annotations

import copy
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from numbered import COUNTER, DICTS, IMAGES, add_steps, assert_true, filled, stack
from numpy.typing import NDArray
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_compressed import (
    BufferNotReady,
    CompressedDictReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    MixedReplayBuffer,
    StorageError,
    prioritize,
    save_checkpoint,
)
from sb3_compressed.samplers import Draw, Sampler

ONLINE, DEMOS = 0, 100_000  # first steps of each


class Values(Sampler):
    """Draws any valid transition, and records the values that are updated."""

    def bind(self, n_rows: int, n_envs: int) -> None:
        """Create the values."""
        super().bind(n_rows, n_envs)
        self.values: NDArray[np.float64] = np.zeros(n_rows * n_envs)

    def draw(self, batch_size: int) -> Draw:
        """Draw with weights that differ from 1."""
        valid = np.flatnonzero(self.is_valid)
        indices = valid[np.random.randint(0, len(valid), batch_size)]  # noqa: NPY002  # what SB3 draws from
        return Draw(indices, np.full(batch_size, 0.5, np.float32))

    def update(self, indices: NDArray[np.int64], values: Any) -> None:
        """Set values."""
        self.values[indices] = values


def mixed(weights: Any = (0.75, 0.25), **options: Any) -> MixedReplayBuffer:
    return MixedReplayBuffer.from_buffers([filled(ONLINE, **options), filled(DEMOS, **options)], weights)


def assert_sources(batch: Any) -> None:
    """Assert that the buffer of each row is that of its action, and that rows are ordered by buffer."""
    assert batch.sources.dtype == np.int64
    np.testing.assert_array_equal(batch.sources, (batch.actions[:, 0].numpy() >= DEMOS).astype(np.int64))
    assert (np.diff(batch.sources) >= 0).all()


@pytest.mark.parametrize("cls", [CompressedReplayBuffer, ReplayBuffer])
def test_batches_are_rows_of_all_buffers(cls: Any) -> None:
    buffer = mixed(cls=cls)
    for batch_size in (32, 1, 7, 100, 32):
        batch = buffer.sample(batch_size)
        assert len(batch.actions) == len(batch.sources) == batch_size
        assert_true(batch)
        assert_sources(batch)
    assert np.bincount(buffer.sample(32).sources).tolist() == [24, 8]
    assert batch._fields[: len(batch._fields) - 1] == type(buffer.online.sample(1))._fields


def test_weights_that_are_assigned_apply_from_the_next_batch_on() -> None:
    buffer = mixed()
    for weights, counts in (([1, 1], [16, 16]), (np.array([3, 1]), [24, 8]), ([0, 5], [0, 32]), ([1, 0], [32])):
        buffer.weights = weights
        np.testing.assert_allclose(buffer.weights, np.array(weights) / np.sum(weights))
        assert np.bincount(buffer.sample(32).sources).tolist() == counts
    for wrong in ([1], [1, 2, 3], [1, -1], [0, 0], [1, np.nan]):
        with pytest.raises(ValueError, match="weight"):
            buffer.weights = wrong
    assert buffer.weights.tolist() == [1, 0]
    assert pickle.loads(pickle.dumps(buffer)).weights.tolist() == [1, 0]


def test_number_of_rows_is_exact_on_average_and_within_one() -> None:
    weights = np.array([0.42, 0.35, 0.23])
    buffers = [filled(first) for first in (0, 1000, 2000)]
    buffer = MixedReplayBuffer.from_buffers(buffers, (3 * weights).tolist())
    np.testing.assert_allclose(buffer.weights, weights)
    np.random.seed(0)  # noqa: NPY002  # what SB3 draws from
    counts = np.array([np.bincount(buffer.sample(5).sources, minlength=3) for _ in range(500)])
    assert (counts.sum(axis=1) == 5).all()
    assert (abs(counts - 5 * weights) < 1).all()
    np.testing.assert_allclose(counts.mean(axis=0), 5 * weights, atol=0.1)  # 5 standard errors


@pytest.mark.parametrize("output_dtype", ["raw", "float"])
def test_dict_spaces(output_dtype: str) -> None:
    buffer = mixed(cls=CompressedDictReplayBuffer, space=DICTS, output_dtype=output_dtype)
    batch = buffer.sample(20)
    assert_sources(batch)
    steps = batch.actions[:, 0].float()
    np.testing.assert_array_equal(batch.observations["vector"][:, 0], steps)
    expected = th.float32 if output_dtype == "float" else th.uint8
    assert batch.observations["image"].dtype == batch.next_observations["image"].dtype == expected
    images = [part for first in (ONLINE, DEMOS) for part in steps[(steps >= DEMOS) == (first == DEMOS)].long().tolist()]
    np.testing.assert_array_equal(batch.observations["image"], np.concatenate([stack(step) for step in images]))


def test_n_step_returns_have_their_discounts() -> None:
    buffer = mixed(cls=CompressedNStepReplayBuffer, n_steps=3, gamma=0.9)
    batch = buffer.sample(40)
    assert_sources(batch)
    assert batch.discounts.shape == (40, 1)
    n_steps = np.log(batch.discounts.numpy()) / np.log(0.9)
    np.testing.assert_allclose(n_steps, np.round(n_steps), rtol=1e-5)
    assert n_steps.max() == pytest.approx(3)


def test_only_the_online_buffer_changes() -> None:
    buffer = mixed()
    online, demos = buffer.buffers
    add_steps(buffer, range(50, 60))
    assert (online.pos, demos.pos) == (60, 50)
    assert (buffer.pos, buffer.size(), buffer.full, buffer.buffer_size, buffer.n_envs) == (60, 60, False, 100, 1)
    buffer.dones[3] = True
    assert online.dones[3] == 1
    buffer.reset()
    assert (online.size(), demos.size(), buffer.size()) == (0, 50, 0)
    assert set(buffer.sample(10).sources.tolist()) == {1}
    buffer.pos = 7
    assert online.pos == 7


def test_public_attributes_are_those_of_the_online_buffer() -> None:
    buffer = mixed(cls=CompressedNStepReplayBuffer, n_steps=3, gamma=0.9)
    online: Any = buffer.online
    names = {name for name in dir(online) if not name.startswith("_")}
    assert names - {*dir(buffer)} <= {
        *("REIMPLEMENTED", "bound_sampler", "compression_method", "copy_checkpoint", "copy_info_dict", "episodes"),
        *("given_arguments", "is_in_memory", "iterate", "joint_commit", "refresh", "repair_report", "sample_sequences"),
        *("observation_attributes", "save_latest", "take_over"),
    }
    assert (buffer.n_steps, buffer.gamma, buffer.sampler) == (3, 0.9, online.sampler)
    assert not hasattr(mixed(), "n_steps"), "only with n-step returns"
    buffer.mine = 5  # type: ignore[attr-defined]
    assert not hasattr(online, "mine")


def test_buffers_without_transitions_are_left_out() -> None:
    empty = CompressedReplayBuffer(10, IMAGES, COUNTER, "cpu")
    buffer = MixedReplayBuffer.from_buffers([empty, filled(DEMOS)], [0.9, 0.1])
    assert buffer.sample(6).sources.tolist() == [1] * 6
    buffer = MixedReplayBuffer.from_buffers([empty, filled(DEMOS)], [1, 0])
    with pytest.raises(BufferNotReady, match=r"positive weights, which are \[1.0, 0.0\]"):
        buffer.sample(6)
    add_steps(buffer, range(3))
    assert buffer.sample(6).sources.tolist() == [0] * 6
    assert len(buffer.sample(0).actions) == 0
    with pytest.raises(ValueError, match="batch_size must be at least 0"):
        buffer.sample(-1)


def test_rewards_are_normalized_by_the_environment() -> None:
    venv = make_vec_env("CartPole-v1")
    env = VecNormalize(venv)
    env.reset()
    for _ in range(5):
        env.step(np.array([1]))
    space, actions = venv.observation_space, venv.action_space
    buffers = [CompressedReplayBuffer(20, space, actions, "cpu") for _ in range(2)]
    for buffer in buffers:
        for _ in range(20):
            observation = np.ones((1, 4), np.float32)
            buffer.add(observation, observation, np.zeros((1, 1)), np.ones(1), np.zeros(1), [{}])
    batch = MixedReplayBuffer.from_buffers(buffers, [1, 1]).sample(4, env=env)
    expected = env.normalize_reward(np.ones(4))
    np.testing.assert_allclose(batch.rewards.flatten(), expected, rtol=1e-6)
    assert not np.allclose(expected, 1)


# -- priorities ----------------------------------------------------------------------------------------------


def test_priorities_are_updated_in_the_buffer_of_each_row() -> None:
    buffer = mixed(sampler=Values())
    for _ in range(4):
        batch = buffer.sample(16)
        assert batch.weights.shape == (16, 1)
        assert (batch.weights == 0.5).all()
        assert buffer.update_priorities(batch.indices, batch.actions + 1) == 0
        for number, first in enumerate((ONLINE, DEMOS)):
            steps = batch.actions[batch.sources == number, 0].numpy()
            source: Any = buffer.buffers[number]
            np.testing.assert_array_equal(source.sampler.values[steps - first], steps + 1)


def test_rows_of_buffers_without_priorities_have_weight_one_and_no_index() -> None:
    buffer = MixedReplayBuffer.from_buffers([filled(ONLINE, sampler=Values()), filled(DEMOS, cls=ReplayBuffer)], [1, 1])
    batch = buffer.sample(10)
    assert batch.weights[:, 0].tolist() == [0.5] * 5 + [1.0] * 5
    assert (batch.indices[5:] == -1).all()
    assert buffer.update_priorities(batch.indices, th.ones(10, 1)) == 0
    assert np.count_nonzero(buffer.sampler.values) == len(set(batch.indices[:5].tolist()))


def test_removed_transitions_are_skipped_and_counted() -> None:
    buffer = mixed(sampler=Values())
    batch = buffer.sample(16)
    online: Any = buffer.online
    online.reset()
    assert buffer.update_priorities(batch.indices, np.ones(16)) == buffer.n_skipped_updates == 12


def test_wrong_updates_change_no_priority() -> None:
    buffer = mixed(sampler=Values())
    batch = buffer.sample(8)
    for indices, errors, error, message in (
        (batch.indices, np.append(np.ones(7), np.nan), ValueError, "nan"),
        (batch.indices, np.ones(7), ValueError, "shape"),
        (batch.indices.astype(float), np.ones(8), TypeError, "integers"),
        (np.append(batch.indices[:7], 2 * 10**9 + 1), np.ones(8), ValueError, "must be those of a batch"),
    ):
        with pytest.raises(error, match=message):
            buffer.update_priorities(indices, errors)
    assert not any(each.sampler.values.any() for each in buffer.buffers)  # type: ignore[attr-defined]


# -- validation ----------------------------------------------------------------------------------------------


def test_buffers_that_do_not_fit_raise() -> None:
    online = filled(ONLINE)
    last = spaces.Box(0, 255, (36, 36, 4), np.uint8)
    for other, message in (
        (CompressedReplayBuffer(10, last, COUNTER), "VecTransposeImage"),
        (CompressedReplayBuffer(10, spaces.Box(0, 1, (4, 36, 36), np.uint8), COUNTER), "observation_space"),
        (CompressedReplayBuffer(10, IMAGES, spaces.Discrete(3)), "action_space"),
        (CompressedNStepReplayBuffer(10, IMAGES, COUNTER), "n_steps"),
        (CompressedReplayBuffer(10, IMAGES, COUNTER, normalize_images=True), "normalize_images"),
        (CompressedReplayBuffer(10, IMAGES, COUNTER, output_dtype="float"), "output_dtype"),
    ):
        with pytest.raises(ValueError, match=message):
            MixedReplayBuffer.from_buffers([online, other], [1, 1])
    for weights in ([1], [1, 1, 1], [1, -1], [0, 0], [1, np.nan]):
        with pytest.raises(ValueError, match="weight"):
            MixedReplayBuffer.from_buffers([online, filled(DEMOS)], weights)
    with pytest.raises(TypeError, match="buffer 1"):
        MixedReplayBuffer.from_buffers([online, None], [1, 1])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="mixed"):
        MixedReplayBuffer.from_buffers([online, mixed()], [1, 1])
    with pytest.raises(ValueError, match="at least one buffer"):
        MixedReplayBuffer.from_buffers([], [])


def test_wrong_arguments_of_the_constructor_raise(tmp_path: Path) -> None:
    demos = filled(DEMOS)
    demos.save_checkpoint(tmp_path / "demos")
    folder = str(tmp_path / "demos")
    with pytest.raises(TypeError, match="replay_buffer_kwargs"):
        MixedReplayBuffer(10, IMAGES, COUNTER, demonstrations=demos)
    for share in (1.1, -0.5, [0.5, 0.6], [], float("nan")):
        with pytest.raises(ValueError, match="share"):
            MixedReplayBuffer(10, IMAGES, COUNTER, demonstrations=folder, share=share)
    with pytest.raises(ValueError, match="same action_space"):
        MixedReplayBuffer(10, IMAGES, spaces.Discrete(3), demonstrations=folder)
    with pytest.raises(StorageError):
        MixedReplayBuffer(10, IMAGES, COUNTER, demonstrations=tmp_path / "missing")
    with pytest.raises(TypeError, match="buffer_class"):
        MixedReplayBuffer(10, IMAGES, COUNTER, demonstrations=folder, buffer_class=ReplayBuffer)


# -- with models ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of 400 transitions of CartPole."""
    folder = tmp_path_factory.mktemp("recorded") / "demonstrations"
    model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer, learning_starts=400, seed=0)
    save_checkpoint(model.learn(400).replay_buffer, folder)  # type: ignore[arg-type]
    return folder


@pytest.fixture
def demonstrations(recorded_once: Path, tmp_path: Path) -> str:
    """Return a copy of it."""
    return str(shutil.copytree(recorded_once, tmp_path / "demonstrations"))


def new_model(demonstrations: Any, **options: Any) -> DQN:
    return DQN(
        "MlpPolicy", "CartPole-v1", batch_size=32, learning_starts=0, buffer_size=1000, train_freq=1, seed=0,
        replay_buffer_class=MixedReplayBuffer, replay_buffer_kwargs={"demonstrations": demonstrations, **options},
        policy_kwargs={"net_arch": [8]},
    )  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"n_steps": 3, "gamma": 0.99}, {"share": 1}])
def test_model_trains_from_demonstrations_and_its_own_transitions(demonstrations: str, options: dict[str, Any]) -> None:
    model = new_model(demonstrations, **options)
    buffer: Any = model.replay_buffer
    assert set(buffer.sample(8).sources.tolist()) == {1}
    model.learn(100)
    assert buffer.size() == 100
    expected = 32 if options.get("share") == 1 else 8
    assert buffer.sample(32).sources.sum() == expected
    assert isinstance(buffer.online, CompressedNStepReplayBuffer) == ("n_steps" in options)


def test_a_buffer_of_the_space_is_chosen(tmp_path: Path) -> None:
    filled(DEMOS, cls=CompressedDictReplayBuffer, space=DICTS).save_checkpoint(tmp_path / "demos")
    buffer = MixedReplayBuffer(40, DICTS, COUNTER, "cpu", demonstrations=tmp_path / "demos")
    assert type(buffer.online) is CompressedDictReplayBuffer
    add_steps(buffer, range(40))
    assert buffer.sample(8).sources.tolist() == [0] * 6 + [1] * 2
    buffer.close()


def test_several_folders_have_their_shares(demonstrations: str) -> None:
    buffer: Any = new_model([demonstrations, Path(demonstrations)], share=[0.125, 0.25]).learn(40).replay_buffer
    assert np.bincount(buffer.sample(32).sources).tolist() == [20, 4, 8]


def test_saved_models_do_not_contain_transitions(demonstrations: str, tmp_path: Path) -> None:
    callback = CheckpointCallback(50, str(tmp_path), save_replay_buffer=True)
    model = new_model(demonstrations).learn(100, callback=callback)
    sizes = [(tmp_path / f"rl_model_{steps}_steps.zip").stat().st_size for steps in (50, 100)]
    assert abs(sizes[0] - sizes[1]) < 1000
    loaded = DQN.load(tmp_path / "rl_model_100_steps", env=model.get_env())
    loaded_buffer: Any = loaded.replay_buffer
    assert loaded_buffer.size() == 0
    assert loaded_buffer.buffers[1].size() == 400
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    loaded.load_replay_buffer(tmp_path / "buffer.pkl")
    loaded_buffer = loaded.replay_buffer
    assert loaded_buffer.size() == 100
    assert loaded_buffer.buffers[1].size() == 400
    ours: Any = model.replay_buffer
    for one, other in zip(ours.buffers, loaded_buffer.buffers, strict=True):
        np.testing.assert_array_equal(one.observations, other.observations)
    loaded.learn(50, reset_num_timesteps=False)
    assert loaded_buffer.size() == 150


def test_pickles_contain_the_path_of_demonstrations_and_copies_open_it(demonstrations: str) -> None:
    buffer: Any = new_model(demonstrations).learn(50).replay_buffer
    assert len(pickle.dumps(buffer)) < len(pickle.dumps(buffer.online)) + 2000
    for other in (pickle.loads(pickle.dumps(buffer)), copy.deepcopy(buffer)):
        np.random.seed(0)  # noqa: NPY002  # what SB3 draws from
        batch = other.sample(32)
        np.random.seed(0)  # noqa: NPY002
        expected = buffer.sample(32)
        assert th.equal(batch.observations, expected.observations)
        other.add(*[np.zeros((1, 4), np.float32)] * 2, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
        assert (other.size(), buffer.size()) == (51, 50)


def test_pickle_of_missing_demonstrations_names_their_folder(demonstrations: str, tmp_path: Path) -> None:
    buffer: Any = new_model(demonstrations).learn(50).replay_buffer
    pickled = pickle.dumps(buffer)
    buffer.buffers[1].close()
    Path(demonstrations).rename(tmp_path / "moved")
    with pytest.raises(StorageError, match="demonstrations"):
        pickle.loads(pickled)


def test_online_buffer_may_be_in_a_folder(demonstrations: str, tmp_path: Path) -> None:
    model = new_model(demonstrations, storage=str(tmp_path / "online"))
    buffer: Any = model.learn(60).replay_buffer
    assert buffer.folder == tmp_path / "online"
    before = {path: path.read_bytes() for path in Path(demonstrations).iterdir()}
    buffer.flush()
    buffer.close()
    assert CompressedReplayBuffer.from_checkpoint(tmp_path / "online").size() == 60
    assert {path: path.read_bytes() for path in Path(demonstrations).iterdir()} == before


def test_samplers_without_priorities_are_ignored_by_updates() -> None:
    buffers = [filled(ONLINE, sampler="prioritized"), filled(DEMOS, sampler="recent")]
    buffer = MixedReplayBuffer.from_buffers(buffers, [0.5, 0.5])
    assert buffer.update_priorities(buffer.sample(8).indices, np.full(8, 3.0)) == 0
    assert buffers[0].sampler.priority_max > 1
    without = MixedReplayBuffer.from_buffers(buffers[1:], [1])
    with pytest.raises(TypeError, match="sampler='prioritized'"):
        without.update_priorities(without.sample(8).indices, np.ones(8))


def test_prioritized_model_trains_on_demonstrations_before_its_first_step() -> None:
    model = DQN(
        "MlpPolicy", "CartPole-v1", batch_size=4, learning_starts=0, train_freq=1, device="cpu",
        replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs={"sampler": "prioritized"}, buffer_size=100,
    )  # fmt: skip
    expert = DQN("MlpPolicy", "CartPole-v1", learning_starts=100, buffer_size=100, device="cpu").learn(50)
    assert expert.replay_buffer is not None
    model.replay_buffer = MixedReplayBuffer.from_buffers([model.replay_buffer, expert.replay_buffer], [0.05, 0.95])  # type: ignore[list-item]
    prioritize(model)
    model.learn(40)
    online: Any = model.replay_buffer.online
    assert online.sampler.priorities.min() != 1
