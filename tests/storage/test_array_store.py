"""Stores: what was committed is there, whole, whoever reads it and however the process ended; the rest is not."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lines import interrupts
from numpy.typing import NDArray
from programs import run, start

from sb3_compressed.arrays.slots import Slot
from sb3_compressed.codecs import Codec
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.errors import CorruptPayload, CorruptStorage, StorageError
from sb3_compressed.storage import array_store as store_module
from sb3_compressed.storage import log as log_module
from sb3_compressed.storage import log_slot_store as slots_module
from sb3_compressed.storage import segment as segment_module
from sb3_compressed.storage.array_store import MANIFEST, RING_ROWS, ArraySpec, ArrayStore, Change
from sb3_compressed.storage.commit_format import SECTION, section_record
from sb3_compressed.storage.damaged_store import DamagedStore, open_damaged
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.segment import Segment, record_nbytes
from sb3_compressed.storage.verification import damaged_slots

N_ROWS = 20
ABOUT = {"class": "Example", "number": 5, "list": [1, None, {"a": 0.5}]}
PLANS = {
    "numbers": ArraySpec((N_ROWS, 3), "<f4", is_ring=True),
    "flags": ArraySpec((N_ROWS,), "|b1"),
    "table": ArraySpec((N_ROWS, 2), "<i8", is_table=True, is_ring=True),
    "wide": ArraySpec((2, 150), "<u2"),
    "empty": ArraySpec((0, 5), "<i4"),
}
CODECS = [Delta(level, bytes([level] * 30)) for level in range(1, 6)]


@pytest.fixture(autouse=True)
def modest_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files be no longer than what is read in no time."""
    monkeypatch.setattr(segment_module, "MIN_GROWTH", 10_000)
    set_segment_nbytes(100_000, monkeypatch)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a segment be full soon."""
    set_segment_nbytes(4096, monkeypatch)


def set_segment_nbytes(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEGMENT_NBYTES", "MIN_SEGMENT_NBYTES"):
        monkeypatch.setattr(ArrayStore, name, nbytes)


def create(folder: Path, **options: Any) -> ArrayStore:
    return ArrayStore.create(folder, ABOUT, PLANS, {"pos": 0}, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def contents(folder: Path) -> dict[str, bytes]:
    """Return what is in the segments, without the zeros behind."""
    return {name: (folder / name).read_bytes().rstrip(b"\0") for name in names(folder)}


def newest_segment(folder: Path) -> Path:
    return max(folder.glob("*.log"))


def crash(store: ArrayStore) -> None:
    """Leave what a process leaves that ends without closing the store."""
    store.log.close()


def read_values(folder: Path, **options: Any) -> dict[str, Any]:
    store = ArrayStore.open(folder, **options)
    try:
        return store.values
    finally:
        store.close()


def commit_number(store: ArrayStore, number: int, nbytes: int = 300) -> None:
    """Commit a state of which all parts tell the same number; the first one is 1."""
    row = (number - 1) % N_ROWS
    store.arrays["numbers"][row] = number
    store.arrays["flags"][...] = number % 2 == 1
    payloads = [number.to_bytes(4, "little") * (nbytes // 8) for _ in range(2)]
    store.arrays["table"][row] = store.slots.write([(CODECS[0], payload) for payload in payloads])
    store.commit([(RING_ROWS, row, row + 1), ("flags", 0, N_ROWS)], values_of(number), {"": CODECS[0]})


def values_of(number: int) -> dict[str, Any]:
    return {"pos": number % N_ROWS, "number": number}


def hold_that_it_is_whole(store: ArrayStore, nbytes: int = 300) -> int:
    """Hold that all parts tell the same number, and return it."""
    number = int(store.values.get("number", 0))
    for old in range(max(number - N_ROWS + 1, 1), number + 1):
        row = (old - 1) % N_ROWS
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
        self.follower = ArrayStore.open(folder)
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
        self.crash()

    def reopen(self) -> None:
        self.store.close()
        self.store = ArrayStore.open(self.folder, writable=True)

    def run_interleaved(self) -> None:
        """Let go of the folder, and take it again."""
        self.store.release()
        self.check(ArrayStore.open(self.folder)).close()
        self.store.acquire()

    def flush(self) -> None:
        self.store.flush()

    def crash(self) -> None:
        """End without what closing does."""
        self.store.log.close()
        self.store = ArrayStore.open(self.folder, writable=True)

    def write_snapshot(self) -> None:
        self.store.write_snapshot()

    def begin_segment(self) -> None:
        """As in the middle of a large change."""
        self.store.log.begin_segment()

    def check(self, store: ArrayStore) -> ArrayStore:
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
    model.store.close()
    model.store = model.check(ArrayStore.open(tmp_path, writable=True))
    model.follower.refresh()
    model.check(model.follower).close()
    assert model.store.log.last.number >= (3 if segment_nbytes > 4096 else 10)
    assert len(names(tmp_path)) < 25
    model.close()


# -- making and opening --------------------------------------------------------------------------------------


def test_a_new_store_is_of_zeros(tmp_path: Path) -> None:
    store = create(tmp_path / "new" / "folder")
    for each in (store, ArrayStore.open(tmp_path / "new" / "folder")):
        assert (each.about, each.plans, each.values, each.codecs) == (ABOUT, PLANS, {"pos": 0}, {})
        for name, plan in PLANS.items():
            assert (each.arrays[name].shape, each.arrays[name].dtype.str) == (plan.shape, plan.dtype)
            assert not each.arrays[name].any()
        each.close()


def test_a_store_may_be_of_nothing(tmp_path: Path) -> None:
    ArrayStore.create(tmp_path, {}, {}, {}).close()
    store = ArrayStore.open(tmp_path, writable=True)
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
        ArrayStore.create(tmp_path, {}, {"bad": ArraySpec((1,), "O")}, {}, overwrite=True)
    assert read_values(tmp_path) == {"pos": 7}
    ArrayStore.create(tmp_path, {}, {}, {"other": 1}, overwrite=True).close()
    assert read_values(tmp_path) == {"other": 1}
    assert len(names(tmp_path)) == 1


def test_missing_stores_are_not_made(tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", tmp_path):
        for writable in (False, True):
            with pytest.raises(StorageError, match=r"there is no folder|holds no buffer"):
                ArrayStore.open(folder, writable=writable)
    assert not [*tmp_path.iterdir()]


def test_one_may_write_and_any_number_read(tmp_path: Path) -> None:
    store = create(tmp_path)
    with pytest.raises(StorageError, match="is written to"):
        ArrayStore.open(tmp_path, writable=True)
    readers = [ArrayStore.open(tmp_path) for _ in range(3)]
    commit_number(store, 1)
    for reader in readers:
        assert reader.refresh()
        assert hold_that_it_is_whole(reader) == 1
        for write in (
            lambda reader=reader: reader.commit([], {"pos": 1}, {}),
            lambda reader=reader: reader.slots.write([b"slot"]),
            reader.write_snapshot,
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
    plan = ArraySpec.of(array, is_table=True)
    assert (plan.zeros().shape, plan.zeros().dtype, plan.is_table) == (array.shape, array.dtype, True)


@pytest.mark.parametrize("plan", [ArraySpec((1,), "O"), ArraySpec((1,), "M8[s]"), ArraySpec((1,), "V4")])
def test_plans_are_of_numbers(plan: ArraySpec) -> None:
    with pytest.raises(ValueError, match="arrays are of numbers"):
        plan.zeros()


# -- committing ----------------------------------------------------------------------------------------------


def test_what_was_not_committed_is_not_there(tmp_path: Path) -> None:
    store = create(tmp_path)
    commit_number(store, 1)
    store.arrays["numbers"][...] = 9
    store.arrays["table"][3] = store.slots.write([b"slot", b"other"])
    store.slots.writer.place_of_codec(CODECS[1])
    crash(store)
    for writable in (False, True):
        store = ArrayStore.open(tmp_path, writable=writable)
        assert hold_that_it_is_whole(store) == 1
        assert np.unique(store.arrays["numbers"]).tolist() == [0, 1]
        assert not store.arrays["table"][3].any()
        store.close()


def test_of_arrays_only_the_rows_named_are_committed(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.arrays["numbers"][...] = 1
    store.commit([("numbers", 3, 5), ("numbers", 19, 20), ("flags", 4, 4)], {}, {})
    reader = ArrayStore.open(tmp_path)
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
    store = ArrayStore.create(tmp_path, {}, {}, {})
    store.commit([], before, {})
    store.commit([], after, {})
    store.close()
    assert read_values(tmp_path) == {**before, **after}


def test_a_value_may_be_changed_in_place(tmp_path: Path) -> None:
    store = ArrayStore.create(tmp_path, {}, {}, {})
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
        reader = ArrayStore.open(tmp_path)
        assert {name: reader.slots.reader.codec(place) for name, place in reader.codecs.items()} == codecs
        reader.close()
    store.close()


KILLED = """
import os, sys
from pathlib import Path
from storage.test_store import ArrayStore, commit_number, hold_that_it_is_whole

ArrayStore.SEGMENT_NBYTES = ArrayStore.MIN_SEGMENT_NBYTES = 4096
store = ArrayStore.open(Path(sys.argv[1]), writable=True)
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
            store = ArrayStore.open(folder, writable=writable)
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
                copy = ArrayStore.open(tmp_path / "copy", writable=writable)
                assert hold_that_it_is_whole(copy) == number
                copy.close()
            shutil.rmtree(tmp_path / "copy")
    store.close()


@pytest.mark.parametrize("what", ["a commit", "a commit of several records", "a new segment"])
def test_after_an_interrupt_what_is_committed_counts(
    what: str, tmp_path: Path, small_segments: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "a commit of several records":
        monkeypatch.setattr(store_module, "MAX_COMMIT_NBYTES", 0)
    store, number = create(tmp_path / "store"), 0
    while store.log.last.number <= 1:
        number += 1
        commit_number(store, number)
    store.close()
    if what != "a new segment":
        number = 2
    for interrupt in interrupts(store_module, log_module, slots_module):
        folder = tmp_path / f"{interrupt.n_lines}"
        store = create(folder)
        for before in range(1, number):
            commit_number(store, before)
        assert store.log.last.number <= 1
        with interrupt:
            commit_number(store, number)
        commit_number(store, number)
        commit_number(store, number + 1)
        reader = ArrayStore.open(folder)
        assert hold_that_it_is_whole(reader) == number + 1, f"interrupted after {interrupt.n_lines} lines"
        reader.close()
        store.close()
    assert interrupt.n_lines > 20


@pytest.mark.parametrize("n_bytes", [0, 100, 1 << 16])
def test_a_commit_that_raises_leaves_nothing_behind(
    n_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though parts of it were written before."""
    monkeypatch.setattr(store_module, "MAX_COMMIT_NBYTES", n_bytes)
    store = create(tmp_path)
    for number in range(1, 4):
        commit_number(store, number)
    before, end = {name: array.copy() for name, array in store.arrays.items()}, store.log.last.end
    for name in ("wide", "numbers", "flags"):
        store.arrays[name][...] = 1
    changes: list[Change] = [("wide", 0, 2), (RING_ROWS, 0, N_ROWS), ("flags", 0, N_ROWS)]
    with pytest.raises(TypeError):
        store.commit(changes, {"bad": object()}, {"": CODECS[0], "other": CODECS[2]})
    assert (store.values, store.log.last.end > end) == (values_of(3), n_bytes > 300)
    for name, array in before.items():
        store.arrays[name][...] = array
    commit_number(store, 4)
    store.commit([], values_of(4), {"": CODECS[0], "other": CODECS[2]})
    for each in (store, ArrayStore.open(tmp_path)):
        assert hold_that_it_is_whole(each) == 4
        assert not each.arrays["wide"].any()
        assert not each.arrays["numbers"][4:].any()
        assert each.slots.reader.codec(each.codecs["other"]) == CODECS[2]
        each.close()


# -- sections ------------------------------------------------------------------------------------------------


def test_sections_that_are_not_known_are_skipped(tmp_path: Path) -> None:
    store = create(tmp_path)
    for number in range(1, 4):
        commit_number(store, number)
        store.log.segment_to_write().append(SECTION, section_record("statistics", bytes(number)))
    follower = ArrayStore.open(tmp_path)
    commit_number(store, 4)
    follower.refresh()
    for each in (follower, ArrayStore.open(tmp_path)):
        assert hold_that_it_is_whole(each) == 4
        each.close()
    crash(store)
    damaged = open_damaged(tmp_path, writable=False)
    assert (hold_that_it_is_whole(damaged), damaged.damages) == (4, [])
    damaged.close()


def test_sections_that_have_to_be_known_are_refused(tmp_path: Path) -> None:
    store = create(tmp_path)
    commit_number(store, 1)
    follower = ArrayStore.open(tmp_path)
    store.log.segment_to_write().append(SECTION, section_record("Priorities", b"content"))
    commit_number(store, 2)
    crash(store)
    expected = "has the section 'Priorities', which needs a newer version to be read"
    with pytest.raises(StorageError, match=expected):
        follower.refresh()
    follower.close()
    for writable in (False, True):
        for open_it in (ArrayStore.open, open_damaged):
            with pytest.raises(StorageError, match=expected):
                open_it(tmp_path, writable=writable)


# -- full disks ----------------------------------------------------------------------------------------------

FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from storage.test_store import ArrayStore, commit_number, create, hold_that_it_is_whole

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
UNLIMITED = resource.RLIM_INFINITY
ArrayStore.SEGMENT_NBYTES = ArrayStore.MIN_SEGMENT_NBYTES = 6000
folder = Path(sys.argv[1])
create(folder).close()
store = ArrayStore.open(folder, writable=True)
number = refused = 0

def check():
    reader = ArrayStore.open(folder)
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
        store = ArrayStore.open(folder, writable=True)
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
    store = ArrayStore.open(tmp_path, writable=True)
    assert hold_that_it_is_whole(store) == 299
    store.close()


def test_segments_that_a_table_refers_to_are_kept(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.arrays["table"][0, 0] = store.slots.write([b"the first"])[0]
    store.commit([("table", 0, 1)], {}, {})
    for number in range(1, 6):
        store.write_snapshot()
        store.arrays["table"][1, 0] = store.slots.write([b"%d" % number * 3])[0]
        store.commit([("table", 1, 2)], {}, {})
        assert store.live_segments() == {1, 2 * number + 1}
    store.write_snapshot()
    assert names(tmp_path) == ["00000001.log", "00000011.log", "00000012.log"]
    assert store.slots.load(store.arrays["table"][:2, 0]).tolist() == [b"the first", b"555"]
    store.arrays["table"][0, 0] = 0
    store.commit([("table", 0, 1)], {}, {})
    store.write_snapshot()
    assert names(tmp_path) == ["00000011.log", "00000014.log"]
    store.close()


def test_segments_that_codecs_in_use_are_in_are_kept(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.commit([], {}, {"a": CODECS[0], "b": CODECS[1]})
    store.write_snapshot()
    assert store.live_segments() == {1}
    assert names(tmp_path) == ["00000001.log", "00000002.log"]
    store.commit([], {}, {"a": CODECS[0], "b": CODECS[1]})
    store.write_snapshot()
    assert names(tmp_path) == ["00000003.log", "00000004.log"], "they were written to the new one"
    store.close()
    reader = ArrayStore.open(tmp_path)
    assert {name: reader.slots.reader.codec(reader.codecs[name]) for name in "ab"} == {"a": CODECS[0], "b": CODECS[1]}
    reader.close()


def test_a_closed_store_is_a_snapshot_and_what_it_refers_to(tmp_path: Path) -> None:
    store = create(tmp_path)
    for number in range(1, 50):
        commit_number(store, number)
    store.close()
    assert names(tmp_path) == ["00000001.log", "00000002.log"]
    for writable in (False, True):
        before = contents(tmp_path)
        store = ArrayStore.open(tmp_path, writable=writable)
        assert store.log.last.is_snapshot
        store.close()
        assert contents(tmp_path) == before, "nothing was committed"


def disk_nbytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


class ReadMeter:
    """Counts the bytes that are read from files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nbytes, read_at = 0, segment_module.read_at

        def counted(*arguments: Any) -> bytes:
            data = read_at(*arguments)
            self.nbytes += len(data)
            return data

        monkeypatch.setattr(segment_module, "read_at", counted)


@pytest.mark.parametrize("n_laps", [2, 200])
@pytest.mark.parametrize("ending", ["closed", "crashed"])
def test_opening_reads_no_more_after_many_laps(
    ending: str, n_laps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ArrayStore, "MIN_SEGMENT_NBYTES", 20_000)
    store = create(tmp_path)
    for number in range(1, n_laps * N_ROWS + 1):
        commit_number(store, number)
    meter = ReadMeter(monkeypatch)
    if ending == "crashed":
        crash(store)
    else:
        store.close()
    for writable in (False, True):
        meter.nbytes = 0
        opened = ArrayStore.open(tmp_path, writable=writable)
        assert 0 < meter.nbytes < (50_000 if ending == "crashed" else 20_000)
        assert hold_that_it_is_whole(opened) == n_laps * N_ROWS
        crash(opened)


@pytest.mark.parametrize(
    ("n_rows", "nbytes"), [(100, 30), (100, 5000), (2000, 3000)], ids=["vectors", "few images", "many images"]
)
def test_the_disk_is_bounded_after_any_number_of_laps(
    n_rows: int, nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By three times what is live and 1 MB."""
    monkeypatch.undo()  # files as they are
    plans = {
        "rewards": ArraySpec((n_rows, 1), "<f4", is_ring=True),
        "table": ArraySpec((n_rows, 1), "<i8", is_table=True, is_ring=True),
    }
    store, rng, most = ArrayStore.create(tmp_path, {}, plans, {"pos": 0}), np.random.default_rng(0), 0
    n_commits = max(4 * n_rows, 20_000 if nbytes < 100 else 0)
    for number in range(n_commits):
        row = number % n_rows
        store.arrays["table"][row] = store.slots.write([rng.bytes(nbytes)])
        store.commit([(RING_ROWS, row, row + 1)], {"pos": (row + 1) % n_rows}, {})
        if number >= n_rows and number % 37 == 0:
            most = max(most, disk_nbytes(tmp_path))
    store.close()
    assert max(most, disk_nbytes(tmp_path)) <= 3 * n_rows * nbytes + 1_000_000
    assert store.log.last.number > 2


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
            copy = ArrayStore.open(tmp_path.with_name("copy"), writable=writable_copy)
            assert hold_that_it_is_whole(copy) == 1, "the change is not committed yet"
            copy.close()
            shutil.rmtree(tmp_path.with_name("copy"))
    assert len(names(tmp_path)) >= 3
    store.arrays["wide"][...] = 5
    store.commit([("table", 0, N_ROWS), ("wide", 0, 2)], {"pos": 7}, {"": CODECS[1]})
    store.write_snapshot()
    store.close()
    store = ArrayStore.open(tmp_path)
    assert store.slots.load(store.arrays["table"].reshape(-1)).tolist() == slots
    assert (store.arrays["wide"] == 5).all()
    assert (store.values["pos"], store.slots.reader.codec(store.codecs[""])) == (7, CODECS[1])
    store.close()


# -- becoming another ----------------------------------------------------------------------------------------


def resized(store: ArrayStore) -> tuple[dict[str, ArraySpec], dict[str, Any]]:
    """Return plans and arrays of half the rows, in another order."""
    arrays = {name: array[:10].copy() for name, array in reversed(store.arrays.items()) if name != "empty"}
    return {name: ArraySpec.of(array, is_table=name == "table") for name, array in arrays.items()}, arrays


def test_a_store_becomes_another_at_once(tmp_path: Path) -> None:
    store = create(tmp_path)
    for number in range(1, 10):
        commit_number(store, number)
    expected = store.slots.load(store.arrays["table"][:10].reshape(-1)).tolist()
    plans, arrays = resized(store)
    store.become({"class": "Other"}, plans, arrays, {"other": 1})
    assert store.arrays["numbers"] is arrays["numbers"]
    for codec in (CODECS[0], CODECS[1]):
        reader = ArrayStore.open(tmp_path)
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
        store = ArrayStore.open(tmp_path, writable=writable)
        assert hold_that_it_is_whole(store) == 1
        assert store.slots.reader.codec(store.codecs["other"]) == CODECS[3]
        store.close()


def test_who_follows_is_told_that_it_is_another(tmp_path: Path) -> None:
    store = create(tmp_path)
    commit_number(store, 1)
    reader = ArrayStore.open(tmp_path)
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
    reader = ArrayStore.open(tmp_path)
    store.close()
    ArrayStore.create(tmp_path, {}, {}, {}, overwrite=True).close()
    for _ in range(2):
        with pytest.raises(StorageError):
            reader.refresh()
        assert hold_that_it_is_whole(reader) == 1
    reader.close()


# -- following -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_segments")
def test_who_follows_sees_each_commit(tmp_path: Path) -> None:
    store = create(tmp_path)
    readers = [ArrayStore.open(tmp_path) for _ in range(3)]
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


@pytest.mark.parametrize("way", ["segment", "snapshot", "both"])
@pytest.mark.parametrize("often", [1, 3])
def test_who_follows_goes_on_behind_each_new_segment(often: int, way: str, tmp_path: Path) -> None:
    store = create(tmp_path)
    reader = ArrayStore.open(tmp_path)
    for number in range(1, 13):
        commit_number(store, number)
        if way != "snapshot":
            store.log.begin_segment()
        if way != "segment":
            store.write_snapshot()
        if number % 4 == 0:
            crash(store)
            store = ArrayStore.open(tmp_path, writable=True)
        if number % often == 0:
            assert reader.refresh()
            assert hold_that_it_is_whole(reader) == number
            assert not reader.refresh()
            assert reader.log.last.number == store.log.last.number
    reader.close()
    store.close()


def test_who_follows_has_arrays_that_stay_the_same_objects(tmp_path: Path) -> None:
    store = create(tmp_path)
    reader = ArrayStore.open(tmp_path)
    arrays = dict(reader.arrays)
    for number in range(1, 4):
        commit_number(store, number)
        store.write_snapshot()
        reader.refresh()
        assert all(reader.arrays[name] is array for name, array in arrays.items())
    assert hold_that_it_is_whole(reader) == 3
    reader.close()
    store.close()


@pytest.mark.parametrize("nbytes", [300, 5_000_000], ids=["small slots", "slots larger than there was room for"])
def test_who_looks_rarely_sees_all_that_was_written_to_the_segment_before(nbytes: int, tmp_path: Path) -> None:
    store = create(tmp_path)
    store.close()  # which makes the file as short as can be
    reader = ArrayStore.open(tmp_path)
    store = ArrayStore.open(tmp_path, writable=True)
    for number in range(1, 6):
        commit_number(store, number, nbytes)
    store.write_snapshot()
    reader.refresh()
    assert hold_that_it_is_whole(reader, nbytes) == 5
    reader.close()
    store.close()


FOLLOWED = """
import sys
from pathlib import Path
from storage.test_store import ArrayStore, commit_number

ArrayStore.SEGMENT_NBYTES = ArrayStore.MIN_SEGMENT_NBYTES = 4096
store = ArrayStore.open(Path(sys.argv[1]), writable=True)
for number in range(1, 1 + int(sys.argv[2])):
    commit_number(store, number)
store.close()
"""


def test_who_follows_another_process_sees_whole_states(tmp_path: Path) -> None:
    """And who opens the folder while segments come and go."""
    folder, n_commits = tmp_path / "store", 600
    create(folder).close()
    follower, found = ArrayStore.open(folder), [0]
    with start(FOLLOWED, folder, n_commits) as process:
        while process.poll() is None:
            if follower.refresh():
                found.append(hold_that_it_is_whole(follower))
            store = ArrayStore.open(folder)
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
    other = ArrayStore.open(tmp_path, writable=True)
    assert hold_that_it_is_whole(other) == 1
    with pytest.raises(StorageError, match="is written to by another buffer of this process"):
        store.acquire()
    other.close()
    store.acquire()
    commit_number(store, 2)
    store.release()
    other = ArrayStore.open(tmp_path, writable=True)
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
        store.write_snapshot()
    store.close()
    assert hold_that_it_is_whole(store) == 4
    with pytest.raises(StorageError):
        commit_number(store, 5)
    assert hold_that_it_is_whole(ArrayStore.open(tmp_path)) == 4


# -- copies --------------------------------------------------------------------------------------------------


def test_a_copy_holds_the_same_and_goes_its_own_way(tmp_path: Path) -> None:
    store = create(tmp_path / "store")
    for number in range(1, 15):
        commit_number(store, number)
        if number % 4 == 0:
            store.write_snapshot()
    store.copy_to(tmp_path / "copy")
    copy = ArrayStore.open(tmp_path / "copy", writable=True)
    assert hold_that_it_is_whole(copy) == hold_that_it_is_whole(store) == 14
    for number in range(15, 40):
        commit_number(store, number, 400 if number > 30 else 300)
        if number < 25:
            commit_number(copy, number)
    for each, expected in ((store, 39), (copy, 24)):
        each.write_snapshot()
        each.close()
        folder = each.log.folder
        each = ArrayStore.open(folder, writable=True)
        assert each.values["number"] == expected
        assert each.slots.load(each.arrays["table"].reshape(-1)).all()
        each.close()
    with pytest.raises(StorageError, match="holds a buffer already"):
        ArrayStore.open(tmp_path / "store").copy_to(tmp_path / "copy")


def test_repairing_a_copy_leaves_the_original_alone(tmp_path: Path) -> None:
    """Though they share files."""
    store = create(tmp_path / "store")
    commit_number(store, 1)
    store.copy_to(tmp_path / "copy")
    for number in range(2, 5):
        commit_number(store, number)
    damage(newest_segment(tmp_path / "copy"), 120)
    before = contents(tmp_path / "store")
    copy = open_damaged(tmp_path / "copy", writable=True)
    assert len(copy.damages) == 1
    assert not copy.arrays["numbers"][1:].any(), "what came to the shared file later is none of its"
    assert copy.values["number"] == copy.arrays["numbers"][0, 0] == 1
    copy.write_snapshot()
    commit_number(copy, 2)
    copy.close()
    assert contents(tmp_path / "store") == before
    commit_number(store, 5)
    store.close()
    store = ArrayStore.open(tmp_path / "store")
    assert hold_that_it_is_whole(store) == 5
    store.close()


def whole_state(store: ArrayStore) -> Any:
    """Return all that a store holds, wherever its slots are."""
    tables = {name for name, plan in store.plans.items() if plan.is_table}
    arrays = {name: array.tobytes() for name, array in store.arrays.items() if name not in tables}
    slots = {name: store.slots.load(store.arrays[name].reshape(-1)).tolist() for name in tables}
    return store.values, arrays, slots


def commit_constant_size(store: ArrayStore, number: int, letter: bytes) -> None:
    """Commit a row that takes as many bytes as any other."""
    row = (number - 1) % N_ROWS
    store.arrays["numbers"][row] = [number, letter[0], 0]
    store.arrays["table"][row] = store.slots.write([letter * 10 + b"%03d%d" % (number, k) for k in range(2)])
    store.commit([(RING_ROWS, row, row + 1)], {"pos": number % N_ROWS, "number": 1000 + number}, {})


@pytest.mark.parametrize("is_original_open", [False, True], ids=["a closed one", "one that is written to"])
@pytest.mark.parametrize("ending", ["closed", "crashed"])
def test_mixed_files_of_copies_are_one_of_the_two_or_refused(
    ending: str, is_original_open: bool, tmp_path: Path
) -> None:
    """Of ``cp -r``, where both were written to, as much and in the same places."""
    folders = [tmp_path / name for name in "ab"]
    store = create(folders[0])
    for number in range(1, 9):
        commit_constant_size(store, number, b"o")
        if number == 4:
            store.write_snapshot()
    if not is_original_open:
        store.close()
    shutil.copytree(folders[0], folders[1])
    if not is_original_open:
        store = ArrayStore.open(folders[0], writable=True)
    expected = []
    for each, letter in ((store, b"a"), (ArrayStore.open(folders[1], writable=True), b"b")):
        for number in range(9, 13):
            commit_constant_size(each, number, letter)
        each.log.begin_segment()
        commit_constant_size(each, 13, letter)
        each.write_snapshot()
        for number in range(14, 17):
            commit_constant_size(each, number, letter)
        expected.append(whole_state(each))
        if ending == "closed":
            each.close()
        else:
            crash(each)
    files = [contents(folder) for folder in folders]
    differing = [name for name in sorted({*files[0], *files[1]}) if files[0].get(name) != files[1].get(name)]
    assert len(differing) >= 3
    outcomes = set()
    for sources in itertools.product(range(2), repeat=len(differing)):
        shutil.rmtree(tmp_path / "mixed", ignore_errors=True)
        shutil.copytree(folders[0], tmp_path / "mixed")
        for name, source in zip(differing, sources, strict=True):
            (tmp_path / "mixed" / name).unlink(missing_ok=True)
            if name in files[source]:
                shutil.copy(folders[source] / name, tmp_path / "mixed" / name)
        for writable in (False, True):
            try:
                mixed = ArrayStore.open(tmp_path / "mixed", writable=writable)
            except CorruptStorage:
                outcomes.add("refused")
                continue
            try:
                state = whole_state(mixed)
            except CorruptPayload:
                outcomes.add("refused")
            else:
                assert state in expected, sources
                outcomes.add("ab"[expected.index(state)])
            mixed.close()
    assert outcomes == {"a", "b", "refused"}


# -- damage --------------------------------------------------------------------------------------------------


def damage(path: Path, position: int, mask: int = 8) -> None:
    """Flip a bit of a file."""
    with open(path, "r+b", buffering=0) as file:
        [byte] = os.pread(file.fileno(), 1, position)
        os.pwrite(file.fileno(), bytes([byte ^ mask]), position)


@pytest.fixture
def five_commits(tmp_path: Path) -> tuple[Path, list[int]]:
    """Return a folder that a crash left, and where the first commit of its last file begins and each one ends."""
    store = create(tmp_path / "store")
    ends = [store.log.segment_to_write().end]
    for number in range(1, 6):
        commit_number(store, number)
        ends.append(store.log.last.end)
    crash(store)
    assert newest_segment(tmp_path / "store").stat().st_size == ends[-1]
    return tmp_path / "store", ends


#: The two copies of a file's header, of which one may be damaged.
HEADER_NBYTES = 112


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("writable", [False, True])
def test_every_damaged_byte_is_told_and_left_alone(
    writable: bool, number: int, five_commits: tuple[Path, list[int]]
) -> None:
    folder, ends = five_commits
    path = folder / f"{number:08}.log"
    whole = path.read_bytes()
    end = len(whole) - record_nbytes(0) if number == 0 else ends[-1]  # what comes behind only says that it ends
    for position in range(len(whole)):
        damage(path, position, 1 << position % 8)
        if HEADER_NBYTES <= position < end:
            with pytest.raises(CorruptStorage, match=rf"{re.escape(str(path))}.*repair=True"):
                ArrayStore.open(folder, writable=writable)
        else:
            store = ArrayStore.open(folder, writable=writable)
            assert hold_that_it_is_whole(store) == 5
            store.close()
        assert path.stat().st_size == len(whole), "what is damaged is not given up unasked"
        damage(path, position, 1 << position % 8)
    assert path.read_bytes() == whole


def test_a_segment_that_is_missing_is_told(tmp_path: Path) -> None:
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
            hold_that_it_is_whole(ArrayStore.open(tmp_path / "copy", writable=True))
        shutil.rmtree(tmp_path / "copy")


@pytest.mark.parametrize("ending", ["closed", "crashed"])
def test_files_that_are_older_than_others_are_told(ending: str, tmp_path: Path) -> None:
    """As of a backup that was copied over a folder, or the other way round."""
    store = create(tmp_path / "store")
    for number in range(1, 5):
        commit_number(store, number)
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    for number in range(5, 9):
        commit_number(store, number)
        if number == 6:
            store.log.begin_segment()
    end = crash if ending == "crashed" else ArrayStore.close
    end(store)
    for name in names(tmp_path / "backup"):
        if (tmp_path / "store" / name).exists():
            shutil.copytree(tmp_path / "store", tmp_path / "mixed")
            shutil.copy(tmp_path / "backup" / name, tmp_path / "mixed")
            try:
                assert hold_that_it_is_whole(ArrayStore.open(tmp_path / "mixed")) == 8
            except (CorruptStorage, CorruptPayload) as error:
                assert name in str(error)  # noqa: PT017  # if there is one
            shutil.rmtree(tmp_path / "mixed")


def test_a_cut_at_any_byte_leaves_the_commit_before(five_commits: tuple[Path, list[int]]) -> None:
    """As a process does that is killed; a shorter file, or one with zeros behind."""
    folder, ends = five_commits
    path = newest_segment(folder)
    whole, before = path.read_bytes(), names(folder)
    for cut in range(ends[0], ends[-1], 23):
        for n_zeros in (0, 3000):
            with open(path, "r+b") as file:
                file.write(whole[:cut] + bytes(n_zeros))
                file.truncate()
            expected = max(k for k, end in enumerate(ends) if end <= cut)
            store = ArrayStore.open(folder)
            assert hold_that_it_is_whole(store) == expected
            store.close()
            store = ArrayStore.open(folder, writable=True)
            assert hold_that_it_is_whole(store) == expected
            commit_number(store, expected + 1)
            crash(store)
            store = ArrayStore.open(folder)
            assert hold_that_it_is_whole(store) == expected + 1
            store.close()
            for name in {*names(folder)} - {*before}:
                (folder / name).unlink()


# -- repairing -----------------------------------------------------------------------------------------------


def commit_tiny(store: ArrayStore, number: int) -> None:
    n_rows = store.n_ring_rows
    row = (number - 1) % n_rows
    store.arrays["numbers"][row] = number
    store.arrays["table"][row] = store.slots.write([b"%d" % number * 3])
    store.commit([(RING_ROWS, row, row + 1)], {"pos": number % n_rows, "number": number}, {})


def tiny_store(folder: Path, n_commits: int, n_a_snapshot: int = 5, n_rows: int = 4) -> ArrayStore:
    plans = {
        "numbers": ArraySpec((n_rows,), "<i4", is_ring=True),
        "table": ArraySpec((n_rows, 1), "<i8", is_table=True, is_ring=True),
    }
    store = ArrayStore.create(folder, {}, plans, {"pos": 0, "number": 0})
    for number in range(1, n_commits + 1):
        commit_tiny(store, number)
        if number % n_a_snapshot == 0:
            store.write_snapshot()
    return store


def damaged_rows(store: ArrayStore) -> NDArray[np.bool_]:
    """Return which rows of the table have a slot that cannot be read, ``(rows,)``."""
    return np.isin(store.arrays["table"][:, 0], [*damaged_slots(store, "table")])


def lost_numbers(store: DamagedStore, n_commits: int) -> list[int]:
    """Return which of the commits that should be there are lost, and hold that all others are right."""
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


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("ending", ["closed", "crashed"])
def test_nothing_is_lost_where_nothing_is_damaged(ending: str, writable: bool, tmp_path: Path) -> None:
    store = tiny_store(tmp_path, 13)
    end = crash if ending == "crashed" else ArrayStore.close
    end(store)
    before = contents(tmp_path)
    damaged = open_damaged(tmp_path, writable=writable)
    assert (damaged.damages, bool(damaged.lost_rows.any())) == ([], False)
    assert lost_numbers(damaged, 13) == []
    damaged.close()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("ending", ["closed", "crashed"])
@pytest.mark.parametrize("n_commits", [3, 7, 13])
def test_every_damaged_byte_costs_what_is_in_its_record(n_commits: int, ending: str, tmp_path: Path) -> None:
    store = tiny_store(tmp_path / "store", n_commits)
    end = crash if ending == "crashed" else ArrayStore.close
    end(store)
    most_lost = 0
    for path in sorted((tmp_path / "store").glob("*.log")):
        for position in range(path.stat().st_size):
            damage(path, position, 1 << position % 8)
            damaged = open_damaged(tmp_path / "store", writable=False)
            is_told = bool(damaged.damages) or bool(damaged_slots(damaged, "table"))
            lost = lost_numbers(damaged, n_commits)
            assert is_told or not lost, (path.name, position, lost)
            assert len(lost) <= 1, (path.name, position, lost)
            most_lost = max(most_lost, len(lost))
            damaged.log.close()
            damage(path, position, 1 << position % 8)
    assert most_lost == 1


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_damaged_no_row_is_wrong(seed: int, tmp_path: Path) -> None:
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
            # To its very end would be what a killed process leaves.
            nbytes = min(int(rng.integers(1, 1000)), len(content) - 1 - start)
            content[start : start + nbytes] = bytes(nbytes)
        path.write_bytes(content)
    try:
        damaged = open_damaged(tmp_path, writable=True)
    except CorruptStorage:
        return  # nothing of it can be read
    lost = lost_numbers(damaged, n_commits)
    assert damaged.damages or damaged_slots(damaged, "table") or not lost
    damaged.arrays["table"][damaged_rows(damaged)] = 0
    damaged.write_snapshot()
    damaged.close()
    ArrayStore.open(tmp_path).close()


@pytest.mark.parametrize("n_zeros", [0, 3000])
@pytest.mark.parametrize("n_commits", [3, 13])
def test_a_snapshot_that_is_cut_short_is_put_together_from_other_files(
    n_commits: int, n_zeros: int, tmp_path: Path
) -> None:
    tiny_store(tmp_path, n_commits).close()
    path = newest_segment(tmp_path)
    whole = path.read_bytes()
    for cut in range(HEADER_NBYTES, len(whole), 7):
        path.write_bytes(whole[:cut] + bytes(n_zeros))
        damaged = open_damaged(tmp_path, writable=False)
        assert any(str(path) in line for line in damaged.damages)
        assert lost_numbers(damaged, n_commits) == []
        damaged.close()


def test_a_repaired_store_is_gone_on_with(tmp_path: Path) -> None:
    crash(tiny_store(tmp_path, 8))
    path = tmp_path / "00000001.log"
    damage(path, path.read_bytes().index(b"555") + 1)
    damage(tmp_path / "00000002.log", 200)
    for writable in (False, True):
        with pytest.raises(CorruptStorage):
            ArrayStore.open(tmp_path, writable=writable)
    before = contents(tmp_path)
    damaged = open_damaged(tmp_path, writable=True)
    assert contents(tmp_path) == before, "nothing is changed yet"
    assert len(damaged.damages) >= 1
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
    assert open_damaged(tmp_path, writable=False).damages == []


def test_a_damaged_snapshot_and_a_missing_file_cost_what_was_in_both(tmp_path: Path) -> None:
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
        assert lost_numbers(damaged, 10) == [9], "of which the slot was there"
        damaged.close()


@pytest.mark.parametrize("n_missing", range(1, 14))
def test_rows_that_were_written_over_in_a_missing_file_are_not_taken_for_new_ones(
    n_missing: int, tmp_path: Path
) -> None:
    """Though it may be more than a lap of the ring."""
    store = tiny_store(tmp_path, 6, n_a_snapshot=100)
    for numbers in (range(7, 7 + n_missing), range(7 + n_missing, 9 + n_missing)):
        store.log.begin_segment()
        for number in numbers:
            commit_tiny(store, number)
    crash(store)
    (tmp_path / "00000002.log").unlink()
    damaged = open_damaged(tmp_path, writable=False)
    newest = 8 + n_missing
    assert {newest - 1, newest}.isdisjoint(lost_numbers(damaged, newest))
    damaged.close()


@pytest.mark.parametrize("n_zeroed", range(1, 14))
def test_rows_that_were_written_over_in_a_damaged_part_are_not_taken_for_new_ones(
    n_zeroed: int, tmp_path: Path
) -> None:
    store = tiny_store(tmp_path, 6, n_a_snapshot=100)
    start = store.log.last.end
    for number in range(7, 9 + n_zeroed):
        if number == 7 + n_zeroed:
            end = store.log.last.end
        commit_tiny(store, number)
    crash(store)
    with open(tmp_path / "00000001.log", "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), bytes(end - start), start)
    damaged = open_damaged(tmp_path, writable=False)
    newest = 8 + n_zeroed
    assert {newest - 1, newest}.isdisjoint(lost_numbers(damaged, newest))
    damaged.close()


def test_a_missing_file_costs_what_was_in_it(tmp_path: Path) -> None:
    store = tiny_store(tmp_path / "store", 7, n_a_snapshot=100, n_rows=20)
    for number in (8, 9, 10):
        store.log.begin_segment()
        commit_tiny(store, number)
    crash(store)
    for name, expected in (("0", []), ("1", [*range(1, 8)]), ("2", [8]), ("3", [9]), ("4", [10])):
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
        (tmp_path / "copy" / f"0000000{name}.log").unlink()
        damaged = open_damaged(tmp_path / "copy", writable=False)
        assert lost_numbers(damaged, 10) == expected
        assert damaged.damages
        damaged.close()
        shutil.rmtree(tmp_path / "copy")


def test_files_of_another_buffer_are_not_taken_for_its_own(tmp_path: Path) -> None:
    crash(tiny_store(tmp_path / "a", 8))
    crash(tiny_store(tmp_path / "b", 8))
    shutil.copy(tmp_path / "b" / "00000001.log", tmp_path / "a" / "00000001.log")
    damaged = open_damaged(tmp_path / "a", writable=False)
    assert any("is of another buffer" in line for line in damaged.damages)
    assert lost_numbers(damaged, 8) == [5]
    damaged.close()


def test_files_of_another_copy_are_not_taken_for_its_own(tmp_path: Path) -> None:
    """Though they have the same number and offsets."""
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
            "is of a copy of this buffer" in line
            for line in (*damaged.damages, *damaged_slots(damaged, "table").values())
        )
        is_lost = damaged_rows(damaged) | damaged.lost_rows
        assert {3, 0} <= {*np.flatnonzero(is_lost).tolist()}, position
        damaged.close()
        damage(snapshot, position)


def test_what_is_written_to_is_not_repaired(tmp_path: Path) -> None:
    store = create(tmp_path)
    for writable in (False, True):
        with pytest.raises(StorageError, match=r"is being written to|is written to by"):
            open_damaged(tmp_path, writable=writable)
    store.close()
    open_damaged(tmp_path, writable=True).close()


def test_where_no_file_tells_what_it_is_of_nothing_is_repaired(five_commits: tuple[Path, list[int]]) -> None:
    folder, _ = five_commits
    for path in folder.glob("*.log"):
        segment = Segment(path)
        offsets = [record.offset for record in segment.records() if record.kind == MANIFEST]
        segment.close()
        assert len(offsets) == (2 if segment.is_snapshot else 1), "what a snapshot is of stands in it twice"
        for offset in offsets:
            damage(path, offset + 20)
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=f"{folder}: no file has metadata that can be read"):
            open_damaged(folder, writable=writable)
    for path in folder.glob("*.log"):
        path.write_bytes(b"nothing")
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=f"{folder} has no file that can be read"):
            open_damaged(folder, writable=writable)
    assert len(names(folder)) == 2


def test_codecs_that_are_damaged_are_given_up(tmp_path: Path) -> None:
    store = create(tmp_path)
    commit_number(store, 1)
    store.commit([], values_of(1), {"": CODECS[0], "other": CODECS[2]})
    place = store.codecs[""]
    crash(store)
    damage(tmp_path / "00000001.log", (place & 0xFFFFFFFF) + 9)
    damaged = open_damaged(tmp_path, writable=True)
    assert damaged.codecs.keys() == {"other"}
    assert damaged_rows(damaged)[0]
    damaged.write_snapshot()
    commit_number(damaged, 1)
    damaged.close()
    store = ArrayStore.open(tmp_path)
    assert hold_that_it_is_whole(store) == 1
    store.close()


def test_who_follows_sees_what_was_repaired(tmp_path: Path) -> None:
    """And can read until then what it had."""
    store = create(tmp_path)
    for number in range(1, 4):
        commit_number(store, number)
    follower = ArrayStore.open(tmp_path)
    store.write_snapshot()
    end = store.log.segment_to_write().end
    for number in range(4, 6):
        commit_number(store, number)
    crash(store)
    damage(newest_segment(tmp_path), end + 4)
    repaired = open_damaged(tmp_path, writable=True)
    assert hold_that_it_is_whole(follower) == 3
    assert repaired.lost_rows[3] or damaged_rows(repaired)[3]
    repaired.write_snapshot()
    commit_number(repaired, 4)
    commit_number(repaired, 5)
    assert follower.refresh()
    assert hold_that_it_is_whole(follower) == 5
    assert not follower.refresh()
    repaired.close()
    follower.close()


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
    log.write_snapshot([(MANIFEST, manifest), (5, b"\2\0\0\0{}")])
    log.close()
    for writable in (False, True):
        with pytest.raises(CorruptStorage, match=re.escape(str(tmp_path / "00000000.log"))):
            ArrayStore.open(tmp_path, writable=writable)


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
    log.write_snapshot(records)
    log.close()
    for writable in (False, True):
        with pytest.raises(CorruptStorage):
            ArrayStore.open(tmp_path, writable=writable)


def test_all_sums_are_looked_at_before_a_slot_is_used(tmp_path: Path) -> None:
    store = create(tmp_path)
    for number in range(1, 6):
        commit_number(store, number)
    addresses: NDArray[np.int64] = store.arrays["table"][3]
    damage(tmp_path / "00000001.log", int(addresses[1] & 0xFFFFFFFF) + 8)
    for read in (lambda: store.slots.load(addresses), lambda: store.slots.gather(addresses, 1)):
        with pytest.raises(CorruptPayload, match=r"00000001\.log, the slot at byte \d+, is damaged") as caught:
            read()
        assert caught.value.index == 1
    store.close()
