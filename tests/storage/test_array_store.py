"""ArrayStore: commits, snapshots, segments and sizes; a store is opened in the state of its last commit."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slot_objects import Slot, load_slots, write_slots

from sb3_compressed.codecs import Codec
from sb3_compressed.errors import StorageError
from sb3_compressed.storage import log as log_module
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.commit_writer import RING_ROWS, Change, CommitWriter, copy_committed
from sb3_compressed.storage.files import UNFINISHED, link_or_copy
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.log_files import segment_path
from sb3_compressed.storage.manifest import ArraySpec
from storage.folders import names
from storage.stores import (
    CODECS,
    METADATA,
    N_ROWS,
    SPECS,
    assert_consistent,
    commit_number,
    create,
    open_to_write,
    read_values,
    resized,
    set_segment_nbytes,
)

pytestmark = pytest.mark.usefixtures("small_files")


# -- a model -------------------------------------------------------------------------------------------------


class Model:
    """A store, and its expected content in memory."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, np.random.default_rng(seed)
        self.writer = create(folder)
        self.follower = ArrayStore.open(folder)
        self.arrays = {name: spec.zeros() for name, spec in SPECS.items()}
        self.slots = np.full((N_ROWS, 2), None, dtype=object)
        self.values: dict[str, Any] = {"pos": 0}
        self.codecs: dict[str, Codec] = {}
        self.payloads = [bytes(3), bytes(4)]

    @property
    def store(self) -> ArrayStore:
        return self.writer.store

    def close(self) -> None:
        self.writer.close()
        self.follower.close()

    def random_slot(self) -> Slot:
        """Return a slot that shares a payload with the previous one."""
        if self.rng.random() < 0.1:
            return None
        codec = CODECS[self.rng.integers(2)]
        self.payloads = [self.payloads[1], self.rng.bytes(int(self.rng.integers(2, 60)))]
        if self.rng.random() < 0.2:
            return (codec, self.rng.bytes(20), CODECS[2], self.rng.bytes(30))
        return (CODECS[3], *self.payloads)

    def change_arrays(self) -> list[Change]:
        """Change random rows of the arrays of the store and of the model."""
        changes: list[Change] = []
        for name, array in self.store.arrays.items():
            first, last = sorted(self.rng.integers(0, len(array) + 1, 2).tolist())
            if self.rng.random() < 0.6:
                continue
            if name == "table":
                last = min(last, first + 2)
                slots = [self.random_slot() for _ in range(2 * (last - first))]
                array[first:last] = write_slots(self.store.log, slots).reshape(-1, 2)
                for k, slot in enumerate(slots):
                    self.slots[first + k // 2, k % 2] = slot
            else:
                shape = array[first:last].shape
                array[first:last] = self.rng.integers(0, 2 if name == "flags" else 60_000, shape)
            self.arrays[name][first:last] = array[first:last]
            changes.append((name, first, last))
        return changes

    def commit(self) -> None:
        changes = self.change_arrays()
        self.values["pos"] = int(self.rng.integers(5))
        self.values[f"value {self.rng.integers(6)}"] = [True, 0.5, "text", [1, None], {"a": 1}][self.rng.integers(5)]
        if self.rng.random() < 0.3:
            self.codecs[str(self.rng.integers(3))] = CODECS[self.rng.integers(len(CODECS))]
        self.writer.commit(changes, self.values, self.codecs)

    def forget(self) -> None:
        """Change arrays and write slots, and crash before they are committed."""
        arrays, slots = {name: array.copy() for name, array in self.arrays.items()}, self.slots.copy()
        self.change_arrays()
        self.arrays, self.slots = arrays, slots
        self.crash()

    def reopen(self) -> None:
        self.writer.close()
        self.writer = open_to_write(self.folder)

    def run_interleaved(self) -> None:
        """Release the folder and acquire it again."""
        self.store.log.close()
        self.check(ArrayStore.open(self.folder)).close()
        self.store.log.acquire(FolderLock(self.folder))

    def flush(self) -> None:
        self.store.log.flush()

    def crash(self) -> None:
        """End without a final snapshot."""
        self.store.log.close()
        self.writer = open_to_write(self.folder)

    def write_snapshot(self) -> None:
        self.writer.write_snapshot()

    def begin_segment(self) -> None:
        """As in the middle of a large change."""
        self.store.log.begin_segment()

    def check(self, store: ArrayStore) -> ArrayStore:
        assert (store.metadata, store.specs, store.values) == (METADATA, SPECS, self.values)
        for name, array in self.arrays.items():
            if name != "table":
                assert store.arrays[name].tobytes() == array.tobytes()
                assert (store.arrays[name].shape, store.arrays[name].dtype) == (array.shape, array.dtype)
        addresses = store.arrays["table"].reshape(-1)
        found = load_slots(store.log, addresses).tolist()
        assert found == self.slots.reshape(-1).tolist()
        stacks = [k for k, slot in enumerate(found) if slot is not None]
        if stacks:
            gathered = store.log.gather(addresses[stacks], 2)
            payloads = [part for k in stacks for part in found[k] if isinstance(part, bytes)]
            assert [*gathered.payloads] == payloads
        found_codecs = {name: store.log.codec(address) for name, address in store.codecs.items()}
        assert found_codecs == self.codecs
        return store

    def check_files(self) -> None:
        """Assert that all referenced files exist, and no newer ones."""
        numbers = {int(name[:8]) for name in names(self.folder)}
        last = self.store.log.last.number
        assert self.store.live_segments() <= numbers
        assert max(numbers) == last


@pytest.mark.parametrize(("segment_nbytes", "seed"), [(0, 0), (4096, 1), (20_000, 2)])
def test_store_matches_an_in_memory_model(
    segment_nbytes: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_segment_nbytes(segment_nbytes, monkeypatch)
    model = Model(tmp_path, seed)
    actions = [model.forget, model.reopen, model.run_interleaved, model.flush, model.crash]
    actions += [model.write_snapshot, model.begin_segment]
    for step in range(200):
        if model.rng.random() < 0.9:
            model.commit()
        else:
            actions[model.rng.integers(len(actions))]()
        if model.rng.random() < 0.3:
            model.follower.refresh()
            model.check(model.follower)
            assert not model.follower.refresh()
        if step % 20 == 0:
            model.check(model.store)
            model.check(ArrayStore.open(tmp_path)).close()
            model.check_files()
    model.reopen()
    model.check(model.store)
    model.follower.refresh()
    model.check(model.follower).close()
    assert model.store.log.last.number >= (3 if segment_nbytes > 4096 else 10)
    assert len(names(tmp_path)) < 25
    model.close()


# -- making and opening --------------------------------------------------------------------------------------


def test_create_replaces_a_store_only_with_overwrite(tmp_path: Path) -> None:
    writer = create(tmp_path)
    writer.commit([], {"pos": 7}, {})
    writer.close()
    with pytest.raises(StorageError, match="overwrite=True"):
        create(tmp_path)
    assert read_values(tmp_path) == {"pos": 7}
    with pytest.raises(ValueError, match="numeric"):
        CommitWriter.create(tmp_path, {}, {"bad": ArraySpec((1,), "O")}, {}, overwrite=True)
    assert read_values(tmp_path) == {"pos": 7}
    CommitWriter.create(tmp_path, {}, {}, {"other": 1}, overwrite=True).close()
    assert read_values(tmp_path) == {"other": 1}
    assert len(names(tmp_path)) == 1


# -- committing ----------------------------------------------------------------------------------------------


def test_only_changed_values_are_written(tmp_path: Path) -> None:
    """Also those that were modified in place."""
    writer = create(tmp_path)
    log = writer.store.log
    values: dict[str, Any] = {"pos": 1, "text": "x" * 1000, "list": [1], "dict": {"a": {"b": 1}}}
    writer.commit([], values, {"": CODECS[0]})
    for pos in range(2, 5):
        end = log.last.end
        values["pos"] = values["dict"]["a"]["b"] = pos
        values["list"].append(pos)
        writer.commit([("numbers", pos, pos + 1)], values, {"": CODECS[0]})
        assert log.last.end - end < 200
    writer.close()
    assert read_values(tmp_path) == {**values, "list": [1, 2, 3, 4], "dict": {"a": {"b": 4}}}


# -- segments ------------------------------------------------------------------------------------------------


def disk_nbytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


@pytest.mark.parametrize(("n_rows", "nbytes"), [(100, 30), (500, 3000)], ids=["vectors", "images"])
def test_size_on_disk_is_bounded_after_many_laps(
    n_rows: int, nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is three times the live data plus 1 MB."""
    monkeypatch.undo()  # default file sizes
    specs = {
        "rewards": ArraySpec((n_rows, 1), "<f4", is_ring=True),
        "table": ArraySpec((n_rows, 1), "<i8", is_table=True, is_ring=True),
    }
    writer, rng, most = CommitWriter.create(tmp_path, {}, specs, {"pos": 0}), np.random.default_rng(0), 0
    store = writer.store
    n_commits = max(4 * n_rows, 20_000 if nbytes < 100 else 0)
    for number in range(n_commits):
        row = number % n_rows
        store.arrays["table"][row] = write_slots(store.log, [rng.bytes(nbytes)])
        writer.commit([(RING_ROWS, row, row + 1)], {"pos": (row + 1) % n_rows}, {})
        if number >= n_rows and number % 37 == 0:
            most = max(most, disk_nbytes(tmp_path))
    writer.close()
    assert max(most, disk_nbytes(tmp_path)) <= 3 * n_rows * nbytes + 1_000_000
    assert store.log.last.number > 2


@pytest.mark.usefixtures("small_segments")
def test_change_may_be_larger_than_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "MAX_SEGMENT_NBYTES", 20_000)
    writer = create(tmp_path)
    commit_number(writer, 1)
    store = writer.store
    slots = [(CODECS[0], np.random.default_rng(k).bytes(1500)) for k in range(2 * N_ROWS)]
    for row in range(N_ROWS):
        store.log.begin_segment_if_full()
        store.arrays["table"][row] = write_slots(store.log, slots[2 * row : 2 * row + 2])
        for writable_copy in (False, True)[: row % 4]:
            folder = shutil.copytree(tmp_path, tmp_path.with_name("copy"))
            copy = ArrayStore.open(folder, lock=FolderLock(folder) if writable_copy else None)
            assert assert_consistent(copy) == 1, "the change is not committed yet"
            copy.close()
            shutil.rmtree(folder)
    assert len(names(tmp_path)) >= 3
    store.arrays["wide"][...] = 5
    writer.commit([("table", 0, N_ROWS), ("wide", 0, 2)], {"pos": 7}, {"": CODECS[1]})
    writer.write_snapshot()
    writer.close()
    store = ArrayStore.open(tmp_path)
    assert load_slots(store.log, store.arrays["table"].reshape(-1)).tolist() == slots
    assert (store.arrays["wide"] == 5).all()
    assert (store.values["pos"], store.log.codec(store.codecs[""])) == (7, CODECS[1])
    store.close()


# -- becoming another ----------------------------------------------------------------------------------------


def test_replacing_the_content_is_atomic(tmp_path: Path) -> None:
    writer = create(tmp_path)
    for number in range(1, 10):
        commit_number(writer, number)
    store = writer.store
    expected = load_slots(store.log, store.arrays["table"][:10].reshape(-1)).tolist()
    specs, arrays = resized(store)
    writer.replace_content({"class": "Other"}, specs, arrays, {"other": 1}, store.read_codecs())
    assert store.arrays["numbers"] is arrays["numbers"]
    for codec in (CODECS[0], CODECS[1]):
        reader = ArrayStore.open(tmp_path)
        assert (reader.metadata, reader.specs) == ({"class": "Other"}, specs)
        for name in specs:
            assert reader.arrays[name].tobytes() == arrays[name].tobytes()
        assert load_slots(reader.log, reader.arrays["table"].reshape(-1)).tolist() == expected
        assert reader.log.codec(reader.codecs[""]) == codec
        reader.close()
        store.arrays["numbers"][2] = 99
        writer.commit([("numbers", 2, 3)], {"other": 2}, {"": CODECS[1]})
    assert read_values(tmp_path) == {"other": 2}
    writer.close()


# -- copies --------------------------------------------------------------------------------------------------


def test_copy_is_equal_and_independent(tmp_path: Path) -> None:
    writer = create(tmp_path / "store")
    for number in range(1, 15):
        commit_number(writer, number)
        if number % 4 == 0:
            writer.write_snapshot()
    copy_committed(writer.store, tmp_path / "copy")
    copy = open_to_write(tmp_path / "copy")
    assert assert_consistent(copy.store) == assert_consistent(writer.store) == 14
    for number in range(15, 40):
        commit_number(writer, number, 400 if number > 30 else 300)
        if number < 25:
            commit_number(copy, number)
    for each, expected in ((writer, 39), (copy, 24)):
        each.write_snapshot()
        each.close()
        folder = each.store.log.folder
        store = ArrayStore.open(folder, lock=FolderLock(folder))
        assert store.values["number"] == expected
        assert load_slots(store.log, store.arrays["table"].reshape(-1)).all()
        store.close()
    with pytest.raises(StorageError, match="already contains a buffer"):
        copy_committed(ArrayStore.open(tmp_path / "store"), tmp_path / "copy")


def link_nothing(source: object, target: object, **options: object) -> None:
    """Do as ``os.link`` on another disk, or on a file system without hard links."""
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_copy_without_hard_links_has_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = create(tmp_path / "store")
    for number in range(1, 15):
        commit_number(writer, number)
    monkeypatch.setattr(os, "link", link_nothing)
    copy_committed(writer.store, tmp_path / "copy")
    commit_number(writer, 15)
    assert read_values(tmp_path / "copy")["number"] == 14
    for path in (tmp_path / "copy").glob("*.log"):
        assert path.stat().st_nlink == 1
    writer.close()


@pytest.mark.skipif(sys.platform == "win32", reason="no link to an open file is deleted there")
def test_a_copy_that_fails_leaves_no_segments_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = create(tmp_path / "store")
    for number in range(1, 15):
        commit_number(writer, number)
        writer.write_snapshot()
    assert len(writer.store.live_segments()) > 1
    n_linked = 0

    def link_one(source: Path, target: Path) -> None:
        nonlocal n_linked
        if n_linked:
            raise OSError(errno.ENOSPC, "No space left on device")
        n_linked += 1
        link_or_copy(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("sb3_compressed.storage.log.link_or_copy", link_one)
        with pytest.raises(OSError, match="No space left"):
            copy_committed(writer.store, tmp_path / "copy")
    assert not [*(tmp_path / "copy").glob("*.log")]
    copy_committed(writer.store, tmp_path / "copy")
    assert read_values(tmp_path / "copy")["number"] == 14
    writer.close()


def test_failure_to_write_the_final_snapshot_loses_nothing(tmp_path: Path) -> None:
    writer = create(tmp_path)
    commit_number(writer, 1)
    unfinished = segment_path(tmp_path, writer.store.log.next_number).with_suffix(f".{UNFINISHED}")
    unfinished.mkdir()  # cannot be replaced by a file
    with pytest.warns(UserWarning, match="snapshot"):
        writer.close()
    unfinished.rmdir()
    assert read_values(tmp_path)["number"] == 1
