"""Repair keeps every undamaged transition, bit for bit, and reports exactly the damaged ones."""

from __future__ import annotations

import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import writer
from buffer_pairs import SB3_OPTIMIZED
from conftest import recorded
from support import add_all, filled

from sb3_compressed import (
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    CorruptPayload,
    CorruptStorage,
    StorageError,
    load_checkpoint,
)
from sb3_compressed.arrays.slot_format import CHECKSUM_NBYTES, PAYLOAD_HEADER, SLOT_HEADER
from sb3_compressed.storage import verify
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.commit_writer import CommitWriter
from sb3_compressed.storage.segment import Segment

Place = tuple[int, int]


@pytest.fixture(autouse=True)
def many_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small files, so that buffers of some kilobytes have many."""
    monkeypatch.setattr(CommitWriter, "SEGMENT_NBYTES", 30_000)
    monkeypatch.setattr(CommitWriter, "MIN_SEGMENT_NBYTES", 30_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a ring in its second lap."""
    buffer = writer.new_buffer(storage=tmp_path / "buffer")
    for number in range(1, 100):
        writer.add_step(buffer, number)
    buffer.close()
    return tmp_path / "buffer"


def transitions(buffer: Any) -> dict[Place, tuple[bytes, ...]]:
    """Return the content of each transition in a buffer by row and environment."""
    rows = range(buffer.buffer_size if buffer.full else buffer.pos)
    is_dict = isinstance(buffer.observations, dict)
    parts: list[Any] = []
    for name in ("observations", "next_observations"):
        value = getattr(buffer, name, None)
        if value is None:
            continue
        parts += [np.asarray(each) for each in (value.values() if is_dict else [value])]
    if getattr(buffer, "next_observations", None) is None:
        parts.append(np.roll(parts[0], -1, axis=0))
    parts += [buffer.actions, buffer.rewards, buffer.dones]
    return {
        (row, env): tuple(part[row, env].tobytes() for part in parts) for row in rows for env in range(buffer.n_envs)
    }


def hold_that_others_are_kept(repaired: Any, before: dict[Place, tuple[bytes, ...]]) -> set[Place]:
    """Assert that all transitions but the reported ones are as before; return the reported ones."""
    dropped = {(int(row), int(env)) for row, env in repaired.repair_report.dropped}
    after = transitions(repaired)
    kept = {place: content for place, content in before.items() if place not in dropped}
    assert after.keys() >= before.keys()
    assert all(after[place] == content for place, content in kept.items())
    if not hasattr(repaired, "ep_length"):
        for place in dropped:
            assert after[place] in kept.values(), "no transition is made up"
            assert repaired.dones[place] or repaired.timeouts[place], "n-step returns end there"
    return dropped


def repair_silently(folder: Path, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return load_checkpoint(folder, repair=True, device="cpu", **options)


def damaged_copy(folder: Path) -> Path:
    copy = folder.with_name("damaged")
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(folder, copy))


def spans_of_transitions(folder: Path) -> dict[Place, list[tuple[str, int, int]]]:
    """Return where the slots and payloads of each transition are, as file, first and last byte."""
    store = ArrayStore.open(folder)
    found: dict[Place, list[tuple[str, int, int]]] = {}
    for name in ("observations", "next_observations"):
        for place, address in np.ndenumerate(store.arrays[name]):
            number, offset = int(address) >> 32, int(address) & 0xFFFFFFFF
            data = (folder / f"{number:08}.log").read_bytes()
            n = int.from_bytes(data[offset + 4 : offset + 8], "little")
            spans = [(offset, CHECKSUM_NBYTES + SLOT_HEADER + 4 * n)]
            for k in range(n):
                at = offset + CHECKSUM_NBYTES + SLOT_HEADER + 4 * k
                payload = int.from_bytes(data[at : at + 4], "little")
                nbytes = int.from_bytes(data[payload + 4 : payload + 8], "little")
                spans.append((payload, CHECKSUM_NBYTES + PAYLOAD_HEADER + nbytes))
            spans = [(begin, begin + nbytes) for begin, nbytes in spans]
            found.setdefault(place, []).extend((f"{number:08}.log", *span) for span in spans)
    store.close()
    return found


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << offset % 8
    path.write_bytes(content)


WAYS: dict[str, Any] = {
    "load": lambda folder: load_checkpoint(folder, repair=True, device="cpu"),
    "resume": lambda folder: writer.new_buffer(storage=folder, storage_mode="repair"),
}


@pytest.mark.parametrize("n_flips", [1, 5])
@pytest.mark.parametrize("way", WAYS)
def test_repair_drops_exactly_the_transitions_with_damaged_payloads(way: str, n_flips: int, folder: Path) -> None:
    before = transitions(load_checkpoint(folder, device="cpu"))
    spans = spans_of_transitions(folder)
    rng = random.Random(n_flips)
    every = [span for of_place in spans.values() for span in of_place]
    for trial in range(3):
        damaged = Path(shutil.copytree(folder, folder.parent / f"damaged {trial}"))
        hits = []
        for _ in range(n_flips):
            name, begin, end = rng.choice(every)
            hits.append((name, rng.randrange(begin, end)))
            flip(damaged / name, hits[-1][1])
        expected = {
            place
            for place, of_place in spans.items()
            if any(name == hit and begin <= at < end for name, begin, end in of_place for hit, at in hits)
        }
        with pytest.raises((CorruptPayload, CorruptStorage)):
            transitions(load_checkpoint(damaged, device="cpu"))
        with pytest.warns(UserWarning, match=f"{len(expected)} of 120 transitions are damaged and excluded"):
            repaired = WAYS[way](damaged)
        assert hold_that_others_are_kept(repaired, before) == expected
        assert all(str(damaged) in line for line in repaired.repair_report.problems)
        if way == "resume":
            assert verify(damaged) == [], "the damage is repaired"
            for number in range(100, 130):
                writer.add_step(repaired, number)
            repaired.close()
            assert verify(damaged) == []
            again = load_checkpoint(damaged, device="cpu")
            assert transitions(again) == transitions(repaired)


def test_repair_drops_the_transitions_of_a_missing_file(folder: Path) -> None:
    before = transitions(load_checkpoint(folder, device="cpu"))
    spans = spans_of_transitions(folder)
    *others, snapshot = sorted(folder.glob("*.log"))
    for path in others:
        damaged = damaged_copy(folder)
        (damaged / path.name).unlink()
        expected = {place for place, of_place in spans.items() if any(name == path.name for name, _, _ in of_place)}
        assert hold_that_others_are_kept(repair_silently(damaged), before) == expected
    snapshot.unlink()
    with pytest.raises(CorruptStorage, match="no snapshot"):
        repair_silently(folder)


def test_repair_of_an_intact_folder_drops_nothing(folder: Path) -> None:
    before = transitions(load_checkpoint(folder, device="cpu"))
    loaded = load_checkpoint(folder, repair=True, device="cpu")  # a warning fails this test
    assert hold_that_others_are_kept(loaded, before) == set()
    resumed = writer.new_buffer(storage=folder, storage_mode="repair")
    assert hold_that_others_are_kept(resumed, before) == set()
    assert writer.hold_that_it_is_whole(resumed) == 99
    assert load_checkpoint(folder, device="cpu").repair_report is None


def test_repaired_buffer_can_be_saved_to_its_folder(folder: Path) -> None:
    buffer = load_checkpoint(folder, device="cpu")
    buffer.save_checkpoint(folder.parent / "checkpoint")
    path = max(folder.parent.joinpath("checkpoint").glob("*.log"), key=lambda path: path.stat().st_size)
    flip(path, path.stat().st_size // 2)
    with pytest.warns(UserWarning, match="damaged and excluded"):
        repaired = load_checkpoint(path.parent, repair=True, device="cpu")
    repaired.save_checkpoint(path.parent, overwrite=True)
    assert verify(path.parent) == []
    assert transitions(load_checkpoint(path.parent, device="cpu")) == transitions(repaired)


def test_repair_of_a_folder_in_use_raises(folder: Path) -> None:
    buffer = writer.new_buffer(storage=folder, storage_mode="resume")
    with pytest.raises(StorageError, match="is being written to"):
        load_checkpoint(folder, repair=True)
    buffer.close()
    with pytest.raises(StorageError, match="followed"):
        load_checkpoint(folder, repair=True, follow=True)


@pytest.mark.parametrize(
    ("stream", "cls", "options"),
    [
        ("atari", CompressedNStepReplayBuffer, {"n_steps": 3}),
        ("console", CompressedDictReplayBuffer, {}),
        ("pendulum", CompressedReplayBuffer, {}),
    ],
)
def test_repair_works_for_every_class(stream: str, cls: Any, options: dict[str, Any], tmp_path: Path) -> None:
    buffer = filled(stream, 80, 50, cls, storage=tmp_path / "buffer", **options)
    buffer.close()
    before = transitions(buffer)
    rng = random.Random(4)
    n_dropped = 0
    for _ in range(6):
        damaged = damaged_copy(tmp_path / "buffer")
        path = rng.choice(sorted(damaged.glob("*.log")))
        flip(path, rng.randrange(path.stat().st_size))
        repaired = repair_silently(damaged)
        n_dropped += len(hold_that_others_are_kept(repaired, before))
        repaired.sample(64)
    assert n_dropped


def test_transitions_without_next_observations_cannot_be_excluded(tmp_path: Path) -> None:
    filled("atari", 80, 50, storage=tmp_path / "buffer", **SB3_OPTIMIZED).close()
    path = min((tmp_path / "buffer").glob("*.log"))
    flip(path, path.stat().st_size // 2)
    with pytest.raises(CorruptStorage, match="optimize_memory_usage=True"):
        repair_silently(tmp_path / "buffer")


def test_hindsight_never_samples_a_damaged_step(tmp_path: Path) -> None:
    steps = recorded("goal-bits")[-1]
    options = {"storage": tmp_path / "a", "compression_method": "zstd3"}
    stored: Any = filled("goal-bits", 65, 40, CompressedHerReplayBuffer, **options)
    stored.close()
    before = transitions(stored)
    rng = random.Random(5)
    is_hit = False
    for _ in range(6):
        damaged = damaged_copy(tmp_path / "a")
        for path in 8 * [path for path in sorted(damaged.glob("*.log")) if not Segment(path).is_snapshot]:
            flip(path, rng.randrange(4000, path.stat().st_size))
        repaired = repair_silently(damaged, env=stored.env)
        dropped = hold_that_others_are_kept(repaired, before)
        is_hit = is_hit or bool(dropped)
        for row, env_index in dropped:
            assert repaired.ep_length[row, env_index] == 0
        for row, env_index in zip(*np.nonzero(repaired.ep_length), strict=True):
            start, length = repaired.ep_start[row, env_index], repaired.ep_length[row, env_index]
            episode = {((int(start) + k) % 40, int(env_index)) for k in range(int(length))}
            assert (int(row), int(env_index)) in episode
            assert not episode & dropped
        repaired.sample(200)
        add_all(steps[65:120], repaired)
        repaired.sample(200)
    assert is_hit


def test_a_folder_without_a_completed_save_contains_no_buffer(tmp_path: Path) -> None:
    CommitWriter.create(tmp_path, {}, {}, {}).close()  # as a save that was killed leaves it
    for options in ({}, {"repair": True}):
        with pytest.raises(StorageError, match="not completed"):
            load_checkpoint(tmp_path, device="cpu", **options)


def test_repair_of_a_folder_of_which_everything_is_lost_returns_an_empty_buffer(folder: Path) -> None:
    *slots, _ = sorted(folder.glob("*.log"))  # the last one is a snapshot
    for path in slots:
        path.unlink()
    with pytest.warns(UserWarning, match=r"120 of 120 transitions are damaged and excluded, 0 are kept"):
        buffer = load_checkpoint(folder, device="cpu", repair=True)
    assert buffer.size() == 0
    writer.add_step(buffer, 1)
    assert writer.hold_that_it_is_whole(buffer) == 1
