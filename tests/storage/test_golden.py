"""Folders of all versions of the format stay readable; their bytes are frozen in ``golden``.

``python tests/writer.py golden FOLDER`` creates the folder of the current version, once, when the format changes.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import numpy as np
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
    buffer = writer.new_buffer(storage=folder, resume=True)
    writer.hold_that_it_is_whole(buffer)
    for number in range(writer.GOLDEN_STEPS + 1, writer.GOLDEN_STEPS + 40):
        writer.add_step(buffer, number)
    buffer.close()
    assert writer.hold_that_it_is_whole(load_checkpoint(folder, device="cpu")) == writer.GOLDEN_STEPS + 39


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
@pytest.mark.slow
def test_repair_of_each_version_keeps_intact_transitions(golden: Path, fast_path: Path) -> None:
    n_dropped = set()
    for path in sorted(golden.glob("*.log")):
        for position in np.random.default_rng(int(path.stem)).integers(0, path.stat().st_size, 4).tolist():
            folder = Path(shutil.copytree(golden, fast_path / f"{path.name}-{position}"))
            content = bytearray(path.read_bytes())
            content[position] ^= 4
            (folder / path.name).write_bytes(content)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # the report of damage
                buffer = load_checkpoint(folder, device="cpu", repair=True)
                resumed = writer.new_buffer(storage=folder, resume=True, repair=True)
            report, of_resumed = buffer.repair_report, resumed.repair_report
            assert of_resumed is not None
            assert report.dropped.tolist() == of_resumed.dropped.tolist()
            is_dropped = np.zeros((writer.ROWS, writer.N_ENVS), np.bool_)
            is_dropped[tuple(report.dropped.T)] = True
            last = buffer.pos + (writer.ROWS if buffer.full else 0)
            for each in (buffer, resumed):
                for number in range(max(last - writer.ROWS, 0) + 1, last + 1):
                    row = (number - 1) % writer.ROWS
                    kept = ~is_dropped[row]
                    assert (each.rewards[row][kept] == number).all()
                    np.testing.assert_array_equal(each.observations[row][kept], writer.observation(number)[kept])
                    expected = writer.next_observation(number)[kept]
                    np.testing.assert_array_equal(each.next_observations[row][kept], expected)
            n_dropped.add(len(report.dropped))
            writer.add_step(resumed, last + 1)
            resumed.close()
            load_checkpoint(folder, device="cpu")
    assert min(n_dropped) == 0
    assert 0 < max(n_dropped) <= writer.ROWS * writer.N_ENVS // 2


def test_current_version_has_a_golden_folder() -> None:
    assert [golden.name for golden in GOLDEN][-1] == f"version-{FORMAT_VERSION}"
