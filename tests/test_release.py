"""What the repository declares is consistent: versions, classifiers, supported versions and the CI workflow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import sb3_compressed

ROOT = Path(__file__).parent.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
SUPPORT = (ROOT / "docs/support.md").read_text(encoding="utf-8")
PYTHONS = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)


def test_citation_has_the_version_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == sb3_compressed.__version__


def test_workflow_and_nox_test_every_python_of_the_classifiers() -> None:
    matrix = WORKFLOW["jobs"]["tests"]["strategy"]["matrix"]
    pythons = matrix["python"]
    assert set(PYTHONS) <= set(pythons)
    assert {os.partition("-")[0] for os in matrix["os"]} == {"ubuntu", "macos", "windows"}
    sessions = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    assert f"python={pythons}".replace("'", '"') in sessions
    assert f"{pythons[0]} to {pythons[-1]}" in SUPPORT
    for untested in set(pythons) - set(PYTHONS):
        assert f"{untested} not yet" in SUPPORT


def test_workflow_runs_existing_targets_and_sessions() -> None:
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    sessions = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    commands = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
    made = re.findall(r"make ([\w-]+)", " ".join(commands))
    assert made
    for target in made:
        assert re.search(rf"^{target}:", targets, re.MULTILINE)
    for each in WORKFLOW["jobs"]["nox"]["strategy"]["matrix"]["include"]:
        assert f"def {each['session']}(" in sessions


def test_classifiers_promise_no_operating_system_that_is_untested() -> None:
    assert re.findall(r'"Operating System :: ([^"]+)"', PYPROJECT) == ["POSIX :: Linux"]
    for system in ("macOS", "Windows"):
        assert re.search(rf"^\| {system} \| should work \| no\b", SUPPORT, re.MULTILINE)


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("stable-baselines3", "Stable-Baselines3"), ("gymnasium", "Gymnasium"), ("numpy", "NumPy"),
        ("numba", "numba"), ("zstandard", "zstandard"), ("lz4", "lz4"), ("isal", "isal"), ("minari", "Minari"),
    ],
)  # fmt: skip
def test_supported_versions_are_the_declared_ones(package: str, name: str) -> None:
    declared = re.search(rf'"{package}(?:\[\w+\])?>=([\d.]+)', PYPROJECT)
    documented = re.search(rf"^\| {name}[^|]*\| ([\d.]+)", SUPPORT, re.MULTILINE)
    assert declared
    assert documented
    assert declared[1] == documented[1]
