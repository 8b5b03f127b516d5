"""Commits to a store are atomic: a kill, an interrupt, an exception or a full disk leaves the last complete one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from drawn_examples import FACTOR
from lines import interrupts
from programs import run

from sb3_compressed.arrays import slot_log as slots_module
from sb3_compressed.storage import array_store as store_module
from sb3_compressed.storage import commit_writer as writer_module
from sb3_compressed.storage import log as log_module
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.commit_writer import RING_ROWS, Change
from storage.folders import names, newest_segment
from storage.stores import (
    CODECS,
    N_ROWS,
    assert_consistent,
    commit_number,
    crash,
    create,
    open_to_write,
    values_of,
)

pytestmark = pytest.mark.usefixtures("small_files")


@pytest.mark.parametrize("what", ["a commit", "a new segment"])
@pytest.mark.slow
def test_interrupted_commit_is_complete_or_repeatable(what: str, tmp_path: Path, small_segments: None) -> None:
    writer, number = create(tmp_path / "store"), 0
    while writer.store.log.last.number <= 1:
        number += 1
        commit_number(writer, number)
    writer.close()
    if what != "a new segment":
        number = 2
    for interrupt in interrupts(store_module, writer_module, log_module, slots_module, step=5 if FACTOR is None else 1):
        folder = tmp_path / f"{interrupt.n_lines}"
        writer = create(folder)
        for before in range(1, number):
            commit_number(writer, before)
        assert writer.store.log.last.number <= 1
        with interrupt:
            commit_number(writer, number)
        commit_number(writer, number)
        commit_number(writer, number + 1)
        reader = ArrayStore.open(folder)
        assert assert_consistent(reader) == number + 1, f"interrupted after {interrupt.n_lines} lines"
        reader.close()
        writer.close()
    assert interrupt.n_lines > 20


def test_failed_commit_changes_nothing(tmp_path: Path) -> None:
    writer = create(tmp_path)
    for number in range(1, 4):
        commit_number(writer, number)
    store = writer.store
    before = {name: array.copy() for name, array in store.arrays.items()}
    for name in ("wide", "numbers", "flags"):
        store.arrays[name][...] = 1
    changes: list[Change] = [("wide", 0, 2), (RING_ROWS, 0, N_ROWS), ("flags", 0, N_ROWS)]
    with pytest.raises(TypeError):
        writer.commit(changes, {"bad": object()}, {"": CODECS[0], "other": CODECS[2]})
    assert store.values == values_of(3)
    for name, array in before.items():
        store.arrays[name][...] = array
    commit_number(writer, 4)
    writer.commit([], values_of(4), {"": CODECS[0], "other": CODECS[2]})
    for each in (store, ArrayStore.open(tmp_path)):
        assert assert_consistent(each) == 4
        assert not each.arrays["wide"].any()
        assert not each.arrays["numbers"][4:].any()
        assert each.log.codec(each.codecs["other"]) == CODECS[2]
        each.close()


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.commit_writer import CommitWriter
from storage.stores import assert_consistent, commit_number, create, open_to_write

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
UNLIMITED = resource.RLIM_INFINITY
CommitWriter.SEGMENT_NBYTES = CommitWriter.MIN_SEGMENT_NBYTES = 6000
folder = Path(sys.argv[1])
create(folder).close()
writer = open_to_write(folder)
number = refused = 0

def check():
    reader = ArrayStore.open(folder)
    found = assert_consistent(reader)
    reader.close()
    return found

for free in [*range(0, 600, 37), *range(600, 3000, 301)] * 3:
    number += 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (writer.store.log.last.end + free, UNLIMITED))
    try:
        commit_number(writer, number)
    except OSError:
        refused += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
        if check() == number:
            print(f"commit {number} was refused and is there")
        commit_number(writer, number)
    resource.setrlimit(resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
    assert check() == number
    if not number % 10:
        writer.close()
        writer = open_to_write(folder)
print(refused > 10, writer.store.log.last.number > 2)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the size of files cannot be limited there")
def test_commit_on_a_full_disk_fails_and_can_be_repeated(tmp_path: Path) -> None:
    assert run(FULL_DISK, tmp_path / "store") == "True True\n"


def test_truncation_at_any_byte_leaves_the_previous_commit(five_commits: tuple[Path, list[int]]) -> None:
    """A killed process leaves a shorter file, or one with zeros at the end."""
    folder, ends = five_commits
    path = newest_segment(folder)
    original, before = path.read_bytes(), names(folder)
    for cut in range(ends[0], ends[-1], 23):
        for n_zeros in (0, 3000):
            with open(path, "r+b") as file:
                file.write(original[:cut] + bytes(n_zeros))
                file.truncate()
            expected = max(k for k, end in enumerate(ends) if end <= cut)
            store = ArrayStore.open(folder)
            assert assert_consistent(store) == expected
            store.close()
            writer = open_to_write(folder)
            assert assert_consistent(writer.store) == expected
            commit_number(writer, expected + 1)
            crash(writer)
            store = ArrayStore.open(folder)
            assert assert_consistent(store) == expected + 1
            store.close()
            for name in {*names(folder)} - {*before}:
                (folder / name).unlink()
