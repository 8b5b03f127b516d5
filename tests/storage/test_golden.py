"""Folders of all supported versions of the format stay readable; their bytes are frozen in ``golden``.

``python tests/writer.py golden FOLDER`` creates the folder of the current version, once, when the format changes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import writer

from sb3_compressed import load_checkpoint
from sb3_compressed.storage import verify
from sb3_compressed.storage.segment_header import FORMAT_VERSION

GOLDEN = sorted((Path(__file__).parent / "golden").glob("version-*"))


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_golden_folder_of_each_version_is_read_and_continued(golden: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(golden, tmp_path / "buffer"))
    assert verify(folder) == []
    assert writer.hold_that_it_is_whole(load_checkpoint(folder, device="cpu")) == writer.GOLDEN_STEPS
    buffer = writer.new_buffer(storage=folder, storage_mode="resume")
    writer.hold_that_it_is_whole(buffer)
    for number in range(writer.GOLDEN_STEPS + 1, writer.GOLDEN_STEPS + 40):
        writer.add_step(buffer, number)
    buffer.close()
    assert writer.hold_that_it_is_whole(load_checkpoint(folder, device="cpu")) == writer.GOLDEN_STEPS + 39


def test_current_version_has_a_golden_folder() -> None:
    assert [golden.name for golden in GOLDEN][-1] == f"version-{FORMAT_VERSION}"
