"""The examples with collectors run in their own processes, with arguments that make them short."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from programs import run_python

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 240  # a multiple of any run, to end one that hangs

pytestmark = pytest.mark.slow


def run(script: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_python([EXAMPLES / script, *options], {**os.environ, **variables}, timeout=TIMEOUT_S)


def test_apex_dqn_trains(tmp_path: Path) -> None:
    options = "--steps", "100", "--collectors", "1", "--envs", "2", "--storage", str(tmp_path / "replay")
    result = run("apex_dqn.py", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "100 steps" in result.stdout
    assert "collectors to shards" in result.stdout

    assert [path.name for path in (tmp_path / "replay" / "shard-0").glob("ring-*")] == ["ring-collector-0x2"]


def test_collected_transitions_are_exported(tmp_path: Path) -> None:
    minari = pytest.importorskip("minari", reason="a Minari that stores images without loss needs Python 3.11")
    datasets = tmp_path / "minari"
    result = run(
        "collect_dataset.py", "--steps", "80", "--envs", "1", "--folder", str(tmp_path / "recording"),
        MINARI_DATASETS_PATH=str(datasets),
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "80 transitions" in result.stdout
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(datasets))
        names = [*minari.list_local_datasets()]  # one of each collector; one of them may have taken all steps
        assert {*names} <= {f"pong/random-collector-{number}-v0" for number in range(2)}
        assert sum(minari.load_dataset(name).total_steps for name in names) == 80
