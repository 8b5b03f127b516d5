"""Every benchmark works with ``--smoke``; its numbers are not verified."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import python_path, run_python
from session import PEERS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SAMPLES = {"sample(32)", "sample(256)", "sample(1024)"}


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


def assert_timed(measured: dict[str, Any], others: set[str], timed: set[str]) -> None:
    """Assert that there are numbers, and for calls also quartiles and page faults."""
    quartiles, faults = measured.pop("quartiles"), measured.pop("faults")
    assert measured.keys() == {*others, *timed}
    assert quartiles.keys() == faults.keys() == timed
    for key in timed:
        first, third = quartiles[key]
        assert 0 < first <= measured[key] <= third
        assert faults[key] >= 0


@pytest.mark.slow
def test_replay_benchmark_writes_its_results(folder: Path) -> None:
    printed, results = run("replay", folder, "--sources", "Pong", "--buffers", "auto", "extra:zstd3")
    assert "| sb3-compressed `auto` |" in printed
    assert results["Pong"].keys() == {"SB3", "auto"}, "missing peers are skipped"
    for measured in results["Pong"].values():
        assert measured.pop("wrong") == ""
        assert_timed(measured, {"rss"}, {"add", *SAMPLES})
    assert len(list(folder.glob("sb3-compressed/Pong-*.zst"))) == 1, "recorded once"


@pytest.mark.slow
def test_image_benchmark_measures_the_fixed_cost_and_another_version(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(BENCHMARKS.parent / "sb3_compressed", tmp_path / "sb3_compressed")
    flags = ["--sources", "Noise84-v0", "Unknown-v9", "--package", f"copy={tmp_path}"]
    printed, results = run("images", folder, *flags, fresh=True)
    assert "| sb3-compressed `auto` (copy) |" in printed
    assert results["Noise84-v0"].keys() == {"SB3", "auto#copy"}, "unknown environments are skipped"
    for measured in results["Noise84-v0"].values():
        assert measured.pop("wrong") == ""
        assert_timed(measured, {"rss", "growth"}, {"add", *SAMPLES})
    [fixed] = [of_label for label, of_label in results.items() if label != "Noise84-v0"]
    assert fixed["auto#copy"]["fixed"] > fixed["SB3"]["fixed"]


@pytest.mark.slow
def test_distributed_benchmark_writes_its_results(folder: Path) -> None:
    # One part, since the others start more of the same clusters. The script measures the actors among its own
    # descendants, which forked ones would not be.
    printed, results = run("distributed_buffer", folder, "--parts", "bytes", fresh=True)
    assert "| MsPacman | " in printed
    assert not any("error" in measured for of_label in results.values() for measured in of_label.values())
    measured = results["bytes, MsPacman"]
    assert measured["distributed"]["to shard"] < measured["LZ4"]["to shard"] < measured["distributed"]["raw"]
    assert measured["distributed"]["to learner(256)"] < measured["LZ4"]["to shard"]


@pytest.mark.slow
def test_startup_benchmark_writes_its_results(folder: Path) -> None:
    printed, results = run("startup", folder, fresh=True)
    assert "| import numba |" in printed
    assert len(results) == 5
    assert all(row.keys() == {"first process, s", "others, s", "memory"} for row in results.values())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resets the peak of the memory with /proc")
def test_formats_benchmark_writes_its_results(folder: Path) -> None:
    pytest.importorskip("minari", reason="a Minari that stores images without loss needs Python 3.11")
    printed, results = run("formats", folder, "--source", "Pong")
    assert "| sb3-compressed, in the folder |" in printed
    assert results["write"].keys() == {"minari", "minari frames", "ours"}
    readers = ["minari episodes", "minari array", "minari frames", "ours memory", "ours folder"]
    assert [*results["read"]] == readers
    for name in readers:
        assert (results["read"][name]["share"], results["read"][name]["wrong"]) == (1, "")
    assert all(found["wrong"] == "" for found in results["import"].values())


#: Scripts with their flags, and a part of a row that they print.
SCRIPTS = {
    "rollout": (["--sources", "Pong", "--buffers", "auto"], "| sb3-compressed `auto` |"),
    "published": (["--codecs", "zstd-5"], "| `zstd-5` |"),
    "scale": (["--buffers", "auto"], "| sb3-compressed `auto` | 400 | "),
    "sequence_sampling": (["--sources", "Pong", "--buffers", "auto"], "| 2,000 | sb3-compressed `auto` |"),
    "persistence": (["--source", "Pong"], "| 800 | sb3-compressed, checkpoint |"),
    "training": ([], "| yes |"),
    "alternating_buffers": ([], "| DQN, tiny:Noise84-v0"),
    "device_batches": ([], "Noise84-v0, 8"),
    "samplers": ([], "| 1,000 | sb3-compressed `prioritized` |"),
}


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_benchmarks_print_rows_and_write_right_results(script: str, folder: Path) -> None:
    flags, row = SCRIPTS[script]
    printed, results = run(script, folder, *flags)
    assert row in printed
    assert results
    for of_label in results.values():
        assert of_label
        for measured in of_label.values():
            assert measured.get("wrong", "") == measured.get("error", "") == ""


PEER_BUFFERS = ["extra:zstd-3", "extra:rle-jit", "torchrl:zlib-3", "torchrl:zstd-3", "cpprb"]


@pytest.mark.skipif(not PEERS.exists(), reason=f"the peers are not installed in {PEERS}: make peers")
def test_buffers_of_other_libraries_return_what_was_added(folder: Path) -> None:
    _, results = run("roundtrip", folder, "--buffers", *PEER_BUFFERS, peers=PEERS)
    assert results["Breakout"] == {name: {"wrong": ""} for name in ["SB3", *PEER_BUFFERS]}


@pytest.mark.skipif(not PEERS.exists(), reason="the peers are not installed (make peers)")
def test_samplers_of_other_libraries_are_measured(folder: Path) -> None:
    _, results = run("samplers", folder, "--buffers", "prioritized", "cpprb", "torchrl:trees", peers=PEERS)
    for of_label in results.values():
        assert of_label["cpprb"]["draw(256)"] > 0
        # TorchRL's extension loads with one version of PyTorch only.
        trees = of_label["torchrl:trees"]
        assert trees.get("draw(256)", 0) > 0 or "ImportError" in trees["error"]
