"""Damaged stores are rejected; opening them for repair keeps all intact rows and never returns wrong ones."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from drawn_examples import FACTOR

from sb3_compressed.errors import CorruptPayload, CorruptStorage
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.damaged_store import DamagedStore, open_damaged
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.record_kinds import COMMIT, MANIFEST, PATCHES
from sb3_compressed.storage.segment import Segment
from sb3_compressed.storage.verification import damaged_slots, verify
from storage.folders import contents, damage, names, newest_segment
from storage.segments import HEADER_NBYTES
from storage.stores import (
    CODECS,
    assert_consistent,
    commit_number,
    commit_tiny,
    crash,
    create,
    damaged_rows,
    read_values,
    tiny_store,
    values_of,
)

pytestmark = pytest.mark.usefixtures("small_files")


# -- copies --------------------------------------------------------------------------------------------------


def test_repair_of_a_copy_leaves_the_original_unchanged(tmp_path: Path) -> None:
    """The copies share files."""
    store = create(tmp_path / "store")
    commit_number(store, 1)
    store.copy_to(tmp_path / "copy")
    for number in range(2, 5):
        commit_number(store, number)
    damage(newest_segment(tmp_path / "copy"), 120)
    before = contents(tmp_path / "store")
    copy = open_damaged(tmp_path / "copy", writable=True)
    assert len(copy.problems) == 1
    assert not copy.arrays["numbers"][1:].any(), "later records of the shared file are ignored"
    assert copy.values["number"] == copy.arrays["numbers"][0, 0] == 1
    copy.write_snapshot()
    commit_number(copy, 2)
    copy.close()
    assert contents(tmp_path / "store") == before
    commit_number(store, 5)
    store.close()
    store = ArrayStore.open(tmp_path / "store")
    assert assert_consistent(store) == 5
    store.close()


# -- damage --------------------------------------------------------------------------------------------------


def test_missing_segment_is_reported(tmp_path: Path) -> None:
    store = create(tmp_path / "store")
    for step in range(1, 9):
        commit_number(store, step)
        if step in (3, 6):
            store.write_snapshot()
    store.log.begin_segment()
    commit_number(store, 9)
    crash(store)
    assert names(tmp_path / "store") == [f"{number:08}.log" for number in (1, 3, 4, 5, 6)]
    for name in names(tmp_path / "store"):
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
        (tmp_path / "copy" / name).unlink()
        before = name.replace("6", "5")
        with pytest.raises((CorruptStorage, CorruptPayload), match=rf"{name} is missing|after .*{before} is missing"):
            assert_consistent(ArrayStore.open(tmp_path / "copy", writable=True))
        shutil.rmtree(tmp_path / "copy")


# -- repairing -----------------------------------------------------------------------------------------------


def lost_numbers(store: DamagedStore, n_commits: int) -> list[int]:
    """Return the numbers of the lost commits, and assert that all others are correct."""
    is_damaged = damaged_rows(store) | store.lost_rows
    last, n_rows = store.values["number"], store.n_ring_rows
    assert store.values["pos"] == last % n_rows
    lost = [*range(last + 1, n_commits + 1)]
    for number in range(max(n_commits - n_rows + 1, 1), last + 1):
        row = (number - 1) % n_rows
        if is_damaged[row]:
            lost.append(number)
        else:
            assert store.arrays["numbers"][row] == number
            assert store.slots.load(store.arrays["table"][row]).tolist() == [b"%d" % number * 3]
    return sorted(lost)


@pytest.mark.parametrize("end", [ArrayStore.close, crash])
@pytest.mark.slow
def test_a_damaged_byte_is_verified_and_loses_only_its_record(
    end: Callable[[ArrayStore], None], tmp_path: Path
) -> None:
    n_commits = 7  # more than a lap of the ring, and a snapshot
    end(tiny_store(tmp_path, n_commits))
    before, most_lost = contents(tmp_path), 0
    for path in sorted(tmp_path.glob("*.log")):
        for position in range(0, path.stat().st_size, 1 if FACTOR else 11):
            damage(path, position, 1 << position % 8)
            assert any(str(path) in line for line in verify(tmp_path)), (path.name, position)
            damaged = open_damaged(tmp_path, writable=False)
            is_reported = bool(damaged.problems) or bool(damaged_slots(damaged, "table"))
            lost = lost_numbers(damaged, n_commits)
            assert is_reported or not lost, (path.name, position, lost)
            assert len(lost) <= 1, (path.name, position, lost)
            most_lost = max(most_lost, len(lost))
            damaged.log.close()
            damage(path, position, 1 << position % 8)
    assert most_lost == 1
    assert contents(tmp_path) == before, "reading changes nothing"
    assert verify(tmp_path) == []


@pytest.mark.parametrize("seed", range(20 * int(FACTOR)) if FACTOR else range(1, 9))
def test_damage_never_yields_wrong_rows(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    n_commits, n_rows = int(rng.integers(3, 60)), int(rng.integers(2, 24))
    store = tiny_store(tmp_path, 0, n_rows=n_rows)
    for number in range(1, n_commits + 1):
        commit_tiny(store, number)
        chance = rng.random()
        if chance < 0.1:
            store.write_snapshot()
        elif chance < 0.15:
            store.log.begin_segment()
        elif chance < 0.2:
            (crash if rng.random() < 0.5 else ArrayStore.close)(store)
            store = ArrayStore.open(tmp_path, writable=True)
    (crash if rng.random() < 0.5 else ArrayStore.close)(store)
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
        damaged = open_damaged(tmp_path, writable=True)
    except CorruptStorage:
        return  # nothing can be read
    lost = lost_numbers(damaged, n_commits)
    assert damaged.problems or damaged_slots(damaged, "table") or not lost
    damaged.arrays["table"][damaged_rows(damaged)] = 0
    damaged.write_snapshot()
    damaged.close()
    ArrayStore.open(tmp_path).close()


@pytest.mark.parametrize(("n_commits", "n_zeros"), [(13, 0), (3, 3000)])
def test_truncated_snapshot_is_rebuilt_from_other_files(n_commits: int, n_zeros: int, tmp_path: Path) -> None:
    tiny_store(tmp_path, n_commits).close()
    path = newest_segment(tmp_path)
    intact = path.read_bytes()
    for cut in range(HEADER_NBYTES, len(intact), 7):
        path.write_bytes(intact[:cut] + bytes(n_zeros))
        damaged = open_damaged(tmp_path, writable=False)
        assert any(str(path) in line for line in damaged.problems)
        assert lost_numbers(damaged, n_commits) == []
        damaged.close()


def test_repaired_store_accepts_further_commits(tmp_path: Path) -> None:
    crash(tiny_store(tmp_path, 8))
    path = tmp_path / "00000001.log"
    damage(path, path.read_bytes().index(b"555") + 1)
    damage(tmp_path / "00000002.log", 200)
    before = contents(tmp_path)
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=rf"{re.escape(str(tmp_path))}.*repair=True"):
            ArrayStore.open(tmp_path, writable=writable)
    damaged = open_damaged(tmp_path, writable=True)
    assert contents(tmp_path) == before, "nothing is changed yet"
    assert len(damaged.problems) >= 1
    assert lost_numbers(damaged, 8) == [5]
    damaged.arrays["table"][0] = 0
    damaged.write_snapshot()
    for number in range(9, 13):
        commit_tiny(damaged, number)
    damaged.close()
    store = ArrayStore.open(tmp_path)
    assert store.arrays["numbers"].tolist() == [9, 10, 11, 12]
    assert store.slots.load(store.arrays["table"][:, 0]).tolist() == [b"%d" % k * 3 for k in range(9, 13)]
    store.close()
    assert open_damaged(tmp_path, writable=False).problems == []


def test_damaged_snapshot_and_missing_file_lose_only_their_content(tmp_path: Path) -> None:
    store = tiny_store(tmp_path / "store", 8, n_a_snapshot=100)
    store.log.begin_segment()
    commit_tiny(store, 9)
    store.write_snapshot()
    commit_tiny(store, 10)
    crash(store)
    snapshot = tmp_path / "store" / "00000003.log"
    manifest = HEADER_NBYTES + 60
    for damaged_bytes in ([], [manifest]):
        (tmp_path / "store" / "00000002.log").unlink(missing_ok=True)
        for position in damaged_bytes:
            damage(snapshot, position)
        damaged = open_damaged(tmp_path / "store", writable=False)
        assert (bool(damaged.lost_rows.any()), damaged.values["number"]) == (False, 10)
        assert damaged.arrays["numbers"].tolist() == [9, 10, 7, 8]
        assert lost_numbers(damaged, 10) == [9], "its slot is intact, but its row is lost"
        damaged.close()


@pytest.mark.parametrize("kind", ["a missing file", "a zeroed part"])
@pytest.mark.parametrize("n_lost", [1, 4, 5, 13])
def test_rows_overwritten_in_a_lost_part_are_lost(n_lost: int, kind: str, tmp_path: Path) -> None:
    """The part may contain more than a lap of the ring."""
    store = tiny_store(tmp_path, 6, n_a_snapshot=100)
    bounds = []
    for numbers in (range(7, 7 + n_lost), range(7 + n_lost, 9 + n_lost)):
        if kind == "a missing file":
            store.log.begin_segment()
        bounds.append(store.log.last.end)
        for number in numbers:
            commit_tiny(store, number)
    crash(store)
    if kind == "a missing file":
        (tmp_path / "00000002.log").unlink()
    else:
        with open(tmp_path / "00000001.log", "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), bytes(bounds[1] - bounds[0]), bounds[0])
    damaged = open_damaged(tmp_path, writable=False)
    newest = 8 + n_lost
    assert {newest - 1, newest}.isdisjoint(lost_numbers(damaged, newest))
    damaged.close()


def test_files_of_another_buffer_are_ignored(tmp_path: Path) -> None:
    crash(tiny_store(tmp_path / "a", 8))
    crash(tiny_store(tmp_path / "b", 8))
    shutil.copy(tmp_path / "b" / "00000001.log", tmp_path / "a" / "00000001.log")
    damaged = open_damaged(tmp_path / "a", writable=False)
    assert any("belongs to another buffer" in line for line in damaged.problems)
    assert lost_numbers(damaged, 8) == [5]
    damaged.close()


def test_files_of_another_copy_are_ignored(tmp_path: Path) -> None:
    """They have the same numbers and offsets."""
    crash(tiny_store(tmp_path / "a", 3))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name, first in (("a", 4), ("b", 8)):
        store = ArrayStore.open(tmp_path / name, writable=True)
        for number in range(first, first + 2):
            commit_tiny(store, number)
        store.write_snapshot()
        crash(store)
    shutil.copy(tmp_path / "b" / "00000002.log", tmp_path / "a" / "00000002.log")
    snapshot = newest_segment(tmp_path / "a")
    for position in range(HEADER_NBYTES, snapshot.stat().st_size, 11):
        damage(snapshot, position)
        damaged = open_damaged(tmp_path / "a", writable=False)
        assert any(
            "belongs to a copy of this buffer" in line
            for line in (*damaged.problems, *damaged_slots(damaged, "table").values())
        )
        is_lost = damaged_rows(damaged) | damaged.lost_rows
        assert {3, 0} <= {*np.flatnonzero(is_lost).tolist()}, position
        damaged.close()
        damage(snapshot, position)


def test_store_without_readable_metadata_is_rejected(five_commits: tuple[Path, list[int]]) -> None:
    folder, _ = five_commits
    for path in folder.glob("*.log"):
        segment = Segment(path)
        offsets = [record.offset for record in segment.records() if record.kind == MANIFEST]
        segment.close()
        assert len(offsets) == (2 if segment.is_snapshot else 1), "a snapshot contains its manifest twice"
        for offset in offsets:
            damage(path, offset + 20)
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=f"{folder}: no file has readable metadata"):
            open_damaged(folder, writable=writable)
    for path in folder.glob("*.log"):
        path.write_bytes(b"nothing")
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=f"{folder} has no file that can be read"):
            open_damaged(folder, writable=writable)
    assert len(names(folder)) == 2


def test_damaged_codecs_are_dropped(tmp_path: Path) -> None:
    store = create(tmp_path)
    commit_number(store, 1)
    store.commit([], values_of(1), {"": CODECS[0], "other": CODECS[2]})
    address = store.codecs[""]
    crash(store)
    damage(tmp_path / "00000001.log", (address & 0xFFFFFFFF) + 9)
    damaged = open_damaged(tmp_path, writable=True)
    assert damaged.codecs.keys() == {"other"}
    assert damaged_rows(damaged)[0]
    damaged.write_snapshot()
    commit_number(damaged, 1)
    damaged.close()
    store = ArrayStore.open(tmp_path)
    assert assert_consistent(store) == 1
    store.close()


EMPTY, COMMITTED = (MANIFEST, b'{"about": {}, "arrays": {}}'), (COMMIT, b"\2\0\0\0{}")
SNAPSHOTS: list[list[tuple[int, bytes]]] = [  # see also tests/storage/test_metadata_schema.py
    [],
    [COMMITTED],
    [EMPTY],
    [EMPTY, (PATCHES, b"")],
    [EMPTY, (COMMIT, b"")],
    [EMPTY, (COMMIT, b"\2\0\0\0{}patch")],
    [EMPTY, (PATCHES, b"patch"), COMMITTED],
    [(MANIFEST, b""), COMMITTED],
    [(MANIFEST, b'{"about": {}, "arrays": {}, "segments": {"x": "0123456789abcdef"}}'), COMMITTED],
    [(MANIFEST, b'{"about": {}, "arrays": {}, "segments": {"1": "0123"}}'), COMMITTED],
    [(MANIFEST, b'{"about": {}, "arrays": {"a": [[1152921504606846976], "|u1", false]}}'), COMMITTED],
]


@pytest.mark.parametrize("records", SNAPSHOTS)
def test_invalid_snapshot_is_rejected(records: list[tuple[int, bytes]], tmp_path: Path) -> None:
    log = Log.create(tmp_path)
    log.write_snapshot(records)
    log.close()
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=re.escape(str(tmp_path))):
            ArrayStore.open(tmp_path, writable=writable)


@pytest.mark.parametrize("writable", [False, True])
def test_segments_that_do_not_follow_are_not_used(writable: bool, tmp_path: Path) -> None:
    crash(tiny_store(tmp_path / "a", 2))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name in "ab":
        for number in (3, 4):  # each in a segment of its own
            store = ArrayStore.open(tmp_path / name, writable=True)
            commit_tiny(store, number)
            crash(store)
    newest = newest_segment(tmp_path / "b")
    shutil.copy(newest, tmp_path / "a" / newest.name)
    with pytest.raises(CorruptStorage, match=f"{newest.name} does not follow"):
        ArrayStore.open(tmp_path / "a", writable=writable)
    damaged = open_damaged(tmp_path / "a", writable=writable)
    assert any(f"{newest.name} does not follow" in problem for problem in damaged.problems)
    assert damaged.values["number"] == 3
    if writable:
        damaged.write_snapshot()
        commit_tiny(damaged, 4)
    damaged.close()
    if writable:
        assert read_values(tmp_path / "a")["number"] == 4


def test_invalid_commits_with_right_checksums_lose_only_themselves(tmp_path: Path) -> None:
    store = tiny_store(tmp_path, 2)
    store.log.segment_to_write().append(COMMIT, b"no commit")
    commit_tiny(store, 3)
    crash(store)
    with pytest.raises(CorruptStorage):
        ArrayStore.open(tmp_path)
    damaged = open_damaged(tmp_path, writable=False)
    assert len(damaged.problems) == 1
    assert str(newest_segment(tmp_path)) in damaged.problems[0]
    assert damaged.arrays["numbers"][:3].tolist() == [1, 2, 3]
    damaged.close()


def test_invalid_patches_in_a_snapshot_are_reported(tmp_path: Path) -> None:
    store = tiny_store(tmp_path, 2)
    records = [*store._snapshot_records(store.live_segments())]
    store.log.write_snapshot([*records[:-1], (PATCHES, b"no patches"), records[-1]])
    crash(store)
    with pytest.raises(CorruptStorage):
        ArrayStore.open(tmp_path)
    damaged = open_damaged(tmp_path, writable=False)
    assert any(str(newest_segment(tmp_path)) in problem for problem in damaged.problems)
    assert damaged.arrays["numbers"][:2].tolist() == [1, 2]
    damaged.close()
