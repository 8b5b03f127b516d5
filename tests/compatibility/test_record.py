"""What this version records is loaded again, as later versions will load it."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import TESTS, environment_with, python_path, run_python

HERE = Path(__file__).parent


@pytest.mark.slow
def test_recorded_files_pass_the_tests_of_files(tmp_path: Path) -> None:
    """Each in a process of its own, so that nothing of the recording is left when the files are loaded."""
    environment = environment_with(
        PYTHONPATH=python_path(TESTS.parent, TESTS), SB3_COMPRESSED_FIXTURES=str(tmp_path / "fixtures")
    )
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'tests'}"]
    for arguments in ([HERE / "record.py", tmp_path / "fixtures" / "this"], [*tests, HERE / "test_fixtures.py"]):
        done = run_python(arguments, environment, fresh=True)
        assert done.returncode == 0, done.stdout + done.stderr
