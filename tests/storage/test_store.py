"""Stores: what was committed is there, whole, whoever reads it and however the process ended; the rest is not."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lines import interrupts
from numpy.typing import NDArray
from programs import run, start

from sb3_compressed.arrays.slots import Slot
from sb3_compressed.codecs import Codec, get_codec
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.errors import CorruptPayload, CorruptStorage, StorageError
from sb3_compressed.storage import log as log_module
from sb3_compressed.storage import segment as segment_module
from sb3_compressed.storage import slots as slots_module
from sb3_compressed.storage import store as store_module
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.store import MANIFEST, ArrayPlan, Change, Store

N_ROWS = 20
ABOUT = {"class": "Example", "number": 5, "list": [1, None, {"a": 0.5}]}
PLANS = {
    "numbers": ArrayPlan((N_ROWS, 3), "<f4"),
    "flags": ArrayPlan((N_ROWS,), "|b1"),
    "table": ArrayPlan((N_ROWS, 2), "<i8", is_table=True),
    "wide": ArrayPlan((2, 150), "<u2"),
    "empty": ArrayPlan((0, 5), "<i4"),
}
CODECS = [Delta(level, bytes([level] * 30)) for level in range(1, 6)]


@pytest.fixture(autouse=True)
def modest_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files be no longer than what is read in no time."""
    monkeypatch.setattr(segment_module, "MIN_GROWTH", 10_000)
    monkeypatch.setattr(Store, "SEGMENT_NBYTES", 100_000)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a segment be full soon."""
    monkeypatch.setattr(Store, "SEGMENT_NBYTES", 4096)


def create(folder: Path, **options: Any) -> Store:
    return Store.create(folder, ABOUT, PLANS, {"pos": 0}, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def contents(folder: Path) -> dict[str, bytes]:
    """Return what is in the segments, without the zeros behind."""
    return {name: (folder / name).read_bytes().rstrip(b"\0") for name in names(folder)}


def newest_segment(folder: Path) -> Path:
    return max(folder.glob("*.log"))


def read_values(folder: Path, **options: Any) -> dict[str, Any]:
    store = Store.open(folder, **options)
    try:
        return store.values
    finally:
        store.close()


def commit_number(store: Store, number: int, nbytes: int = 300) -> None:
    """Commit a state of which all parts tell the same number."""
    row = number % N_ROWS
    store.arrays["numbers"][row] = number
    store.arrays["flags"][...] = number % 2 == 1
    payloads = [number.to_bytes(4, "little") * (nbytes // 8) for _ in range(2)]
    store.arrays["table"][row] = store.slots.write([(CODECS[0], payload) for payload in payloads])
    changes = [("numbers", row, row + 1), ("flags", 0, N_ROWS), ("table", row, row + 1)]
    store.commit(changes, {"pos": row, "number": number}, {"": CODECS[0]})


def hold_that_it_is_whole(store: Store, nbytes: int = 300) -> int:
    """Hold that all parts tell the same number, and return it."""
    number = int(store.values.get("number", 0))
    for old in range(max(number - N_ROWS + 1, 1), number + 1):
        row = old % N_ROWS
        assert store.arrays["numbers"][row].tolist() == [old] * 3
        slots = store.slots.load(store.arrays["table"][row])
        assert [slot[1] for slot in slots] == [old.to_bytes(4, "little") * (nbytes // 8)] * 2
        assert store.slots.gather(store.arrays["table"][row], 1) is not None
    assert store.arrays["flags"].all() == store.arrays["flags"].any() == (number % 2 == 1)
    assert store.values["pos"] == number % N_ROWS
    assert store.about == ABOUT
    if number:
        assert store.slots.reader.codec(store.codecs[""]) == CODECS[0]
    return number


# -- a model -------------------------------------------------------------------------------------------------


class Model:
    """A store, and in memory what should be in it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, np.random.default_rng(seed)
        self.store = create(folder)
        self.follower = Store.open(folder)
        self.arrays = {name: plan.zeros() for name, plan in PLANS.items()}
        self.slots = np.full((N_ROWS, 2), None, dtype=object)
        self.values: dict[str, Any] = {"pos": 0}
        self.codecs: dict[str, Codec] = {}
        self.payloads = [bytes(3), bytes(4)]

    def close(self) -> None:
        self.store.close()
        self.follower.close()

    def random_slot(self) -> Slot:
        """Return a slot that shares a payload with the one before."""
        if self.rng.random() < 0.1:
            return None
        codec = CODECS[self.rng.integers(2)]
        self.payloads = [self.payloads[1], self.rng.bytes(int(self.rng.integers(2, 60)))]
        if self.rng.random() < 0.2:
            return (codec, self.rng.bytes(20), CODECS[2], self.rng.bytes(30))
        return (CODECS[3], *self.payloads)

    def change_arrays(self) -> list[Change]:
        """Change rows of the store's arrays at random, and those of the model."""
        changes: list[Change] = []
        for name, array in self.store.arrays.items():
            first, last = sorted(self.rng.integers(0, len(array) + 1, 2).tolist())
            if self.rng.random() < 0.6:
                continue
            if name == "table":
                last = min(last, first + 2)
                slots = [self.random_slot() for _ in range(2 * (last - first))]
                array[first:last] = self.store.slots.write(slots).reshape(-1, 2)
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
        self.store.commit(changes, self.values, self.codecs)

    def forget(self) -> None:
        """Change arrays and write slots, and end before that is committed."""
        arrays, slots = {name: array.copy() for name, array in self.arrays.items()}, self.slots.copy()
        self.change_arrays()
        self.arrays, self.slots = arrays, slots
        self.reopen()

    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.folder, writable=True)

    def take_turns(self) -> None:
        """Let go of the folder, and take it again."""
        self.store.release()
        self.check(Store.open(self.folder)).close()
        self.store.acquire()

    def flush(self) -> None:
        self.store.flush()

    def start_segment(self) -> None:
        self.store.start_segment()

    def check(self, store: Store) -> Store:
        assert (store.about, store.plans, store.values) == (ABOUT, PLANS, self.values)
        for name, array in self.arrays.items():
            if name != "table":
                assert store.arrays[name].tobytes() == array.tobytes()
                assert (store.arrays[name].shape, store.arrays[name].dtype) == (array.shape, array.dtype)
        addresses = store.arrays["table"].reshape(-1)
        found = store.slots.load(addresses).tolist()
        assert found == self.slots.reshape(-1).tolist()
        stacks = [k for k, slot in enumerate(found) if slot is not None]
        if stacks:
            gathered = store.slots.gather(addresses[stacks], 2)
            assert gathered is not None
            payloads = [part for k in stacks for part in found[k] if isinstance(part, bytes)]
            assert [*gathered.payloads] == payloads
        found_codecs = {name: store.slots.reader.codec(address) for name, address in store.codecs.items()}
        assert found_codecs == self.codecs
        return store

    def check_files(self) -> None:
        """Hold that there are all files that are referred to, and no more."""
        numbers = {int(name[:8]) for name in names(self.folder)}
        last = self.store.log.last.number
        assert self.store.live_segments() <= numbers
        assert max(numbers) == last


@pytest.mark.parametrize("segment_nbytes", [0, 4096, 20_000])
@pytest.mark.parametrize("seed", range(3))
def test_it_holds_what_a_model_holds(
    seed: int, segment_nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "SEGMENT_NBYTES", segment_nbytes)
    model = Model(tmp_path, seed)
    actions = [model.forget, model.reopen, model.take_turns, model.flush, model.start_segment]
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
            model.check(Store.open(tmp_path)).close()
            model.check_files()
    model.store.close()
    model.store = model.check(Store.open(tmp_path, writable=True))
    model.follower.refresh()
    model.check(model.follower).close()
    assert model.store.log.last.number >= (3 if segment_nbytes > 4096 else 10)
    assert len(names(tmp_path)) < 15
    model.close()


# -- making and opening --------------------------------------------------------------------------------------


def test_a_new_store_is_of_zeros(tmp_path: Path) -> None:
    store = create(tmp_path / "new" / "folder")
    for each in (store, Store.open(tmp_path / "new" / "folder")):
        assert (each.about, each.plans, each.values, each.codecs) == (ABOUT, PLANS, {"pos": 0}, {})
        for name, plan in PLANS.items():
            assert (each.arrays[name].shape, each.arrays[name].dtype.str) == (plan.shape, plan.dtype)
            assert not each.arrays[name].any()
        each.close()


def test_a_store_may_be_of_nothing(tmp_path: Path) -> None:
    Store.create(tmp_path, {}, {}, {}).close()
    store = Store.open(tmp_path, writable=True)
    assert (store.about, store.plans, store.values, store.live_segments()) == ({}, {}, {}, set())
    store.commit([], {"value": 1}, {})
    store.close()
    assert read_values(tmp_path) == {"value": 1}


def test_a_store_is_replaced_only_when_asked(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.commit([], {"pos": 7}, {})
    store.close()
    with pytest.raises(StorageError, match="holds a buffer already; pass overwrite=True to begin anew"):
        create(tmp_path)
    with pytest.raises(StorageError, match="holds a buffer already; some advice"):
        create(tmp_path, advice="some advice")
    assert read_values(tmp_path) == {"pos": 7}
    with pytest.raises(ValueError, match="arrays are of numbers"):
        Store.create(tmp_path, {}, {"bad": ArrayPlan((1,), "O")}, {}, overwrite=True)
    assert read_values(tmp_path) == {"pos": 7}
    Store.create(tmp_path, {}, {}, {"other": 1}, overwrite=True).close()
    assert read_values(tmp_path) == {"other": 1}
    assert len(names(tmp_path)) == 1


def test_missing_stores_are_not_made(tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", tmp_path):
        for writable in (False, True):
            with pytest.raises(StorageError, match=r"there is no folder|holds no buffer"):
                Store.open(folder, writable=writable)
    assert not [*tmp_path.iterdir()]


def test_one_may_write_and_any_number_read(tmp_path: Path) -> None:
    store = create(tmp_path)
    with pytest.raises(StorageError, match="is written to"):
        Store.open(tmp_path, writable=True)
    readers = [Store.open(tmp_path) for _ in range(3)]
    commit_number(store, 1)
    for reader in readers:
        assert reader.refresh()
        assert hold_that_it_is_whole(reader) == 1
        for write in (
            lambda reader=reader: reader.commit([], {"pos": 1}, {}),
            lambda reader=reader: reader.slots.write([b"slot"]),
            reader.start_segment,
            reader.flush,
        ):
            with pytest.raises(StorageError, match="is open for reading only"):
                write()
        reader.close()
    store.close()
    assert read_values(tmp_path) == {"pos": 1, "number": 1}


@pytest.mark.parametrize("dtype", ["?", "u1", "<i8", ">f4", "f2"])
def test_plans_are_those_of_arrays(dtype: str) -> None:
    array = np.ones((3, 0, 2), dtype)
    plan = ArrayPlan.of(array, is_table=True)
    assert (plan.zeros().shape, plan.zeros().dtype, plan.is_table) == (array.shape, array.dtype, True)


@pytest.mark.parametrize("plan", [ArrayPlan((1,), "O"), ArrayPlan((1,), "M8[s]"), ArrayPlan((1,), "V4")])
def test_plans_are_of_numbers(plan: ArrayPlan) -> None:
    with pytest.raises(ValueError, match="arrays are of numbers"):
        plan.zeros()


# -- committing ----------------------------------------------------------------------------------------------


def test_what_was_not_committed_is_not_there(tmp_path: Path) -> None:
    store = create(tmp_path)
    commit_number(store, 1)
    store.arrays["numbers"][...] = 9
    store.arrays["table"][3] = store.slots.write([b"slot", b"other"])
    store.slots.writer.place_of_codec(CODECS[1])
    store.close()
    for writable in (False, True):
        store = Store.open(tmp_path, writable=writable)
        assert hold_that_it_is_whole(store) == 1
        assert np.unique(store.arrays["numbers"]).tolist() == [0, 1]
        assert not store.arrays["table"][3].any()
        store.close()


def test_of_arrays_only_the_rows_named_are_committed(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.arrays["numbers"][...] = 1
    store.commit([("numbers", 3, 5), ("numbers", 19, 20), ("flags", 4, 4)], {}, {})
    reader = Store.open(tmp_path)
    assert np.flatnonzero(reader.arrays["numbers"].any(axis=1)).tolist() == [3, 4, 19]
    reader.close()
    store.close()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"value": None}),
        ({"value": 1}, {"value": None}),
        ({"value": None}, {"value": 0}),
        ({"value": "1"}, {"value": 1}),
        ({"value": [1]}, {"value": [1, 2]}),
        ({"value": {"a": 1}}, {"value": {}}),
        ({"value": 1, "other": 2}, {"value": 3}),
    ],
)
def test_values_are_those_committed_last(before: dict[str, Any], after: dict[str, Any], tmp_path: Path) -> None:
    store = Store.create(tmp_path, {}, {}, {})
    store.commit([], before, {})
    store.commit([], after, {})
    store.close()
    assert read_values(tmp_path) == {**before, **after}


def test_a_value_may_be_changed_in_place(tmp_path: Path) -> None:
    store = Store.create(tmp_path, {}, {}, {})
    values: dict[str, Any] = {"list": [1], "dict": {"a": {"b": 1}}}
    store.commit([], values, {})
    values["list"].append(2)
    values["dict"]["a"]["b"] = 2
    store.commit([], values, {})
    store.close()
    assert read_values(tmp_path) == {"list": [1, 2], "dict": {"a": {"b": 2}}}


def test_what_did_not_change_is_not_told_again(tmp_path: Path) -> None:
    store = create(tmp_path)
    values = {"pos": 1, "text": "x" * 1000}
    store.commit([], values, {"": CODECS[0]})
    for pos in range(2, 5):
        end = store.log.last.end
        store.commit([("numbers", pos, pos + 1)], {**values, "pos": pos}, {"": CODECS[0]})
        assert store.log.last.end - end < 100
    store.close()
    assert read_values(tmp_path) == {**values, "pos": 4}


def test_codecs_are_where_the_store_says(tmp_path: Path) -> None:
    store = create(tmp_path)
    for codecs in ({"": CODECS[0]}, {"": CODECS[1], "other": CODECS[0]}, {"": CODECS[1], "other": CODECS[2]}):
        store.commit([], {}, codecs)
        reader = Store.open(tmp_path)
        assert {name: reader.slots.reader.codec(place) for name, place in reader.codecs.items()} == codecs
        reader.close()
    store.close()


KILLED = """
import os, sys
from pathlib import Path
from storage.test_store import Store, commit_number, hold_that_it_is_whole

Store.SEGMENT_NBYTES = 4096
store = Store.open(Path(sys.argv[1]), writable=True)
number = hold_that_it_is_whole(store)
while True:
    number += 1
    commit_number(store, number)
    os.write(1, b"%d\\n" % number)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_process_leaves_what_it_committed(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    create(folder).close()
    number = 0
    for n_commits in (1, 20, 45):
        with start(KILLED, folder) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(n_commits)]
            process.send_signal(signal.SIGKILL)
            told = int([*lines, *process.stdout.readlines()][-1])
        for writable in (False, True):
            store = Store.open(folder, writable=writable)
            number = hold_that_it_is_whole(store)
            assert number in (told, told + 1), "perhaps it was committed and could not be told any more"
            store.close()


def test_what_was_committed_is_there_without_closing(tmp_path: Path, small_segments: None) -> None:
    store = create(tmp_path / "store")
    for number in range(1, 60):
        commit_number(store, number)
        if number % 7 == 0:
            shutil.copytree(tmp_path / "store", tmp_path / "copy")  # what a crash now would leave
            for writable in (False, True):
                copy = Store.open(tmp_path / "copy", writable=writable)
                assert hold_that_it_is_whole(copy) == number
                copy.close()
            shutil.rmtree(tmp_path / "copy")
    store.close()


@pytest.mark.parametrize("what", ["a commit", "a new segment"])
def test_after_an_interrupt_what_is_committed_counts(what: str, tmp_path: Path, small_segments: None) -> None:
    store, number = create(tmp_path / "store"), 0
    while store.log.last.number == 0:
        number += 1
        commit_number(store, number)
    store.close()
    if what == "a commit":
        number = 2
    for interrupt in interrupts(store_module, log_module, slots_module):
        folder = tmp_path / f"{interrupt.n_lines}"
        store = create(folder)
        for before in range(1, number):
            commit_number(store, before)
        assert store.log.last.number == 0
        with interrupt:
            commit_number(store, number)
        commit_number(store, number)
        commit_number(store, number + 1)
        reader = Store.open(folder)
        assert hold_that_it_is_whole(reader) == number + 1, f"interrupted after {interrupt.n_lines} lines"
        reader.close()
        store.close()
    assert interrupt.n_lines > 20


# -- full disks ----------------------------------------------------------------------------------------------

FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from storage.test_store import Store, commit_number, create, hold_that_it_is_whole

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
UNLIMITED = resource.RLIM_INFINITY
Store.SEGMENT_NBYTES = 6000
folder = Path(sys.argv[1])
create(folder).close()
store = Store.open(folder, writable=True)
number = refused = 0

def check():
    reader = Store.open(folder)
    found = hold_that_it_is_whole(reader)
    reader.close()
    return found

for free in [*range(0, 600, 37), *range(600, 3000, 301)] * 3:
    number += 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (store.log.last.end + free, UNLIMITED))
    try:
        commit_number(store, number)
    except OSError:
        refused += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
        if check() == number:
            print(f"commit {number} was refused and is there")
        commit_number(store, number)
    resource.setrlimit(resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
    assert check() == number
    if not number % 10:
        store.close()
        store = Store.open(folder, writable=True)
print(refused > 10, store.log.last.number > 2)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the size of files cannot be limited there")
def test_what_a_full_disk_refuses_is_not_committed_and_can_be_later(tmp_path: Path) -> None:
    assert run(FULL_DISK, tmp_path / "store") == "True True\n"


# -- segments ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_segments")
def test_segments_come_and_go(tmp_path: Path) -> None:
    store = create(tmp_path)
    seen: set[str] = set()
    for number in range(1, 300):
        commit_number(store, number)
        seen.update(names(tmp_path))
    assert hold_that_it_is_whole(store) == 299
    assert len(seen) > 20
    assert len(names(tmp_path)) < 8
    store.close()
    store = Store.open(tmp_path, writable=True)
    assert hold_that_it_is_whole(store) == 299
    store.close()


def test_segments_that_a_table_refers_to_are_kept(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.arrays["table"][0, 0] = store.slots.write([b"the first"])[0]
    store.commit([("table", 0, 1)], {}, {})
    for number in range(1, 6):
        store.start_segment()
        store.arrays["table"][1, 0] = store.slots.write([b"%d" % number * 3])[0]
        store.commit([("table", 1, 2)], {}, {})
        assert store.live_segments() == {0, number}
    store.start_segment()
    assert names(tmp_path) == ["00000000.log", "00000005.log", "00000006.log"]
    assert store.slots.load(store.arrays["table"][:2, 0]).tolist() == [b"the first", b"555"]
    store.arrays["table"][0, 0] = 0
    store.commit([("table", 0, 1)], {}, {})
    store.start_segment()
    assert names(tmp_path) == ["00000005.log", "00000007.log"]
    store.close()


def test_segments_that_codecs_in_use_are_in_are_kept(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.commit([], {}, {"a": CODECS[0], "b": CODECS[1]})
    store.start_segment()
    assert store.live_segments() == {0}
    assert names(tmp_path) == ["00000000.log", "00000001.log"]
    store.commit([], {}, {"a": CODECS[0], "b": CODECS[1]})
    store.start_segment()
    assert names(tmp_path) == ["00000001.log", "00000002.log"], "they were written to the new one"
    store.close()
    reader = Store.open(tmp_path)
    assert {name: reader.slots.reader.codec(reader.codecs[name]) for name in "ab"} == {"a": CODECS[0], "b": CODECS[1]}
    reader.close()


@pytest.mark.usefixtures("small_segments")
def test_a_change_may_be_larger_than_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_SEGMENT_NBYTES", 20_000)
    store = create(tmp_path)
    commit_number(store, 1)
    slots = [(CODECS[0], np.random.default_rng(k).bytes(1500)) for k in range(2 * N_ROWS)]
    for row in range(N_ROWS):
        store.make_room()
        store.arrays["table"][row] = store.slots.write(slots[2 * row : 2 * row + 2])
        for writable_copy in (False, True)[: row % 4]:
            shutil.copytree(tmp_path, tmp_path.with_name("copy"))
            copy = Store.open(tmp_path.with_name("copy"), writable=writable_copy)
            assert hold_that_it_is_whole(copy) == 1, "the change is not committed yet"
            copy.close()
            shutil.rmtree(tmp_path.with_name("copy"))
    assert len(names(tmp_path)) >= 3
    store.arrays["wide"][...] = 5
    store.commit([("table", 0, N_ROWS), ("wide", 0, 2)], {"pos": 7}, {"": CODECS[1]})
    store.start_segment()
    store.close()
    store = Store.open(tmp_path)
    assert store.slots.load(store.arrays["table"].reshape(-1)).tolist() == slots
    assert (store.arrays["wide"] == 5).all()
    assert (store.values["pos"], store.slots.reader.codec(store.codecs[""])) == (7, CODECS[1])
    store.close()


# -- becoming another ----------------------------------------------------------------------------------------


def resized(store: Store) -> tuple[dict[str, ArrayPlan], dict[str, Any]]:
    """Return plans and arrays of half the rows, in another order."""
    arrays = {name: array[:10].copy() for name, array in reversed(store.arrays.items()) if name != "empty"}
    return {name: ArrayPlan.of(array, is_table=name == "table") for name, array in arrays.items()}, arrays


def test_a_store_becomes_another_at_once(tmp_path: Path) -> None:
    store = create(tmp_path)
    for number in range(1, 10):
        commit_number(store, number)
    expected = store.slots.load(store.arrays["table"][:10].reshape(-1)).tolist()
    plans, arrays = resized(store)
    store.become({"class": "Other"}, plans, arrays, {"other": 1})
    assert store.arrays["numbers"] is arrays["numbers"]
    for codec in (CODECS[0], CODECS[1]):
        reader = Store.open(tmp_path)
        assert (reader.about, reader.plans) == ({"class": "Other"}, plans)
        for name in plans:
            assert reader.arrays[name].tobytes() == arrays[name].tobytes()
        assert reader.slots.load(reader.arrays["table"].reshape(-1)).tolist() == expected
        assert reader.slots.reader.codec(reader.codecs[""]) == codec
        reader.close()
        store.arrays["numbers"][2] = 99
        store.commit([("numbers", 2, 3)], {"other": 2}, {"": CODECS[1]})
    assert read_values(tmp_path) == {"other": 2}
    store.close()


def test_a_store_becomes_another_with_its_codecs(tmp_path: Path) -> None:
    store = create(tmp_path)
    commit_number(store, 1)
    store.become(ABOUT, PLANS, store.arrays, {"pos": 1, "number": 1}, {"": CODECS[0], "other": CODECS[3]})
    store.close()
    for writable in (False, True):
        store = Store.open(tmp_path, writable=writable)
        assert hold_that_it_is_whole(store) == 1
        assert store.slots.reader.codec(store.codecs["other"]) == CODECS[3]
        store.close()


def test_who_follows_is_told_that_it_is_another(tmp_path: Path) -> None:
    store = create(tmp_path)
    commit_number(store, 1)
    reader = Store.open(tmp_path)
    plans, arrays = resized(store)
    store.become(ABOUT, plans, arrays, {"other": 1})
    for number in range(3):
        with pytest.raises(StorageError, match="holds another buffer by now; open it anew"):
            reader.refresh()
        assert hold_that_it_is_whole(reader) == 1
        store.arrays["numbers"][2] = number
        store.commit([("numbers", 2, 3)], {"other": number}, {})
    reader.close()
    store.close()


def test_who_follows_is_told_that_it_was_replaced(tmp_path: Path) -> None:
    store = create(tmp_path)
    commit_number(store, 1)
    reader = Store.open(tmp_path)
    store.close()
    Store.create(tmp_path, {}, {}, {}, overwrite=True).close()
    for _ in range(2):
        with pytest.raises(StorageError):
            reader.refresh()
        assert hold_that_it_is_whole(reader) == 1
    reader.close()


# -- following -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_segments")
def test_who_follows_sees_each_commit(tmp_path: Path) -> None:
    store = create(tmp_path)
    readers = [Store.open(tmp_path) for _ in range(3)]
    assert not any(reader.refresh() for reader in readers)
    for number in range(1, 120):
        commit_number(store, number)
        for often, reader in zip((1, 4, 50), readers, strict=True):
            if number % often == 0:
                assert hold_that_it_is_whole(reader) == number - often, "though some of it was deleted"
                assert reader.refresh()
                assert hold_that_it_is_whole(reader) == number
                assert not reader.refresh()
    assert store.log.last.number > 5
    store.close()
    for reader in readers:
        reader.refresh()
        assert hold_that_it_is_whole(reader) == 119
        assert len(reader.log.segments) < 10, "those that were deleted are let go of"
        reader.close()


def test_who_follows_has_arrays_that_stay_the_same_objects(tmp_path: Path) -> None:
    store = create(tmp_path)
    reader = Store.open(tmp_path)
    arrays = dict(reader.arrays)
    for number in range(1, 4):
        commit_number(store, number)
        store.start_segment()
        reader.refresh()
        assert all(reader.arrays[name] is array for name, array in arrays.items())
    assert hold_that_it_is_whole(reader) == 3
    reader.close()
    store.close()


@pytest.mark.parametrize("nbytes", [300, 5_000_000], ids=["small slots", "slots larger than there was room for"])
def test_who_looks_rarely_sees_all_that_was_written_to_the_segment_before(nbytes: int, tmp_path: Path) -> None:
    store = create(tmp_path)
    store.close()  # which makes the file as short as can be
    reader = Store.open(tmp_path)
    store = Store.open(tmp_path, writable=True)
    for number in range(1, 6):
        commit_number(store, number, nbytes)
    store.start_segment()
    reader.refresh()
    assert hold_that_it_is_whole(reader, nbytes) == 5
    reader.close()
    store.close()


FOLLOWED = """
import sys
from pathlib import Path
from storage.test_store import Store, commit_number

Store.SEGMENT_NBYTES = 4096
store = Store.open(Path(sys.argv[1]), writable=True)
for number in range(1, 1 + int(sys.argv[2])):
    commit_number(store, number)
store.close()
"""


def test_who_follows_another_process_sees_whole_states(tmp_path: Path) -> None:
    """And who opens the folder while segments come and go."""
    folder, n_commits = tmp_path / "store", 600
    create(folder).close()
    follower, found = Store.open(folder), [0]
    with start(FOLLOWED, folder, n_commits) as process:
        while process.poll() is None:
            if follower.refresh():
                found.append(hold_that_it_is_whole(follower))
            store = Store.open(folder)
            found.append(hold_that_it_is_whole(store))
            store.close()
    assert process.returncode == 0
    follower.refresh()
    assert hold_that_it_is_whole(follower) == n_commits
    assert follower.log.last.number > 20
    follower.close()
    assert found == sorted(found)
    assert len({*found}) > 5


# -- taking turns --------------------------------------------------------------------------------------------


def test_stores_take_turns_only_if_nothing_changed(tmp_path: Path) -> None:
    store = create(tmp_path)
    commit_number(store, 1)
    store.release()
    assert hold_that_it_is_whole(store) == 1
    other = Store.open(tmp_path, writable=True)
    assert hold_that_it_is_whole(other) == 1
    with pytest.raises(StorageError, match="is written to by another buffer of this process"):
        store.acquire()
    other.close()
    store.acquire()
    commit_number(store, 2)
    store.release()
    other = Store.open(tmp_path, writable=True)
    commit_number(other, 3)
    other.close()
    with pytest.raises(StorageError, match="was written to by another buffer meanwhile"):
        store.acquire()
    store.close()
    assert read_values(tmp_path)["number"] == 3


def test_a_closed_store_can_be_read(tmp_path: Path) -> None:
    store = create(tmp_path)
    for number in range(1, 5):
        commit_number(store, number)
        store.start_segment()
    store.close()
    assert hold_that_it_is_whole(store) == 4
    with pytest.raises(StorageError):
        commit_number(store, 5)
    assert hold_that_it_is_whole(Store.open(tmp_path)) == 4


# -- copies --------------------------------------------------------------------------------------------------


def test_a_copy_holds_the_same_and_goes_its_own_way(tmp_path: Path) -> None:
    store = create(tmp_path / "store")
    for number in range(1, 15):
        commit_number(store, number)
        if number % 4 == 0:
            store.start_segment()
    store.copy_to(tmp_path / "copy")
    copy = Store.open(tmp_path / "copy", writable=True)
    assert hold_that_it_is_whole(copy) == hold_that_it_is_whole(store) == 14
    for number in range(15, 40):
        commit_number(store, number, 400 if number > 30 else 300)
        if number < 25:
            commit_number(copy, number)
    for each, expected in ((store, 39), (copy, 24)):
        each.start_segment()
        each.close()
        folder = each.log.folder
        each = Store.open(folder, writable=True)
        assert each.values["number"] == expected
        assert each.slots.load(each.arrays["table"].reshape(-1)).all()
        each.close()
    with pytest.raises(StorageError, match="holds a buffer already"):
        Store.open(tmp_path / "store").copy_to(tmp_path / "copy")


def test_repairing_a_copy_leaves_the_original_alone(tmp_path: Path) -> None:
    """Though they share files."""
    store = create(tmp_path / "store")
    commit_number(store, 1)
    store.copy_to(tmp_path / "copy")
    for number in range(2, 5):
        commit_number(store, number)
    damage(newest_segment(tmp_path / "copy"), 3)
    before = contents(tmp_path / "store")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        copy = Store.open(tmp_path / "copy", writable=True, repair=True)
    commit_number(copy, copy.values["number"] + 1)
    copy.close()
    assert contents(tmp_path / "store") == before
    commit_number(store, 5)
    store.close()
    store = Store.open(tmp_path / "store")
    assert hold_that_it_is_whole(store) == 5
    store.close()


# -- damage --------------------------------------------------------------------------------------------------


def damage(path: Path, position: int, mask: int = 8) -> None:
    """Flip a bit of a file."""
    with open(path, "r+b", buffering=0) as file:
        [byte] = os.pread(file.fileno(), 1, position)
        os.pwrite(file.fileno(), bytes([byte ^ mask]), position)


@pytest.fixture
def five_commits(tmp_path: Path) -> tuple[Path, list[int]]:
    """Return a folder, and where the snapshot and each of its commits end."""
    store = create(tmp_path / "store")
    ends = [store.log.last.end]
    for number in range(1, 6):
        commit_number(store, number)
        ends.append(store.log.last.end)
    store.close()
    assert newest_segment(tmp_path / "store").stat().st_size == ends[-1]
    return tmp_path / "store", ends


@pytest.mark.parametrize("writable", [False, True])
def test_every_damaged_byte_is_told_and_left_alone(writable: bool, five_commits: tuple[Path, list[int]]) -> None:
    folder, ends = five_commits
    path = newest_segment(folder)
    whole = path.read_bytes()
    for position in range(ends[-1]):
        damage(path, position, 1 << position % 8)
        with pytest.raises(CorruptStorage, match=rf"{re.escape(str(path))}.*repair=True"):
            Store.open(folder, writable=writable)
        assert path.stat().st_size == len(whole), "what is damaged is not given up unasked"
        damage(path, position, 1 << position % 8)
    assert path.read_bytes() == whole
    store = Store.open(folder, writable=writable)
    assert hold_that_it_is_whole(store) == 5
    store.close()


@pytest.mark.parametrize("writable", [False, True])
def test_a_repair_goes_back_to_the_commit_before(writable: bool, five_commits: tuple[Path, list[int]]) -> None:
    folder, ends = five_commits
    path = newest_segment(folder)
    whole = path.read_bytes()
    for position in range(0, ends[-1], 11):
        damage(path, position, 1 << position % 8)
        expected = max((k for k, end in enumerate(ends) if end <= position), default=-1)
        if expected < 0:
            with pytest.raises(CorruptStorage, match=re.escape(str(path))):
                Store.open(folder, writable=writable, repair=True)
        else:
            with pytest.warns(UserWarning, match=rf"{re.escape(str(path))}.* is given up"):
                store = Store.open(folder, writable=writable, repair=True)
            assert hold_that_it_is_whole(store) == expected
            if writable:
                commit_number(store, expected + 1)
                store.close()
                store = Store.open(folder)
                assert hold_that_it_is_whole(store) == expected + 1
            store.close()
        if not writable:
            damage(path, position, 1 << position % 8)
            assert path.read_bytes() == whole, "a reader changes nothing"
        with open(path, "r+b") as file:
            file.write(whole)
            file.truncate()


def test_who_follows_is_told_what_a_repair_went_back_to(tmp_path: Path) -> None:
    """And can read until then what it had, though that was given up."""
    store = create(tmp_path)
    commit_number(store, 1)
    store.flush()
    end = store.log.last.end
    for number in range(2, 6):
        commit_number(store, number)
    follower = Store.open(tmp_path)
    assert hold_that_it_is_whole(follower) == 5
    store.close()
    damage(newest_segment(tmp_path), end + 4)
    with pytest.warns(UserWarning, match="is given up"):
        repaired = Store.open(tmp_path, writable=True, repair=True)
    slots = follower.slots.load(follower.arrays["table"][5])
    assert [slot[1] for slot in slots] == [(5).to_bytes(4, "little") * 37] * 2
    assert follower.refresh()
    assert hold_that_it_is_whole(follower) == 1
    commit_number(repaired, 2)
    assert follower.refresh()
    assert hold_that_it_is_whole(follower) == 2
    assert not follower.refresh()
    repaired.close()
    follower.close()


def test_who_follows_a_repaired_store_forgets_codecs_that_were_given_up(tmp_path: Path) -> None:
    """Another one may be in the same place."""
    given_up, other = get_codec("zstd-5"), get_codec("zstd-6")
    store = create(tmp_path)
    end = store.log.last.end
    store.commit([], {"pos": 1}, {"": given_up})
    follower = Store.open(tmp_path)
    place = follower.codecs[""]
    assert follower.slots.reader.codec(place) == given_up
    store.close()
    damage(newest_segment(tmp_path), end + 4)
    with pytest.warns(UserWarning, match="is given up"):
        store = Store.open(tmp_path, writable=True, repair=True)
    store.commit([], {"pos": 1}, {"": other})
    assert follower.refresh()
    assert follower.codecs == {"": place}
    assert follower.slots.reader.codec(place) == other
    store.close()
    follower.close()


def test_nothing_is_repaired_where_nothing_is_damaged(five_commits: tuple[Path, list[int]]) -> None:
    folder, _ = five_commits
    before = contents(folder)
    for writable in (False, True):
        store = Store.open(folder, writable=writable, repair=True)  # a warning would fail this test
        assert hold_that_it_is_whole(store) == 5
        store.close()
        assert contents(folder) == before


def test_a_repair_goes_back_to_the_segment_before(tmp_path: Path) -> None:
    store = create(tmp_path)
    for number in range(1, 10):
        commit_number(store, number)
        if number in (3, 6):
            store.start_segment()
    store.close()
    damage(tmp_path / "00000002.log", 40)
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=r"00000002\.log is damaged.*repair=True"):
            Store.open(tmp_path, writable=writable)
        with pytest.warns(UserWarning, match=r"00000002\.log is damaged.* given up"):
            store = Store.open(tmp_path, writable=writable, repair=True)
        assert hold_that_it_is_whole(store) == 6
        store.close()
    store = Store.open(tmp_path, writable=True)
    for number in range(7, 12):
        commit_number(store, number)
    store.start_segment()
    store.close()
    store = Store.open(tmp_path)
    assert hold_that_it_is_whole(store) == 11
    store.close()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_segment_that_is_missing_is_told(number: int, tmp_path: Path) -> None:
    store = create(tmp_path)
    for step in range(1, 9):
        commit_number(store, step)
        if step in (3, 6):
            store.start_segment()
    store.close()
    (tmp_path / f"{number:08}.log").unlink()
    with pytest.raises((CorruptStorage, CorruptPayload), match=rf"{number:08}\.log|after .*00000001\.log is missing"):
        hold_that_it_is_whole(Store.open(tmp_path))


def test_a_cut_at_any_byte_leaves_the_commit_before(five_commits: tuple[Path, list[int]]) -> None:
    """As a process does that is killed; a shorter file, or one with zeros behind."""
    folder, ends = five_commits
    path = newest_segment(folder)
    whole = path.read_bytes()
    for cut in range(ends[0], ends[-1], 23):
        for n_zeros in (0, 3000):
            with open(path, "r+b") as file:
                file.write(whole[:cut] + bytes(n_zeros))
                file.truncate()
            expected = max(k for k, end in enumerate(ends) if end <= cut)
            store = Store.open(folder)
            assert hold_that_it_is_whole(store) == expected
            store.close()
            store = Store.open(folder, writable=True)
            assert hold_that_it_is_whole(store) == expected
            commit_number(store, expected + 1)
            store.close()
            store = Store.open(folder)
            assert hold_that_it_is_whole(store) == expected + 1
            store.close()


MANIFESTS: list[bytes] = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff",
    b"{}",
    b'{"about": {}}',
    b'{"arrays": {}}',
    b'{"about": 5, "arrays": {}}',
    b'{"about": {}, "arrays": []}',
    b'{"about": {}, "arrays": {"a": []}}',
    b'{"about": {}, "arrays": {"a": [[1], "<f4"]}}',
    b'{"about": {}, "arrays": {"a": [5, "<f4", false]}}',
    b'{"about": {}, "arrays": {"a": [[], "<f4", false]}}',
    b'{"about": {}, "arrays": {"a": [["x"], "<f4", false]}}',
    b'{"about": {}, "arrays": {"a": [[0.5], "<f4", false]}}',
    b'{"about": {}, "arrays": {"a": [[Infinity], "<f4", false]}}',
    b'{"about": {}, "arrays": {"a": [[-1], "<f4", false]}}',
    b'{"about": {}, "arrays": {"a": [[1], "O", false]}}',
    b'{"about": {}, "arrays": {"a": [[1], "no dtype", false]}}',
    b'{"about": {}, "arrays": {"a": [[1], "u1,(", false]}}',
    b'{"about": {}, "arrays": {"a": [[1], 5, false]}}',
    b'{"about": {}, "arrays": {"a": [[1152921504606846976], "|u1", false]}}',
    b'{"about": {}, "arrays": {"a": [[1000000000000000000000000000000], "|u1", false]}}',
]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest.decode(errors="replace")[-40:])
def test_a_segment_that_says_nonsense_of_itself_is_refused(manifest: bytes, tmp_path: Path) -> None:
    log = Log.create(tmp_path)
    log.start_segment([(MANIFEST, manifest), (5, b"\2\0\0\0{}")], 0)
    log.close()
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=re.escape(str(tmp_path / "00000000.log"))):
            Store.open(tmp_path, writable=writable)


@pytest.mark.parametrize(
    "records",
    [
        [],
        [(5, b"\2\0\0\0{}")],
        [(MANIFEST, b'{"about": {}, "arrays": {}}')],
        [(MANIFEST, b'{"about": {}, "arrays": {}}'), (4, b"")],
        [(MANIFEST, b'{"about": {}, "arrays": {}}'), (5, b"")],
        [(MANIFEST, b'{"about": {}, "arrays": {}}'), (5, b"\2\0\0\0{}patch")],
        [(MANIFEST, b'{"about": {}, "arrays": {}}'), (4, b"patch"), (5, b"\2\0\0\0{}")],
    ],
)
def test_a_segment_without_a_whole_snapshot_is_refused(records: list[tuple[int, bytes]], tmp_path: Path) -> None:
    log = Log.create(tmp_path)
    log.start_segment(records, 0)
    log.close()
    for writable in (False, True):
        with pytest.raises(CorruptStorage):
            Store.open(tmp_path, writable=writable)


def test_all_sums_are_looked_at_before_a_slot_is_used(tmp_path: Path) -> None:
    store = create(tmp_path)
    for number in range(1, 6):
        commit_number(store, number)
    addresses: NDArray[np.int64] = store.arrays["table"][3]
    damage(tmp_path / "00000000.log", int(addresses[1] & 0xFFFFFFFF) + 8)
    for read in (lambda: store.slots.load(addresses), lambda: store.slots.gather(addresses, 1)):
        with pytest.raises(CorruptPayload, match=r"00000000\.log, the slot at byte \d+, is damaged") as caught:
            read()
        assert caught.value.index == 1
    store.close()
