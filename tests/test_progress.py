"""Progress bars: shown where they are asked for, and only there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sb3_compressed.progress import progress_bar


@pytest.mark.parametrize("is_shown", [True, False])
def test_a_bar(is_shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(is_shown, 3, "counting", "sheep") as bar:
        for _ in range(3):
            bar.update(1)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert ("counting: 100%" in printed.err, "sheep" in printed.err) == (is_shown, is_shown)
    assert is_shown or printed.err == ""


def test_without_tqdm_one_that_is_asked_for_says_what_to_install() -> None:
    code = """
import sys
sys.modules["tqdm"] = None  # as if it were not installed
from sb3_compressed.progress import progress_bar
with progress_bar(False, 3, "counting") as bar:
    bar.update(1)
print("hidden")
progress_bar(True, 3, "counting")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "hidden\n")
    assert "pip install tqdm" in done.stderr
