"""Tests of ``IdleCores``, and of the limits of what this process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sb3_compressed.common import cores
from sb3_compressed.common.cores import IdleCores, cpu_quota


@pytest.mark.parametrize(
    ("text", "expected"),
    [("50000 100000\n", 0.5), ("max 100000\n", None), ("50000 0\n", None), ("", None), ("some text here\n", None)],
)
def test_limits_of_cgroups(text: str, expected: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cpu.max"
    path.write_text(text)
    monkeypatch.setattr(cores, "CPU_MAX", path)
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert cpu_quota() == (expected or n_cores)


@pytest.mark.parametrize(("idle", "quota", "expected"), [(1.0, 2.0, True), (0.0, 2.0, False), (1.0, 0.1, False)])
def test_a_core_is_idle_if_the_machine_and_the_limit_have_one(
    idle: float, quota: float, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("sb3_compressed.common.cores.time.monotonic", lambda: now[0])
    monkeypatch.setattr("sb3_compressed.common.cores.time.process_time", lambda: 0.0)
    monkeypatch.setattr(cores, "_idle_seconds", lambda: idle * now[0])
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    idle_cores = IdleCores()
    assert idle_cores.has_any() is None, "nothing was measured yet"
    now[0] += 10
    assert idle_cores.has_any() is expected
