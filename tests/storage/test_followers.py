"""Stores that follow a writer: they read complete commits while files are created and deleted."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import start

from sb3_compressed.errors import StorageError
from sb3_compressed.storage.array_store import ArrayStore
from storage.stores import (
    METADATA,
    assert_consistent,
    commit_number,
    create,
    resized,
)

pytestmark = pytest.mark.usefixtures("small_files")


def test_refresh_raises_if_the_folder_contains_another_buffer(tmp_path: Path) -> None:
    writer = create(tmp_path)
    commit_number(writer, 1)
    reader = ArrayStore.open(tmp_path)
    specs, arrays = resized(writer.store)
    writer.replace_content(METADATA, specs, arrays, {"other": 1}, {})
    for number in range(3):
        with pytest.raises(StorageError, match="another buffer"):
            reader.refresh()
        assert assert_consistent(reader) == 1
        writer.store.arrays["numbers"][2] = number
        writer.commit([("numbers", 2, 3)], {"other": number}, {})
    reader.close()
    writer.close()


@pytest.mark.usefixtures("small_segments")
def test_follower_sees_each_commit(tmp_path: Path) -> None:
    writer = create(tmp_path)
    readers = [ArrayStore.open(tmp_path) for _ in range(3)]
    assert not any(reader.refresh() for reader in readers)
    for number in range(1, 120):
        commit_number(writer, number)
        for often, reader in zip((1, 4, 50), readers, strict=True):
            if number % often == 0:
                assert assert_consistent(reader) == number - often, "some of its files were deleted"
                assert reader.refresh()
                assert assert_consistent(reader) == number
                assert not reader.refresh()
    assert writer.store.log.last.number > 5
    writer.close()
    for reader in readers:
        reader.refresh()
        assert assert_consistent(reader) == 119
        assert len(reader.log.segments) < 10, "deleted segments are closed"
        reader.close()


FOLLOWED = """
import itertools
import sys
from pathlib import Path
from sb3_compressed.storage.commit_writer import CommitWriter
from storage.stores import commit_number, open_to_write

CommitWriter.SEGMENT_NBYTES = CommitWriter.MIN_SEGMENT_NBYTES = 4096
writer = open_to_write(Path(sys.argv[1]))
for number in itertools.count(1):
    commit_number(writer, number)
    if number >= 300 and Path(sys.argv[2]).exists():
        break
writer.close()
print(number)
"""


def test_follower_of_another_process_sees_complete_states(tmp_path: Path) -> None:
    """So do readers that open the folder while segments are created and deleted."""
    folder, enough = tmp_path / "store", tmp_path / "enough"
    create(folder).close()
    follower, found = ArrayStore.open(folder), [0]
    with start(FOLLOWED, folder, enough) as process:
        try:
            while process.poll() is None and len({*found}) < 10:
                if follower.refresh():
                    found.append(assert_consistent(follower))
                store = ArrayStore.open(folder)
                found.append(assert_consistent(store))
                store.close()
        finally:
            enough.touch()
        assert process.stdout is not None
        n_commits = int(process.stdout.read())
    assert process.returncode == 0
    follower.refresh()
    assert assert_consistent(follower) == n_commits
    assert follower.log.last.number > 10
    follower.close()
    assert found == sorted(found)
