"""Verification: damage of what a buffer consists of is reported, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from slot_objects import load_slots

from sb3_compressed.errors import StorageError
from sb3_compressed.storage import verification
from sb3_compressed.storage.commit_writer import CommitWriter
from sb3_compressed.storage.verification import damaged_slots, verify
from storage.folders import contents, damage
from storage.stores import crash, tiny_store

pytestmark = pytest.mark.usefixtures("small_files")


@pytest.mark.parametrize("ending", ["closed", "crashed", "open"])
def test_intact_folder_has_no_damage(ending: str, tmp_path: Path) -> None:
    writer = tiny_store(tmp_path, 13)
    if ending != "open":
        (crash if ending == "crashed" else CommitWriter.close)(writer)
    before, shares = contents(tmp_path), list[float]()
    assert verify(tmp_path, progress=shares.append) == []
    assert contents(tmp_path) == before
    assert shares == sorted(shares)
    assert shares[-1] == 1
    writer.close()


def test_folders_without_a_buffer_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"{tmp_path} contains no"):
        verify(tmp_path)
    with pytest.raises(StorageError, match="there is no folder"):
        verify(tmp_path / "missing")


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_damaged_slots_are_listed_by_address(at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "SLOTS_AT_ONCE", at_once)
    store = tiny_store(tmp_path, 10, n_a_snapshot=100, n_rows=10).store
    [path] = tmp_path.glob("00000001.log")
    for row in (1, 2, 8):  # a payload ends where its slot begins
        damage(path, (int(store.arrays["table"][row, 0]) & 0xFFFFFFFF) - 2)
    found = damaged_slots(store, "table")
    assert sorted(found) == sorted(store.arrays["table"][[1, 2, 8], 0].tolist())
    assert all(str(path) in line for line in found.values())
    assert load_slots(store.log, np.setdiff1d(store.arrays["table"], [*found])).all()
    store.close()


def test_damage_is_listed_once_and_without_advice_for_python(tmp_path: Path) -> None:
    tiny_store(tmp_path, 13).close()
    for path in sorted(tmp_path.glob("*.log")):
        original = path.read_bytes()
        for position in range(0, len(original), max(1, len(original) // 20)):
            damage(path, position)
            found = verify(tmp_path)
            assert not [each for each in found for other in found if each is not other and each in other], found
            assert not any("repair" in each for each in found)
            path.write_bytes(original)
