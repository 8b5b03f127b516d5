"""Checkpoints of a ``MixedReplayBuffer`` contain all of its buffers, their weights and their priorities."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from numbered import COUNTER, DICTS, IMAGES, add_steps
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed import (
    BufferCheckpointCallback,
    BufferStatsCallback,
    CompressedDictReplayBuffer,
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

DEMOS = 100_000  # first step of the demonstrations


def filled(first: int, cls: Any = CompressedReplayBuffer, space: Any = IMAGES, **options: Any) -> Any:
    buffer = cls(100, space, COUNTER, "cpu", **options)
    add_steps(buffer, range(first, first + 50))
    return buffer


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
    save_checkpoint(buffer, tmp_path)  # type: ignore[arg-type]
    loaded = load_checkpoint(tmp_path, device="cpu")
    assert type(loaded) is MixedReplayBuffer
    assert loaded.weights.tolist() == buffer.weights.tolist()
    assert_same_batches(loaded, buffer)
    for each in (buffer, loaded):
        add_steps(each, range(50, 60))
    save_checkpoint(loaded, tmp_path)
    assert_same_batches(MixedReplayBuffer.from_checkpoint(tmp_path, device="cpu"), buffer)


def test_later_saves_write_what_changed(tmp_path: Path) -> None:
    buffer = mixed(sampler="prioritized")
    buffer.save_checkpoint(tmp_path)
    before = {path: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    add_steps(buffer, range(50, 52))
    buffer.save_checkpoint(tmp_path)
    grown = sum(path.stat().st_size - before.get(path, 0) for path in tmp_path.rglob("*") if path.is_file())
    assert 0 < grown < sum(before.values()) / 3
    assert load_checkpoint(tmp_path).size() == 52


def test_arguments_that_are_passed_override_the_stored_ones(tmp_path: Path) -> None:
    mixed().save_checkpoint(tmp_path)
    loaded = MixedReplayBuffer.from_checkpoint(tmp_path, buffer_size=20, prefetch=2, num_threads=1)
    assert [each.buffer_size for each in loaded.buffers] == [20, 100]
    assert (loaded.prefetch, loaded.num_threads) == (2, 1)
    assert loaded.sample(8).sources.tolist() == [0] * 6 + [1] * 2


class Own(CompressedReplayBuffer):
    """A buffer of a user."""


def test_a_class_from_outside_the_package_is_passed(tmp_path: Path) -> None:
    mixed(cls=Own).save_checkpoint(tmp_path)
    with pytest.raises(StorageError, match="Own"):
        load_checkpoint(tmp_path)
    loaded = MixedReplayBuffer.from_checkpoint(tmp_path, buffer_class=Own)
    assert [type(each) for each in loaded.buffers] == [Own, Own]


def test_buffers_that_are_read_in_place_are_opened_again(tmp_path: Path) -> None:
    demonstrations, folder = tmp_path / "demonstrations", tmp_path / "saved"
    filled(DEMOS).save_checkpoint(demonstrations)
    buffer = MixedReplayBuffer(100, IMAGES, COUNTER, "cpu", demonstrations=demonstrations, sampler="prioritized")
    add_steps(buffer, range(50))
    buffer.update_priorities(buffer.sample(32).indices, np.arange(32))
    save_checkpoint(buffer, folder)
    assert not (folder / "part-1").exists()
    loaded = load_checkpoint(folder, device="cpu")
    saved, again = (each.online.sampler.priorities for each in (buffer, loaded))
    np.testing.assert_array_equal(saved, again)
    assert loaded.sample(8).sources.tolist() == [0] * 6 + [1] * 2
    assert loaded.update_priorities(loaded.sample(8).indices, np.ones(8)) == 0
    before = content(demonstrations)
    save_checkpoint(loaded, folder)
    assert content(demonstrations) == before
    shutil.rmtree(demonstrations)
    with pytest.raises(StorageError, match="demonstrations"):
        load_checkpoint(folder)


def test_wrong_folders_are_errors_and_stay_as_they_were(tmp_path: Path) -> None:
    buffer, other = mixed(), filled(0)
    other.save_checkpoint(tmp_path / "plain")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "notes.txt").touch()
    mixed().save_checkpoint(tmp_path / "mixed")
    for name, message in (("plain", "not mixed"), ("files", "notes.txt"), ("mixed", "overwrite")):
        before = content(tmp_path / name)
        with pytest.raises(StorageError, match=message):
            buffer.save_checkpoint(tmp_path / name)
        assert content(tmp_path / name) == before
    with pytest.raises(StorageError, match="other files"):
        other.save_checkpoint(tmp_path / "mixed")
    with pytest.raises(StorageError, match="part-0"):
        load_checkpoint(tmp_path / "mixed", follow=True)
    with pytest.raises(StorageError, match="no complete checkpoint of a mixed buffer"):
        MixedReplayBuffer.from_checkpoint(tmp_path / "plain")
    buffer.weights = [1, 3]
    buffer.save_checkpoint(tmp_path / "mixed", overwrite=True)
    assert load_checkpoint(tmp_path / "mixed").weights.tolist() == [0.25, 0.75]


def test_an_interrupted_first_save_is_no_checkpoint(tmp_path: Path) -> None:
    buffer = mixed()
    buffer.save_checkpoint(tmp_path)
    (tmp_path / "mixed.json").unlink()  # which is written last
    with pytest.raises(StorageError):
        load_checkpoint(tmp_path)
    buffer.save_checkpoint(tmp_path)
    assert_same_batches(load_checkpoint(tmp_path, device="cpu"), buffer)


@pytest.mark.parametrize("content", ["", "{}", '{"weights": [1, 2]}', "flipped", "more weights"])
def test_a_damaged_manifest_is_an_error(content: str, tmp_path: Path) -> None:
    from sb3_compressed.storage.checked_json import with_checksum

    mixed().save_checkpoint(tmp_path)
    path = tmp_path / "mixed.json"
    values = json.loads(path.read_text())
    if content == "flipped":
        content = path.read_text().replace("0.75", "0.85")
    elif content == "more weights":
        del values["checksum"]
        content = json.dumps(with_checksum({**values, "weights": [0.5, 0.25, 0.25]}))
    path.write_text(content)
    with pytest.raises(CorruptStorage):
        load_checkpoint(tmp_path)


def test_buffers_of_sb3_cannot_be_saved(tmp_path: Path) -> None:
    buffer = MixedReplayBuffer.from_buffers([filled(0), filled(DEMOS, cls=ReplayBuffer)], [1, 1])
    with pytest.raises(StorageError, match="buffer 1 is a ReplayBuffer"):
        buffer.save_checkpoint(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_commands_name_the_folders_of_the_parts(tmp_path: Path) -> None:
    mixed().save_checkpoint(tmp_path / "buffer")
    for folder in (tmp_path / "buffer", tmp_path):
        with pytest.raises(StorageError, match=r"mixed buffer; .* such as .*part-0"):
            find_source(folder)
    assert find_source(tmp_path / "buffer" / "part-1").path == tmp_path / "buffer" / "part-1"


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
    save_checkpoint(model.learn(100).replay_buffer, tmp_path / "demonstrations")  # type: ignore[arg-type]
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
        model.replay_buffer = MixedReplayBuffer.from_buffers(parts, [0.5, 0.5])  # type: ignore[assignment]
    buffer: Any = model.replay_buffer
    model.learn(60, callback=callbacks)
    buffer.weights = [0.9, 0.1]
    model.learn(60, callback=callbacks[0], reset_num_timesteps=False)
    newest = latest_checkpoint(folder)
    resumed = DQN.load(newest / "model", env=model.get_env())
    resumed.replay_buffer = loaded = load_checkpoint(newest / "buffer", device=resumed.device)
    assert loaded.size() == 120
    assert loaded.weights.tolist() == [0.9, 0.1]
    assert_same_batches(loaded, buffer)
    buffer.close()
    callback = BufferCheckpointCallback(50, folder, resume=True)
    resumed.learn(50, callback=callback, reset_num_timesteps=False)
    assert buffer_statistics(loaded).transitions == 170
    assert load_checkpoint(latest_checkpoint(folder) / "buffer").size() == 170


def test_a_mix_with_buffers_of_sb3_is_an_error_before_training(tmp_path: Path) -> None:
    model = new_model(replay_buffer_class=CompressedReplayBuffer)
    other = new_model().learn(20).replay_buffer
    parts: list[Any] = [model.replay_buffer, other]
    model.replay_buffer = MixedReplayBuffer.from_buffers(parts, [0.5, 0.5])  # type: ignore[assignment]
    with pytest.raises(StorageError, match="buffer 1 is a ReplayBuffer"):
        model.learn(20, callback=BufferCheckpointCallback(10, tmp_path))
