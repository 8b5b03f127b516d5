"""Tests of ``available_memory``: the limits of cgroups of both versions, whatever their files contain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
import pytest

from sb3_compressed import CompressedArray
from sb3_compressed.common import memory

GB = 1 << 30


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    return tmp_path


def test_without_a_limit_it_is_that_of_the_machine(cgroup: Path) -> None:
    assert memory.available_memory() == pytest.approx(psutil.virtual_memory().available, rel=0.2)


@pytest.mark.parametrize(("prefix", "total"), [("", ""), ("memory/", "total_")])
def test_files_that_can_be_dropped_are_available(cgroup: Path, prefix: str, total: str) -> None:
    names = (
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes") if prefix else ("memory.max", "memory.current")
    )
    statistics = f"anon 5\n{total}inactive_file {GB // 4}\n{total}active_file {GB // 4}\n"
    write(cgroup, {names[0]: f"{GB}\n", names[1]: f"{GB - 1000}\n", f"{prefix}memory.stat": statistics})
    assert memory.available_memory() == 1000 + GB // 2


@pytest.mark.parametrize("limit", ["max\n", "-1\n", "", "many\n"])
def test_other_text_is_no_limit(cgroup: Path, limit: str) -> None:
    write(cgroup, {"memory.max": limit, "memory.current": "5\n", "memory.stat": "anon 5\n"})
    assert memory.available_memory() == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_an_array_larger_than_the_limit_is_not_decoded(cgroup: Path) -> None:
    array = CompressedArray((300_000, 1, 1_000), np.uint8, codec="zstd3")
    write(cgroup, {"memory.max": f"{GB // 8}", "memory.current": "0", "memory.stat": ""})
    with pytest.raises(MemoryError, match="memory"):
        array[:]
