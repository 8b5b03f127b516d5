"""What Windows would refuse: files in ``under_rules/``, each in a process that follows its rules.

``make windows`` runs these and many other tests under the rules. Alone: ::

    PYTHONPATH=tests/windows WINDOWS_RULES=all python -m pytest -p windows_summary tests/windows/under_rules
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import python_path

HERE = Path(__file__).parent
FILES = sorted(path.name for path in (HERE / "under_rules").glob("test_*.py"))

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the rules of Windows are emulated on Linux, with /proc"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason="pathlib of Python 3.10 keeps functions of os of its own"),
]


@pytest.mark.parametrize("name", FILES)
def test_files_are_used_as_windows_allows(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "windows_summary", "-p", "no:cacheprovider", "-q", "--tb=short",
            "--basetemp", str(tmp_path / "tests"), str(HERE / "under_rules" / name),
        ],
        env={**os.environ, "PYTHONPATH": python_path(HERE), "WINDOWS_RULES": "all", "OMP_NUM_THREADS": "1"},
        cwd=HERE.parent.parent,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
