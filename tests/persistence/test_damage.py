"""Damaged folders: any changed byte raises an error that names the file, or is harmless."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
import writer

from sb3_compressed import CompressedReplayBuffer, CorruptPayload, StorageError
from sb3_compressed.storage.array_store import ArrayStore

DAMAGES = int(os.environ.get("SB3_COMPRESSED_DAMAGES", "50"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with some segments, of a ring in its second lap."""
    monkeypatch.setattr(ArrayStore, "SEGMENT_NBYTES", 30_000)
    monkeypatch.setattr(ArrayStore, "MIN_SEGMENT_NBYTES", 30_000)
    buffer = writer.new_buffer(storage=tmp_path / "buffer")
    for number in range(1, 100):
        writer.add_step(buffer, number)
    buffer.close()
    assert len(list((tmp_path / "buffer").glob("*.log"))) > 2
    return tmp_path / "buffer"


def outcome(folder: Path) -> str:
    """Load a folder and resume it, and read all of it; return the kind of error."""
    message = ""
    try:
        writer.hold_that_it_is_whole(CompressedReplayBuffer.from_checkpoint(folder, device="cpu"))
        buffer = writer.new_buffer(storage=folder, storage_mode="resume")
        last = writer.hold_that_it_is_whole(buffer)
        buffer.close()
    except (CorruptPayload, StorageError) as error:
        message, kind = str(error), type(error).__name__
    if not message:
        assert last == 99, "nothing is lost silently"
        return "right"
    assert str(folder) in message, "the message names the folder"
    return kind


def test_any_flipped_bit_raises_or_is_harmless(folder: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    outcomes: Counter[str] = Counter()
    for _ in range(DAMAGES):
        shutil.rmtree(tmp_path / "damaged", ignore_errors=True)
        shutil.copytree(folder, tmp_path / "damaged")
        path = rng.choice(sorted((tmp_path / "damaged").glob("*.log")))
        content = bytearray(path.read_bytes())
        # Half of them in headers and the first records, since most of a file is payloads.
        length = len(content) if rng.random() < 0.5 else min(len(content), 256)
        content[rng.randrange(length)] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        outcomes[outcome(tmp_path / "damaged")] += 1
    assert {"CorruptStorage", "CorruptPayload"} <= {*outcomes}, outcomes


@pytest.mark.parametrize("way", ["truncated", "deleted", "swapped", "zeroed", "another's", "copied"])
def test_truncated_missing_or_exchanged_files_raise(way: str, folder: Path, tmp_path: Path) -> None:
    rng = random.Random(1)
    outcomes: Counter[str] = Counter()
    for index in range(len(list(folder.glob("*.log")))):
        damaged = tmp_path / "damaged"
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(folder, damaged)
        paths = sorted(damaged.glob("*.log"))
        path = paths[index]
        content = path.read_bytes()
        if way == "truncated":
            path.write_bytes(content[: rng.randrange(len(content) * 3 // 4)])
        elif way == "deleted":
            path.unlink()
        elif way == "swapped":
            path.write_bytes(paths[index - 1].read_bytes())
            paths[index - 1].write_bytes(content)
        elif way == "zeroed":
            start = rng.randrange(len(content) // 2)
            path.write_bytes(content[:start] + bytes(len(content) // 4) + content[start + len(content) // 4 :])
        elif way == "another's":
            other = writer.new_buffer(storage=tmp_path / "other", storage_mode="overwrite")
            writer.add_step(other, 1)
            other.close()
            path.write_bytes(next((tmp_path / "other").glob("*.log")).read_bytes())
        else:
            (damaged / "00009999.log").write_bytes(content)
        outcomes[outcome(damaged)] += 1  # right if the file is not used any more
    assert sum(outcomes.values()) > outcomes["right"], outcomes
