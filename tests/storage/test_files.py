"""Files are opened without following links, and only if they are regular files."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from sb3_compressed.errors import CorruptStorage
from sb3_compressed.storage.files import (
    create_regular_file,
    make_folder_durably,
    nbytes_on_disk,
    open_regular_file,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no FIFOs, and links need privileges")


def make_irregular(path: Path, kind: str) -> None:
    """Create something other than a regular file."""
    if kind == "a folder":
        path.mkdir()
    elif kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))  # the length of socket paths is limited
    else:
        target = {"a symbolic link": "target", "a link to a device": "/dev/zero", "a dangling link": "missing"}[kind]
        path.symlink_to(target)


IRREGULAR = ["a folder", "a FIFO", "a socket", "a symbolic link", "a link to a device", "a dangling link"]


@pytest.mark.parametrize("kind", IRREGULAR)
def test_irregular_files_are_not_opened_but_replaced(kind: str, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("content")
    path = tmp_path / "file"
    make_irregular(path, kind)
    modes: list[Any] = ["rb", "r+b", "a+b"]
    for mode in modes:
        with pytest.raises(CorruptStorage, match=rf"^{re.escape(str(path))} is not a regular file"):
            open_regular_file(path, mode)
    if kind != "a folder":
        with create_regular_file(path) as file:
            file.write(b"new")
        assert path.read_bytes() == b"new"
        assert not path.is_symlink()
    assert (tmp_path / "target").read_text() == "content"
    assert not (tmp_path / "missing").exists()


def test_files_are_opened_through_a_link_to_their_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"content")
    os.link(tmp_path / "folder" / "file", tmp_path / "folder" / "other name")
    (tmp_path / "link").symlink_to("folder")
    with open_regular_file(tmp_path / "link" / "other name") as file:
        assert file.read() == b"content"
    with open_regular_file(tmp_path / "link" / "file", "r+b") as file:
        file.seek(3)
        file.write(b"T")
    with open_regular_file(tmp_path / "link" / "file", "a+b") as file:
        file.write(b"!")
    assert (tmp_path / "folder" / "file").read_bytes() == b"conTent!"
    with pytest.raises(FileNotFoundError):
        open_regular_file(tmp_path / "missing")


def test_folder_below_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_folder_durably(tmp_path / "file" / "folder")


def test_holes_and_links_do_not_count_as_bytes_on_disk(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "link").symlink_to(__file__)
    assert nbytes_on_disk(tmp_path) < 1 << 16
    (tmp_path / "file").write_bytes(os.urandom(100_000))
    (tmp_path / "folder").mkdir()
    os.sync()
    assert 100_000 <= nbytes_on_disk(tmp_path) < 100_000 + (1 << 17)
