"""Progress bars are shown exactly when requested."""

from __future__ import annotations

import sys
from io import StringIO

import pytest
from programs import fresh_outcome
from rich.console import Console

from sb3_compressed.common.progress import new_progress, progress_bar


@pytest.mark.parametrize("is_shown", [True, False])
def test_progress_bar_is_only_shown_if_requested(is_shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(3, "counting sheep", is_shown=is_shown) as advance:
        for _ in range(3):
            advance(1)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert ("counting sheep" in printed.err, "3/3" in printed.err) == (is_shown, is_shown)
    assert is_shown or printed.err == ""


def test_without_rich_nothing_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with progress_bar(3, "counting sheep", is_shown=True) as advance:
        advance(3)
    assert capsys.readouterr().err == ""


def test_in_a_notebook_without_ipywidgets_one_line_is_printed_at_the_end() -> None:
    done = fresh_outcome("""
import builtins, sys
class ZMQInteractiveShell:  # the name by which Rich recognizes notebooks
    pass
builtins.get_ipython = ZMQInteractiveShell
sys.modules["ipywidgets"] = None
from sb3_compressed.common.progress import progress_bar
with progress_bar(3, "counting sheep", is_shown=True) as advance:
    advance(3)
""")
    assert (done.returncode, done.stdout) == (0, "")
    assert "3/3" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "ipywidgets" not in done.stderr


def test_description_is_not_parsed_as_markup() -> None:
    progress = new_progress(is_shown=False)
    progress.add_task("recording [/frames].npy", total=1)
    written = StringIO()
    Console(file=written, width=200).print(progress.get_renderable())
    assert "recording [/frames].npy" in written.getvalue()
