"""``sb3-compressed inspect`` describes a stored buffer without reading all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import writer
from commands import flip_a_bit, run
from small_samplers import ValidSampler
from support import filled

from sb3_compressed import (
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.buffers.description import describe
from sb3_compressed.callbacks import checkpoint_folder
from sb3_compressed.datasets import trajectories
from sb3_compressed.samplers import PrioritizedSampler


def inspected(*arguments: Any) -> Any:
    done = run("inspect", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("way", ["storage", "saved"])
def test_folder_is_described(way: str, tmp_path: Path) -> None:
    # With one thread, the codec is trained before the next step is added.
    if way == "storage":
        buffer = filled("atari", 250, storage=tmp_path / "buffer", num_threads=1)
        buffer.flush()  # it remains open for writing
    else:
        buffer = filled("atari", 250, num_threads=1)
        save_checkpoint(buffer, tmp_path / "buffer")
    found = inspected(tmp_path / "buffer")
    assert found["class"] == "CompressedReplayBuffer"
    assert found["observation_space"] == "Box(0, 255, (4, 84, 84), uint8)"
    assert found["action_space"] == "Discrete(4)"
    assert (found["n_envs"], found["rows"], found["capacity"], found["transitions"]) == (4, 100, 400, 400)
    assert (found["position"], found["full"]) == (50, True)
    codec = found["observations"][""]
    assert codec["codec"].startswith("Delta(")
    assert codec["learned_bytes"] == buffer.observations.codec.nbytes > 0
    assert codec["frames"] == 4
    assert found["raw_bytes_per_transition"] == 2 * 4 * 84 * 84
    assert 0 < found["payload_bytes_per_transition"] < 300
    assert found["ratio"] == pytest.approx(2 * 4 * 84 * 84 / found["payload_bytes_per_transition"])
    # All memory counts, not only payloads: as much as a buffer in memory takes that contains the same, where equal
    # payloads that are not written in the same call may be shared.
    loaded = load_checkpoint(tmp_path / "buffer")
    others = sum(getattr(loaded, name).nbytes for name in ("actions", "rewards", "dones", "timeouts"))
    trained = {id(each): each.nbytes for each in loaded.observations.stream.log.trained_codecs()}
    unused = 0 if id(loaded.observations.codec) in trained else loaded.observations.codec.nbytes
    assert found["memory_bytes"] == pytest.approx(loaded.observations_nbytes + unused + others, rel=0.01)
    assert found["memory_bytes"] > 400 * found["payload_bytes_per_transition"] + codec["learned_bytes"] + others
    assert found["sb3_memory_bytes"] == loaded.raw_observations_nbytes + others
    assert found["memory_ratio"] == found["sb3_memory_bytes"] / found["memory_bytes"]
    assert 0 < found["disk_bytes"] <= sum(path.stat().st_size for path in (tmp_path / "buffer").iterdir())
    episodes = [*trajectories(buffer)]
    whole = [each for each in episodes if each.has_begin and each.has_end]
    returns = [each.rewards.sum() for each in whole]
    assert found["episodes"]["episodes"] == len(episodes)
    assert found["episodes"]["whole"] == len(whole) > 3
    assert found["episodes"]["unfinished"] == sum(not each.has_end for each in episodes)
    assert found["episodes"]["without_begin"] == sum(not each.has_begin for each in episodes)
    lengths = np.array([len(each) for each in whole])
    assert found["episodes"]["lengths"] == {
        "min": lengths.min(), "median": np.median(lengths), "max": lengths.max()
    }  # fmt: skip
    assert found["episodes"]["returns"]["max"] == max(returns)
    assert found["health"] == {
        "opens": True, "damage": None, "is_written_to": way == "storage", "unfinished": []
    }  # fmt: skip


def test_all_kinds_of_folders_are_inspected(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "step_0000000007"
    folder.mkdir(parents=True)
    checkpoint_folder.write_manifest(folder, 1, 7)
    (folder / "model.zip").touch()
    save_checkpoint(filled("atari", 40), folder / "buffer")
    save_checkpoint(filled("atari", 150, sampler="prioritized"), tmp_path / "prioritized")
    save_checkpoint(filled("atari", 150, cls=CompressedNStepReplayBuffer, n_steps=3, gamma=0.9), tmp_path / "n steps")
    save_checkpoint(filled("pendulum", 150, sampler=ValidSampler()), tmp_path / "a user's sampler")
    for path in tmp_path.iterdir():
        done = run("inspect", path)
        assert done.returncode == 0, done.stderr
        assert "health        opens" in done.stdout


@pytest.mark.parametrize(
    ("name", "cls"), [("console", CompressedDictReplayBuffer), ("goal-bits", CompressedHerReplayBuffer)]
)
def test_dict_observations_are_described(name: str, cls: Any, tmp_path: Path) -> None:
    buffer = filled(name, 40, cls=cls)
    save_checkpoint(buffer, tmp_path / "buffer")
    found = inspected(tmp_path / "buffer")
    assert found["class"] == cls.__name__
    assert set(found["observations"]) == set(buffer.observations)
    assert found["transitions"] == 40 * buffer.n_envs


def test_text_output_is_verbatim_and_not_wrapped(tmp_path: Path) -> None:
    save_checkpoint(filled("atari", 50), tmp_path / "buffer [1]")
    done = run("inspect", tmp_path / "buffer [1]", COLUMNS="40")
    assert (done.returncode, done.stderr) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert lines["folder"] == str(tmp_path / "buffer [1]")
    assert lines["transitions"] == "200 of 400 (50%), 4 environments"
    assert lines["health"] == f"opens; verify every byte: sb3-compressed verify {tmp_path / 'buffer [1]'}"
    assert "\x1b" not in done.stdout


def test_empty_buffer_is_described(tmp_path: Path) -> None:
    save_checkpoint(filled("atari", 0), tmp_path / "buffer")
    found = inspected(tmp_path / "buffer")
    assert found["transitions"] == 0
    assert found["payload_bytes_per_transition"] is found["ratio"] is found["memory_ratio"] is None
    assert run("inspect", tmp_path / "buffer").returncode == 0


def test_damage_is_inspected(tmp_path: Path) -> None:
    save_checkpoint(filled("atari", 50), tmp_path / "buffer")
    file = flip_a_bit(tmp_path / "buffer")
    done = run("inspect", tmp_path / "buffer", "--json")
    assert done.returncode == 1
    health = json.loads(done.stdout)["health"]
    assert health["opens"] is False
    assert str(file) in health["damage"]
    done = run("inspect", tmp_path / "buffer")
    assert done.returncode == 1
    assert f"damaged: {file}" in done.stdout


def test_killed_writer_is_not_reported_as_damage(tmp_path: Path) -> None:
    with writer.start("storage", tmp_path / "buffer") as process:
        assert process.stdout is not None
        for _ in range(40):
            process.stdout.readline()
        assert inspected(tmp_path / "buffer")["health"]["is_written_to"]
        process.kill()
    found = inspected(tmp_path / "buffer")
    assert found["health"]["opens"]
    assert not found["health"]["is_written_to"]
    assert found["transitions"] >= 39 * writer.N_ENVS


def test_what_an_interrupted_writer_left_is_harmless(tmp_path: Path) -> None:
    save_checkpoint(filled("atari", 50), tmp_path / "buffer")
    [segment, *_] = sorted((tmp_path / "buffer").glob("*.log"))
    left = segment.with_suffix(".unfinished")
    left.write_bytes(segment.read_bytes()[:100])
    done = run("inspect", tmp_path / "buffer")
    assert done.returncode == 0, done.stderr
    assert f"opens, {left.name} left by an interrupted process (harmless)" in done.stdout


def test_priorities_are_described(tmp_path: Path) -> None:
    sampler = PrioritizedSampler(alpha=1.0, epsilon=0.0)
    buffer = filled("atari", 80, sampler=sampler)
    buffer.sample(1)
    numbers = np.arange(320)
    assert buffer.update_priorities(numbers, np.where(numbers < 300, 0.01, 1.0)) == 0
    save_checkpoint(buffer, tmp_path / "buffer")
    found = inspected(tmp_path / "buffer")["priorities"]
    assert found["max"] == 1
    assert found["effective_sample_size"] == pytest.approx(23**2 / (320 * 20.03))
    assert found["never_sampled"] == 319 / 320
    assert "at most 1, effective sample size 8% of" in run("inspect", tmp_path / "buffer").stdout
    assert "priorities" not in describe(filled("atari", 80))
