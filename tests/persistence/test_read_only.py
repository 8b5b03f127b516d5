"""Folders without write permission: reading works, writing raises, nothing is lost."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import programs
import pytest
import writer

from sb3_compressed import StorageError, load_checkpoint, save_checkpoint
from sb3_compressed.storage import verify

N_STEPS = 80


def give_up_privileges() -> None:
    """Drop the capability of the superuser to ignore the permissions of files."""
    if os.geteuid():
        return
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, nothing):
        raise OSError(ctypes.get_errno(), "capset")


def run(function: str, *arguments: Path) -> None:
    """Call a function of this file in another process, without privileges."""
    code = "import pathlib, sys; from persistence import test_read_only as here; here.give_up_privileges(); "
    code += f"here.{function}(*map(pathlib.Path, sys.argv[1:]))"
    programs.run(code, *arguments)


def add_steps(buffer: Any, first: int, last: int) -> None:
    for number in range(first, last + 1):
        writer.add_step(buffer, number)


@pytest.fixture(autouse=True)
def _has_permissions() -> None:
    if os.name == "nt" or (os.geteuid() == 0 and not sys.platform.startswith("linux")):
        pytest.skip("the superuser of this system can write everywhere")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with a buffer and without write permission."""
    folder = tmp_path / "kept"
    buffer = writer.new_buffer(storage=folder)
    add_steps(buffer, 1, N_STEPS)
    buffer.close()
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)


def read(folder: Path) -> None:
    """Read a folder in all ways."""
    buffer = load_checkpoint(folder)
    assert writer.hold_that_it_is_whole(buffer) == N_STEPS
    follower = load_checkpoint(folder, follow=True)
    assert writer.hold_that_it_is_whole(follower) == N_STEPS
    assert not follower.refresh()
    with pytest.raises(StorageError, match="reading only"):
        writer.add_step(follower, N_STEPS + 1)
    assert verify(folder) == []


def read_and_write(folder: Path, other: Path) -> None:
    """Read a folder, and try to write to it, in all ways."""
    read(folder)
    loaded = load_checkpoint(folder)
    writer.add_step(loaded, N_STEPS + 1)
    for way in (
        lambda: writer.new_buffer(storage=folder, storage_mode="resume"),
        lambda: writer.new_buffer(storage=folder, storage_mode="overwrite"),
        lambda: writer.new_buffer(storage=folder / "below"),
        lambda: save_checkpoint(loaded, folder),
        lambda: save_checkpoint(loaded, folder, overwrite=True),
        lambda: save_checkpoint(loaded, folder / "below"),
    ):
        with pytest.raises(PermissionError, match=str(folder)):
            way()
    assert writer.hold_that_it_is_whole(loaded) == N_STEPS + 1
    save_checkpoint(loaded, other)
    assert writer.hold_that_it_is_whole(load_checkpoint(other)) == N_STEPS + 1


def test_a_read_only_folder_can_be_read_but_not_written(folder: Path, tmp_path: Path) -> None:
    run("read_and_write", folder, tmp_path / "other")
    assert writer.hold_that_it_is_whole(load_checkpoint(folder)) == N_STEPS


def test_buffer_that_follows_a_folder_is_read_only(tmp_path: Path) -> None:
    """Writes would be lost with the next refresh."""
    buffer = writer.new_buffer(storage=tmp_path)
    add_steps(buffer, 1, 5)
    follower: Any = load_checkpoint(tmp_path, follow=True, device="cpu")
    for name in ("actions", "rewards", "dones", "timeouts"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(follower, name)[0] = 1
    with pytest.raises(StorageError, match="reading only"):
        follower.flush()
    add_steps(buffer, 6, 9)
    assert follower.refresh()
    assert writer.hold_that_it_is_whole(follower) == 9
    buffer.close()
