"""Every benchmark works with ``--smoke``, and its page can be written; its numbers are not verified."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import report
import rollouts
from measurement import Job
from programs import python_path, run_python
from session import PEERS
from session import run as run_jobs

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for results and recordings, shared so that each source is recorded once."""
    return tmp_path_factory.mktemp("benchmarks")


def run(script: str, folder: Path, *flags: str, peers: Path = Path("none"), fresh: bool = False) -> tuple[str, Any]:
    """Run a script and return its output and results.

    :param fresh: whether its processes must begin without imports
    """
    out = folder / "results" / f"{script}.json"
    done = run_python(
        [BENCHMARKS / f"{script}.py", "--smoke", "--peers", peers, "--out", out, *flags],
        {**os.environ, "XDG_CACHE_HOME": str(folder), "PYTHONPATH": python_path(BENCHMARKS.parent)},
        fresh=fresh,
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(out.read_text())
    assert written["benchmark"] == script
    assert written["machine"]["versions"][0]["torch"]
    return done.stdout, written["results"]


#: Scripts with their flags, a part of a row that they print, and whether their processes must begin without imports.
SCRIPTS = {
    "training": ([], "| DQN, tiny:Noise84-v0 | sb3-compressed `auto` |", False),
    "images": ([], "| Noise84-v0 |", False),
    "codec_comparison": (["--buffers", "auto", "extra:zstd3"], "| sb3-compressed `auto` |", False),
    "scale": ([], "| sb3-compressed `auto` | 400 |", False),
    "rollouts": (["--sources", "Pong", "--buffers", "auto"], "| sb3-compressed `auto` |", False),
    "device": (["--buffers", "auto"], "| batch, Noise84-v0, 8 |", False),
    "saving": ([], "| sb3-compressed, checkpoint |", False),
    "samplers": ([], "| 1,000 | sb3-compressed `prioritized` |", False),
    "dataset_formats": (["--source", "Pong"], "| sb3-compressed, in the folder |", False),
    # It starts Ray, whose actors a forked process would share.
    "distributed_buffer": ([], "| MsPacman | ", True),
}


def test_all_scripts_are_tested() -> None:
    assert SCRIPTS.keys() == {script.__name__ for script in report.SCRIPTS}


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_write_right_results_and_a_page(script: str, folder: Path, tmp_path: Path) -> None:
    if script == "dataset_formats":
        pytest.importorskip("minari", reason="a Minari that stores images without loss needs Python 3.11")
        if sys.platform != "linux":
            pytest.skip("resets the peak of the memory with /proc")
    flags, row, fresh = SCRIPTS[script]
    printed, results = run(script, folder, *flags, fresh=fresh)
    assert row in printed
    assert results
    for of_label in results.values():
        assert of_label
        for measured in of_label.values():
            assert measured.get("wrong", "") == measured.get("error", "") == ""
    module = next(each for each in report.SCRIPTS if each.__name__ == script)
    page = report.page(module, report.results_of(folder / "results", script), tmp_path)
    assert page.startswith(f"# {module.TITLE}\n\n")
    assert row in page
    assert not hasattr(module, "plot") or (tmp_path / f"{script}.svg").exists()


@pytest.mark.slow
def test_a_measurement_has_a_process_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``--smoke``."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    right = {"source": "Noise84-v0", "n_steps": 8, "rollouts": 2}
    jobs = [Job("right", "auto", right), Job("wrong", "auto", {**right, "source": "NoGame"})]
    found = run_jobs(rollouts.measure, jobs, Namespace(smoke=False, peers=Path("none")), rounds=2)
    assert len(found["right"]["auto"]["runs"]["add"]) == 2
    assert "NoGame" in found["wrong"]["auto"]["error"]


PEER_BUFFERS = ["extra:zstd-3", "extra:rle-jit", "torchrl:zlib-3", "torchrl:zstd-3", "torchrl:memmap", "cpprb"]


@pytest.mark.skipif(not PEERS.exists(), reason=f"the peers are not installed in {PEERS}: make peers")
def test_buffers_of_other_libraries_return_what_was_added(folder: Path) -> None:
    _, results = run("codec_comparison", folder, "--buffers", *PEER_BUFFERS, peers=PEERS)
    assert {name: found.get("wrong") for name, found in results["MsPacman"].items()} == dict.fromkeys(
        ["SB3", *PEER_BUFFERS], ""
    )


@pytest.mark.skipif(not PEERS.exists(), reason="the peers are not installed (make peers)")
def test_samplers_of_other_libraries_are_measured(folder: Path) -> None:
    _, results = run("samplers", folder, peers=PEERS)
    for of_label in [found for label, found in results.items() if label.startswith("items")]:
        assert of_label["cpprb"]["draw(256)"] > 0
        # TorchRL's extension loads with one version of PyTorch only.
        assert of_label["torchrl"].get("draw(256)", 0) > 0 or "is not available" in of_label["torchrl"]["error"]
