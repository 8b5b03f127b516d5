"""Damaged stores are rejected; repairs keep the commits before the damage, and never return wrong rows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from drawn_examples import FACTOR
from slot_objects import load_slots

from sb3_compressed.errors import CorruptPayload, CorruptStorage
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.commit_writer import CommitWriter, copy_committed
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.record_kinds import COMMIT, MANIFEST
from sb3_compressed.storage.segment import Segment
from sb3_compressed.storage.verification import damaged_slots, verify
from storage.folders import contents, damage, names, newest_segment
from storage.stores import (
    assert_consistent,
    commit_number,
    commit_tiny,
    crash,
    create,
    damaged_rows,
    open_to_write,
    read_values,
    tiny_store,
)

pytestmark = pytest.mark.usefixtures("small_files")


def repaired(folder: Path, *, writable: bool = False) -> ArrayStore:
    return ArrayStore.open(folder, lock=FolderLock(folder) if writable else None, repair=True)


def problems_of(store: ArrayStore) -> list[str]:
    assert store.problems is not None
    return [*store.problems, *damaged_slots(store, "table").values()]


def assert_correct(store: ArrayStore, n_rows: int = 4) -> list[int]:
    """Assert that all rows are lost or of the state of the last commit; return the numbers of those that are not."""
    last = store.values["number"]
    assert store.values["pos"] == last % n_rows
    is_lost = damaged_rows(store)
    for rows in store.lost_rows.values():
        is_lost |= rows
    kept = []
    for number in range(max(last - n_rows + 1, 1), last + 1):
        row = (number - 1) % n_rows
        if not is_lost[row]:
            assert store.arrays["numbers"][row] == number
            assert load_slots(store.log, store.arrays["table"][row]).tolist() == [b"%d" % number * 3]
            kept.append(number)
    return kept


def test_repair_of_a_copy_leaves_the_original_unchanged(tmp_path: Path) -> None:
    """The copies share files."""
    writer = create(tmp_path / "store")
    commit_number(writer, 1)
    copy_committed(writer.store, tmp_path / "copy")
    for number in range(2, 5):
        commit_number(writer, number)
    damage(newest_segment(tmp_path / "copy"), 120)
    before = contents(tmp_path / "store")
    copy = repaired(tmp_path / "copy", writable=True)
    assert len(problems_of(copy)) == 1
    assert not copy.arrays["numbers"][1:].any(), "later records of the shared file are ignored"
    assert copy.values["number"] == copy.arrays["numbers"][0, 0] == 1
    copying = CommitWriter(copy)
    copying.write_snapshot()
    commit_number(copying, 2)
    copying.close()
    assert contents(tmp_path / "store") == before
    commit_number(writer, 5)
    writer.close()
    store = ArrayStore.open(tmp_path / "store")
    assert assert_consistent(store) == 5
    store.close()


def test_missing_segment_is_reported(tmp_path: Path) -> None:
    writer = create(tmp_path / "store")
    for step in range(1, 9):
        commit_number(writer, step)
        if step in (3, 6):
            writer.write_snapshot()
    writer.store.log.begin_segment()
    commit_number(writer, 9)
    crash(writer)
    assert names(tmp_path / "store") == [f"{number:08}.log" for number in (1, 3, 4, 5, 6)]
    for name in names(tmp_path / "store")[:-1]:
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
        (tmp_path / "copy" / name).unlink()
        with pytest.raises((CorruptStorage, CorruptPayload), match=f"{name} is missing"):
            assert_consistent(ArrayStore.open(tmp_path / "copy", lock=FolderLock(tmp_path / "copy")))
        shutil.rmtree(tmp_path / "copy")
    newest_segment(tmp_path / "store").unlink()
    assert read_values(tmp_path / "store")["number"] == 8, "as if the last file was never written"


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_damaged_byte_is_verified_or_harmless(is_closed: bool, tmp_path: Path) -> None:
    n_commits = 7  # more than a lap of the ring, and a snapshot
    writer = tiny_store(tmp_path, n_commits)
    (CommitWriter.close if is_closed else crash)(writer)
    before, n_reported = contents(tmp_path), 0
    for path in sorted(tmp_path.glob("*.log")):
        for position in range(0, path.stat().st_size, 1 if FACTOR else 23):
            damage(path, position, 1 << position % 8)
            found, damaged = verify(tmp_path), repaired(tmp_path)
            kept = assert_correct(damaged)
            if not found:
                assert kept == [4, 5, 6, 7], (path.name, position)
            assert all(str(tmp_path) in line for line in found)
            assert damaged.values["number"] >= 5, "the snapshot, and commits before the damage"
            n_reported += bool(found)
            damaged.close()
            damage(path, position, 1 << position % 8)
    assert n_reported > 5
    assert contents(tmp_path) == before, "reading changes nothing"
    assert verify(tmp_path) == []


@pytest.mark.parametrize("seed", range(20 * int(FACTOR)) if FACTOR else range(1, 9))
def test_damage_never_yields_wrong_rows(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    n_commits, n_rows = int(rng.integers(3, 60)), int(rng.integers(2, 24))
    writer = tiny_store(tmp_path, 0, n_rows=n_rows)
    for number in range(1, n_commits + 1):
        commit_tiny(writer, number)
        chance = rng.random()
        if chance < 0.1:
            writer.write_snapshot()
        elif chance < 0.15:
            writer.store.log.begin_segment()
        elif chance < 0.2:
            (crash if rng.random() < 0.5 else CommitWriter.close)(writer)
            writer = open_to_write(tmp_path)
    (crash if rng.random() < 0.5 else CommitWriter.close)(writer)
    for _ in range(rng.integers(1, 4)):
        path = sorted(tmp_path.glob("*.log"))[rng.integers(len(list(tmp_path.glob("*.log"))))]
        content = bytearray(path.read_bytes())
        start = int(rng.integers(len(content)))
        if rng.random() < 0.5:
            content[start] ^= 1 << int(rng.integers(8))
        else:
            # Zeros up to the end would be a truncated record, as a killed process leaves it.
            nbytes = min(int(rng.integers(1, 1000)), len(content) - 1 - start)
            content[start : start + nbytes] = bytes(nbytes)
        path.write_bytes(content)
    try:
        damaged = repaired(tmp_path, writable=True)
    except CorruptStorage:
        return  # nothing can be read
    kept = assert_correct(damaged, n_rows)
    assert problems_of(damaged) or kept == [*range(max(n_commits - n_rows + 1, 1), n_commits + 1)]
    damaged.arrays["table"][damaged_rows(damaged)] = 0
    writer = CommitWriter(damaged)
    writer.write_snapshot()
    writer.close()
    ArrayStore.open(tmp_path).close()


def test_repaired_store_accepts_further_commits(tmp_path: Path) -> None:
    crash(tiny_store(tmp_path, 8))
    path = tmp_path / "00000003.log"
    damage(path, path.read_bytes().index(b"777") + 1)
    before = contents(tmp_path)
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=rf"{re.escape(str(tmp_path))}.*repair=True"):
            ArrayStore.open(tmp_path, lock=FolderLock(tmp_path) if writable else None)
    damaged = repaired(tmp_path, writable=True)
    assert contents(tmp_path) == before, "nothing is changed yet"
    assert len(problems_of(damaged)) == 1
    assert assert_correct(damaged) == [3, 4, 5, 6]
    writer = CommitWriter(damaged)
    writer.write_snapshot()
    for number in range(7, 11):
        commit_tiny(writer, number)
    writer.close()
    store = ArrayStore.open(tmp_path)
    assert store.arrays["numbers"].tolist() == [9, 10, 7, 8]
    assert load_slots(store.log, store.arrays["table"][:, 0]).tolist() == [b"%d" % k * 3 for k in (9, 10, 7, 8)]
    store.close()
    assert verify(tmp_path) == []


def test_files_of_another_buffer_are_ignored(tmp_path: Path) -> None:
    for name in "ab":
        writer = tiny_store(tmp_path / name, 8, n_a_snapshot=100)
        writer.write_snapshot()
        commit_tiny(writer, 9)
        crash(writer)
    shutil.copy(tmp_path / "b" / "00000001.log", tmp_path / "a" / "00000001.log")
    damaged = repaired(tmp_path / "a")
    assert any("belongs to another buffer" in line for line in problems_of(damaged))
    assert assert_correct(damaged) == [9]
    damaged.close()


def test_files_of_another_copy_are_ignored(tmp_path: Path) -> None:
    """They have the same numbers and offsets."""
    crash(tiny_store(tmp_path / "a", 3))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name, first in (("a", 4), ("b", 8)):
        writer = open_to_write(tmp_path / name)
        for number in range(first, first + 2):
            commit_tiny(writer, number)
        writer.write_snapshot()
        crash(writer)
    shutil.copy(tmp_path / "b" / "00000002.log", tmp_path / "a" / "00000002.log")
    damaged = repaired(tmp_path / "a")
    assert any("or to a copy of this one" in line for line in problems_of(damaged))
    assert assert_correct(damaged) == [2, 3]
    damaged.close()


def test_store_without_readable_metadata_is_rejected(five_commits: tuple[Path, list[int]]) -> None:
    folder, _ = five_commits
    for path in folder.glob("*.log"):
        segment = Segment(path)
        offsets = [record.offset for record in segment.records() if record.kind == MANIFEST]
        segment.close()
        assert len(offsets) == (2 if segment.is_snapshot else 0), "a snapshot contains its manifest twice"
        for offset in offsets:
            damage(path, offset + 20)
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=f"{folder}.* has no metadata"):
            repaired(folder, writable=writable)
    for path in folder.glob("*.log"):
        path.write_bytes(b"nothing")
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=f"{folder} has no snapshot"):
            repaired(folder, writable=writable)
    assert len(names(folder)) == 2


@pytest.mark.parametrize("writable", [False, True])
def test_segments_that_do_not_follow_are_not_used(writable: bool, tmp_path: Path) -> None:
    crash(tiny_store(tmp_path / "a", 2))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name in "ab":
        for number in (3, 4):  # each in a segment of its own
            writer = open_to_write(tmp_path / name)
            commit_tiny(writer, number)
            crash(writer)
    newest = newest_segment(tmp_path / "b")
    shutil.copy(newest, tmp_path / "a" / newest.name)
    with pytest.raises(CorruptStorage, match=f"{newest.name} does not follow"):
        ArrayStore.open(tmp_path / "a", lock=FolderLock(tmp_path / "a") if writable else None)
    damaged = repaired(tmp_path / "a", writable=writable)
    assert any(f"{newest.name} does not follow" in problem for problem in problems_of(damaged))
    assert damaged.values["number"] == 3
    if writable:
        writer = CommitWriter(damaged)
        writer.write_snapshot()
        commit_tiny(writer, 4)
    damaged.close()
    if writable:
        assert read_values(tmp_path / "a")["number"] == 4


def test_an_invalid_commit_with_the_right_checksum_ends_the_state(tmp_path: Path) -> None:
    writer = tiny_store(tmp_path, 2)
    writer.store.log.segment_to_write().append(COMMIT, b"no commit")
    commit_tiny(writer, 3)
    crash(writer)
    with pytest.raises(CorruptStorage):
        ArrayStore.open(tmp_path)
    damaged = repaired(tmp_path)
    assert len(problems_of(damaged)) == 1
    assert assert_correct(damaged) == [1, 2]
    damaged.close()
