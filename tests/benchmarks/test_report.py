"""The report converts results to pages, plots and the table of the README."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import device
import pytest
import report
from session import RESULTS, ROOT
from tables import mean_table

import sb3_compressed

MINOR = report.minor(sb3_compressed.__version__)
NAMES = [script.__name__ for script in report.SCRIPTS]


def write_report(monkeypatch: pytest.MonkeyPatch, results: Path, folder: Path) -> tuple[dict[str, str], str]:
    """Write all pages and the README to a folder, and return them."""
    readme = folder / "README.md"
    readme.write_bytes((ROOT / "README.md").read_bytes())
    flags = {"results": results, "pages": folder / "pages", "readme": readme}
    monkeypatch.setattr(
        "sys.argv", ["report.py", *(part for name in flags for part in (f"--{name}", str(flags[name])))]
    )
    report.main()
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (folder / "pages").glob("*.md")}
    return pages, readme.read_text(encoding="utf-8")


def test_pages_are_those_that_the_report_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, readme = write_report(monkeypatch, RESULTS, tmp_path)
    assert pages == {path.stem: path.read_text(encoding="utf-8") for path in report.PAGES.glob("*.md")}, "make report"
    assert readme == (ROOT / "README.md").read_text(encoding="utf-8"), "make report"


@pytest.mark.parametrize("path", sorted(report.PAGES.glob("*.md")), ids=lambda path: path.stem)
def test_pages_are_of_this_minor_version_or_not_measured(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    script = f"benchmarks/{path.stem}.py"
    assert (ROOT / script).exists()
    if "Not yet measured" in page:
        assert f"with this version: `python {script}`" in page
    else:
        assert f"`{script}`" in page
        assert f"with version {MINOR}." in page.replace("\n", " ")


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_results_are_of_this_minor_version_and_have_a_page(path: Path) -> None:
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["benchmark"] == path.stem
    assert path.stem in NAMES
    assert report.minor(written["version"]) == MINOR


def test_results_of_other_versions_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = json.loads((RESULTS / "training.json").read_text(encoding="utf-8"))
    results = tmp_path / "results"
    results.mkdir()
    (results / "training.json").write_text(json.dumps({**written, "version": "0.2.0 at 1a2b3c4"}))
    pages, readme = write_report(monkeypatch, results, tmp_path)
    assert all("Not yet measured" in page for page in pages.values())
    assert "| SB3's buffer | 100% | 1.00x |" in readme


def test_the_readme_has_rows_for_a_gpu() -> None:
    assert all(device.NOT_MEASURED in row for row in device.readme_rows({}))
    turns = {"auto": {"time": 1.01, "reported": 0.04}, "auto@device": {"time": 0.9, "reported": 0.05}}
    rows = device.readme_rows({"DQN, recorded:MsPacman": turns})
    assert rows == [
        ["DQN, recorded:MsPacman, on a GPU", "4.0%", "", "1.01x", ""],
        ['DQN, recorded:MsPacman, on a GPU, `storage="device"`', "5.0%", "", "0.90x", ""],
    ]


def test_failed_and_wrong_buffers_are_marked() -> None:
    numbers: dict[str, Any] = {"growth": 1.0, "add": 1.0}
    of_label = {"SB3": numbers, "cpprb": {"error": "ended with -11: "}, "zstd3": {**numbers, "wrong": "1 observation"}}
    printed = mean_table({"Pong": of_label})
    assert "| cpprb | failed |" in printed
    assert "`zstd3` (**returns wrong data**) |" in printed
