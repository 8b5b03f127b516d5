"""Folders that earlier versions of the format wrote stay readable: what is in them is frozen here.

``python tests/writer.py golden FOLDER`` makes the folder of the present version, once, when the format changes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import writer

from sb3_compressed import load_checkpoint, verify
from sb3_compressed.storage.segment import FORMAT_VERSION

GOLDEN = sorted((Path(__file__).parent / "golden").glob("version-*"))


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_a_folder_of_each_version_is_read_and_gone_on_with(golden: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(golden, tmp_path / "buffer"))
    assert verify(folder) == []
    assert writer.hold_that_it_is_whole(load_checkpoint(folder, device="cpu")) == writer.GOLDEN_STEPS
    buffer = writer.new_buffer(storage=folder, resume=True)
    writer.hold_that_it_is_whole(buffer)
    for number in range(writer.GOLDEN_STEPS + 1, writer.GOLDEN_STEPS + 40):
        writer.add_step(buffer, number)
    buffer.close()
    assert writer.hold_that_it_is_whole(load_checkpoint(folder, device="cpu")) == writer.GOLDEN_STEPS + 39


def test_there_is_one_of_the_present_version() -> None:
    assert [golden.name for golden in GOLDEN][-1] == f"version-{FORMAT_VERSION}"
