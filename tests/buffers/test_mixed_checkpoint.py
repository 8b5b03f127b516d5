"""Checkpoints of a ``MixedReplayBuffer`` contain all of its buffers, their weights and their priorities."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from numbered import COUNTER, DICTS, IMAGES, add_steps, filled
from programs import run_python
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from sb3_compressed import (
    BufferCheckpointCallback,
    BufferStatsCallback,
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    CorruptStorage,
    MixedReplayBuffer,
    StorageError,
    buffer_statistics,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.cli.sources import find_source
from sb3_compressed.samplers import PrioritizedSampler
from sb3_compressed.storage.checked_json import with_checksum

DEMOS = 100_000  # first step of the demonstrations


def mixed(**options: Any) -> MixedReplayBuffer:
    buffers = [filled(0, **options), filled(DEMOS, **options)]
    return MixedReplayBuffer.from_buffers(buffers, [0.75, 0.25])


def content(folder: Path) -> dict[Path, bytes]:
    """Return the content of all files."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_same_batches(one: Any, other: Any) -> None:
    """Assert that both draw the same batches, of the same content."""
    for _ in range(3):
        batches = []
        for buffer in (one, other):
            np.random.seed(0)  # noqa: NPY002  # what SB3 draws from
            batches.append(buffer.sample(20))
        for field, expected in zip(*batches, strict=True):
            if isinstance(expected, dict):
                assert all(th.equal(field[key], expected[key]) for key in expected)
            else:
                np.testing.assert_array_equal(field, expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cls": CompressedDictReplayBuffer, "space": DICTS},
        {"cls": CompressedNStepReplayBuffer, "n_steps": 3, "gamma": 0.9},
        {"sampler": "prioritized"},
    ],
)
def test_a_loaded_buffer_continues_with_all_parts(options: dict[str, Any], tmp_path: Path) -> None:
    buffer = mixed(**options)
    if "sampler" in options:
        buffer.update_priorities(buffer.sample(32).indices, np.arange(32))
    buffer.weights = [0.3, 0.7]
    save_checkpoint(buffer, tmp_path)
    loaded = load_checkpoint(tmp_path, device="cpu")
    assert type(loaded) is MixedReplayBuffer
    assert loaded.weights.tolist() == buffer.weights.tolist()
    assert_same_batches(loaded, buffer)
    for each in (buffer, loaded):
        add_steps(each, range(50, 60))
    save_checkpoint(loaded, tmp_path / "again")
    assert_same_batches(MixedReplayBuffer.from_checkpoint(tmp_path / "again", device="cpu"), buffer)
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == ["mixed.json", "part-0", "part-1"]


def test_arguments_that_are_passed_override_the_stored_ones(tmp_path: Path) -> None:
    mixed().save_checkpoint(tmp_path)
    loaded = MixedReplayBuffer.from_checkpoint(tmp_path, buffer_size=20, num_threads=1)
    assert [each.buffer_size for each in loaded.buffers] == [20, 100]
    assert loaded.num_threads == 1
    assert loaded.sample(8).sources.tolist() == [0] * 6 + [1] * 2


def test_demonstrations_that_are_read_in_place_are_passed_again(tmp_path: Path) -> None:
    demonstrations, folder = tmp_path / "demonstrations", tmp_path / "saved"
    filled(DEMOS).save_checkpoint(demonstrations)
    buffer: Any = MixedReplayBuffer(100, IMAGES, COUNTER, "cpu", demonstrations=demonstrations, sampler="prioritized")
    add_steps(buffer, range(50))
    buffer.update_priorities(buffer.sample(32).indices, np.arange(32))
    save_checkpoint(buffer, folder)
    assert not (folder / "part-1").exists()
    for wrong in ([], [demonstrations, demonstrations]):
        with pytest.raises(ValueError, match="1 folders of demonstrations"):
            load_checkpoint(folder, demonstrations=wrong)
    moved = shutil.copytree(demonstrations, tmp_path / "moved")
    loaded = load_checkpoint(folder, device="cpu", demonstrations=moved)
    saved, again = (each.online.sampler.priorities for each in (buffer, loaded))
    np.testing.assert_array_equal(saved, again)
    assert type(loaded.buffers[1].sampler) is type(loaded.sampler)
    batch = loaded.sample(8)
    assert batch.sources.tolist() == [0] * 6 + [1] * 2
    assert (batch.indices >= 0).all()
    before = content(tmp_path / "moved")
    save_checkpoint(loaded, tmp_path / "again")
    assert content(tmp_path / "moved") == before


@pytest.mark.parametrize("options", [{}, {"sampler": "uniform"}, {"sampler": "prioritized"}])
def test_demonstrations_have_the_sampler_of_the_online_buffer(options: dict[str, Any], tmp_path: Path) -> None:
    filled(DEMOS, sampler="prioritized").save_checkpoint(tmp_path / "demonstrations")
    buffer = MixedReplayBuffer(100, IMAGES, COUNTER, "cpu", demonstrations=tmp_path / "demonstrations", **options)
    buffer.save_checkpoint(tmp_path / "saved")
    loaded = load_checkpoint(tmp_path / "saved", demonstrations=tmp_path / "demonstrations")
    expected = PrioritizedSampler if options.get("sampler") == "prioritized" else type(None)
    mixes: list[Any] = [buffer, loaded, pickle.loads(pickle.dumps(buffer))]
    for each in mixes:
        assert [type(part.sampler) for part in each.buffers] == [expected] * 2


def test_buffers_that_follow_a_folder_are_read_in_place(tmp_path: Path) -> None:
    filled(DEMOS).save_checkpoint(tmp_path / "demonstrations")
    demonstrations = load_checkpoint(tmp_path / "demonstrations", follow=True, device="cpu")
    buffer = MixedReplayBuffer.from_buffers([filled(0), demonstrations], [1, 1])
    buffer.save_checkpoint(tmp_path / "saved")
    assert not (tmp_path / "saved" / "part-1").exists()
    loaded = load_checkpoint(tmp_path / "saved", demonstrations=tmp_path / "demonstrations", device="cpu")
    for each in (loaded, pickle.loads(pickle.dumps(buffer))):
        assert each.buffers[1].folder == tmp_path / "demonstrations"
        assert_same_batches(each, buffer)


def test_hindsight_replay_is_loaded_with_its_environment(tmp_path: Path) -> None:
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=4))
    spaces = env.observation_space, env.action_space
    online = CompressedHerReplayBuffer(200, *spaces, env=env, device="cpu")
    others = CompressedDictReplayBuffer(200, *spaces, device="cpu")
    buffer = MixedReplayBuffer.from_buffers([online, others], [0.5, 0.5])
    observation = env.reset()
    for _ in range(20):
        action = np.array([env.action_space.sample()])
        following, rewards, dones, infos = env.step(action)
        for each in (online, others):
            each.add(observation, following, action, rewards, dones, infos)
        observation = following
    buffer.save_checkpoint(tmp_path / "mixed")
    assert_same_batches(load_checkpoint(tmp_path / "mixed", env=env, device="cpu"), buffer)
    online.save_checkpoint(tmp_path / "hindsight")
    options: Any = {"buffer_class": CompressedHerReplayBuffer, "env": env}
    buffer = MixedReplayBuffer(200, *spaces, "cpu", demonstrations=tmp_path / "hindsight", **options)
    assert buffer.sample(8).sources.tolist() == [1] * 8


class Own(CompressedReplayBuffer):
    """A buffer of a user."""


class OwnSampler(PrioritizedSampler):
    """A sampler of a user."""


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    for other, message in (
        (filled(DEMOS, cls=ReplayBuffer), "buffer 1 is a ReplayBuffer"),
        (filled(DEMOS, cls=Own), "buffer 1 is a Own"),
    ):
        buffer = MixedReplayBuffer.from_buffers([filled(0), other], [1, 1])
        with pytest.raises(StorageError, match=message):
            buffer.save_checkpoint(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_sampler_of_a_user_is_passed_again(tmp_path: Path) -> None:
    buffer = MixedReplayBuffer.from_buffers([filled(0, sampler=OwnSampler()), filled(DEMOS)], [1, 1])
    buffer.save_checkpoint(tmp_path)
    with pytest.raises(StorageError, match="OwnSampler"):
        load_checkpoint(tmp_path)
    loaded = load_checkpoint(tmp_path, sampler=OwnSampler())
    assert [type(each.sampler) for each in loaded.buffers] == [OwnSampler, type(None)]


def test_wrong_folders_are_errors_and_stay_as_they_were(tmp_path: Path) -> None:
    buffer, other = mixed(), filled(0)
    other.save_checkpoint(tmp_path / "plain")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "notes.txt").touch()
    mixed().save_checkpoint(tmp_path / "mixed")
    for name, overwrite in (("plain", True), ("files", True), ("mixed", False)):
        before = content(tmp_path / name)
        with pytest.raises(StorageError, match="overwrite" if name == "mixed" else "not empty"):
            buffer.save_checkpoint(tmp_path / name, overwrite=overwrite)
        assert content(tmp_path / name) == before
    for load in (CompressedReplayBuffer.from_checkpoint, partial(CompressedReplayBuffer.from_checkpoint, follow=True)):
        with pytest.raises(StorageError, match="load_checkpoint"):
            load(tmp_path / "mixed")
    with pytest.raises(StorageError, match="other files"):
        other.save_checkpoint(tmp_path / "mixed")
    with pytest.raises(StorageError, match="cannot be followed"):
        load_checkpoint(tmp_path / "mixed", follow=True)
    with pytest.raises(StorageError, match="no complete checkpoint of a mixed buffer"):
        MixedReplayBuffer.from_checkpoint(tmp_path / "plain")


def test_a_save_replaces_another_one_when_it_is_complete(tmp_path: Path) -> None:
    folder, buffer = tmp_path / "saved", mixed()
    mixed().save_checkpoint(folder)
    buffer.save_checkpoint(folder, overwrite=True)
    assert_same_batches(load_checkpoint(folder, device="cpu"), buffer)
    assert [*tmp_path.iterdir()] == [folder]
    folder.rename(tmp_path / "saved.replaced")  # as after a kill between the two renames
    with pytest.raises(StorageError, match=r"saved\.replaced"):
        MixedReplayBuffer.from_checkpoint(folder)
    buffer.save_checkpoint(folder, overwrite=True)
    assert [*tmp_path.iterdir()] == [folder]


def test_a_save_that_fails_leaves_no_folder_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer, folder = mixed(), tmp_path / "saved"
    save = CompressedReplayBuffer.save_checkpoint

    def fail(self: Any, part: Path, **options: Any) -> None:
        if self is buffer.buffers[1]:
            raise OSError(errno.ENOSPC, "no space left")
        save(self, part, **options)

    monkeypatch.setattr(CompressedReplayBuffer, "save_checkpoint", fail)
    for _ in range(2):
        with pytest.raises(OSError, match="no space left"):
            buffer.save_checkpoint(folder)
        assert not folder.exists()
    monkeypatch.undo()
    buffer.save_checkpoint(folder)
    assert_same_batches(load_checkpoint(folder, device="cpu"), buffer)
    assert [*tmp_path.iterdir()] == [folder]


SAVE_AND_BE_KILLED = """
import os, sys
from sb3_compressed import CompressedReplayBuffer, MixedReplayBuffer, load_checkpoint

source, folder, moment = sys.argv[1:]
cls, name = CompressedReplayBuffer, "save_checkpoint"
if moment == "manifest":
    cls, name = MixedReplayBuffer, "write_manifest"
buffer, call = load_checkpoint(source, device="cpu"), getattr(cls, name)

def call_and_be_killed(self, *args, **kwargs):
    if self is not buffer.online:
        os._exit(9)
    call(self, *args, **kwargs)

setattr(cls, name, call_and_be_killed)
buffer.save_checkpoint(folder)
"""


@pytest.mark.parametrize("moment", ["second part", "manifest"])
def test_a_kill_leaves_no_folder_and_the_next_save_succeeds(moment: str, tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "saved"
    buffer = mixed()
    buffer.save_checkpoint(source)
    killed = run_python(["-c", SAVE_AND_BE_KILLED, source, folder, moment], os.environ)
    assert killed.returncode == 9, killed.stderr
    with pytest.raises(StorageError, match="no complete checkpoint"):
        MixedReplayBuffer.from_checkpoint(folder)
    buffer.save_checkpoint(folder)
    assert_same_batches(load_checkpoint(folder, device="cpu"), buffer)
    assert len([*folder.glob("part-*")]) == 2


def test_an_online_buffer_in_a_folder_is_copied(tmp_path: Path) -> None:
    online = filled(0, storage=tmp_path / "online")
    buffer = MixedReplayBuffer.from_buffers([online, filled(DEMOS)], [1, 1])
    buffer.save_checkpoint(tmp_path / "saved")
    add_steps(buffer, range(50, 60))
    assert load_checkpoint(tmp_path / "saved").size() == 50
    with pytest.raises(StorageError, match="not empty"):
        buffer.save_checkpoint(tmp_path / "online")
    buffer.close()


@pytest.mark.parametrize(
    "damage",
    [
        "no object", "flipped", {"weights": [0.5, 0.25, 0.25]}, {"weights": [1, -1]},
        {"classes": [None, "CompressedReplayBuffer"]}, {"classes": ["CompressedReplayBuffer", "os.system"]},
        {"version": 2},
    ],
)  # fmt: skip
def test_a_damaged_manifest_is_an_error(damage: Any, tmp_path: Path) -> None:
    mixed().save_checkpoint(tmp_path)
    path = tmp_path / "mixed.json"
    values = json.loads(path.read_text())
    del values["checksum"]
    if damage == "no object":
        text = "[]"
    elif damage == "flipped":
        text = path.read_text().replace("0.75", "0.85")
    else:
        text = json.dumps(with_checksum({**values, **damage}))
    path.write_text(text)
    with pytest.raises(CorruptStorage):
        load_checkpoint(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="links need privileges")
def test_a_part_that_is_a_link_is_not_opened(tmp_path: Path) -> None:
    mixed().save_checkpoint(tmp_path / "saved")
    part = tmp_path / "saved" / "part-1"
    part.rename(tmp_path / "outside")
    part.symlink_to(tmp_path / "outside")
    with pytest.raises(CorruptStorage, match="part-1 is a link"):
        load_checkpoint(tmp_path / "saved")


def test_commands_name_the_folders_of_the_parts(tmp_path: Path) -> None:
    mixed().save_checkpoint(tmp_path / "buffer")
    for folder in (tmp_path / "buffer", tmp_path):
        with pytest.raises(StorageError, match=r"mixed buffer.* such as .*part-0"):
            find_source(folder)
    assert find_source(tmp_path / "buffer" / "part-1") == tmp_path / "buffer" / "part-1"


# -- with models ---------------------------------------------------------------------------------------------


def new_model(**options: Any) -> DQN:
    return DQN(
        "MlpPolicy", "CartPole-v1", batch_size=32, learning_starts=0, buffer_size=1000, train_freq=1, seed=0,
        policy_kwargs={"net_arch": [8]}, **options,
    )  # fmt: skip


@pytest.fixture
def demonstrations(tmp_path: Path) -> Path:
    """Return a folder of 100 transitions of CartPole."""
    model = new_model(replay_buffer_class=CompressedReplayBuffer)
    recorded: Any = model.learn(100).replay_buffer
    save_checkpoint(recorded, tmp_path / "demonstrations")
    return tmp_path / "demonstrations"


@pytest.mark.parametrize("place", ["read in place", "in memory", "online in a folder"])
def test_a_training_is_resumed_with_all_parts(place: str, demonstrations: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    callbacks = [BufferCheckpointCallback(50, folder, keep=2), BufferStatsCallback(30)]
    if place == "read in place":
        options = {"demonstrations": str(demonstrations)}
        model = new_model(replay_buffer_class=MixedReplayBuffer, replay_buffer_kwargs=options)
    else:
        options = {"storage": str(tmp_path / "online")} if place == "online in a folder" else {}
        model = new_model(replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs=options)
        parts: list[Any] = [model.replay_buffer, load_checkpoint(demonstrations, device="auto")]
        model.replay_buffer = MixedReplayBuffer.from_buffers(parts, [0.5, 0.5])
    buffer: Any = model.replay_buffer
    model.learn(60, callback=callbacks)
    buffer.weights = [0.9, 0.1]
    model.learn(60, callback=callbacks[0], reset_num_timesteps=False)
    newest = latest_checkpoint(folder)
    resumed = DQN.load(newest / "model", env=model.get_env())
    given: dict[str, Any] = {"demonstrations": demonstrations} if place == "read in place" else {}
    resumed.replay_buffer = loaded = load_checkpoint(newest / "buffer", device=resumed.device, **given)
    assert loaded.size() == 120
    assert loaded.weights.tolist() == [0.9, 0.1]
    assert_same_batches(loaded, buffer)
    buffer.close()
    callback = BufferCheckpointCallback(50, folder, resume=True)
    resumed.learn(50, callback=callback, reset_num_timesteps=False)
    assert buffer_statistics(loaded).transitions == 170
    assert load_checkpoint(latest_checkpoint(folder) / "buffer", **given).size() == 170


def test_a_mix_with_buffers_of_sb3_is_an_error_before_training(tmp_path: Path) -> None:
    model = new_model(replay_buffer_class=CompressedReplayBuffer)
    other = new_model().learn(20).replay_buffer
    parts: list[Any] = [model.replay_buffer, other]
    model.replay_buffer = MixedReplayBuffer.from_buffers(parts, [0.5, 0.5])
    with pytest.raises(StorageError, match="buffer 1 is a ReplayBuffer"):
        model.learn(20, callback=BufferCheckpointCallback(10, tmp_path))
