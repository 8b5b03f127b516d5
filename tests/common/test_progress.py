"""Progress bars are shown exactly when requested."""

from __future__ import annotations

import sys
from io import StringIO

import pytest
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


def test_description_is_not_parsed_as_markup() -> None:
    progress = new_progress(is_shown=False)
    progress.add_task("recording [/frames].npy", total=1)
    written = StringIO()
    Console(file=written, width=200).print(progress.get_renderable())
    assert "recording [/frames].npy" in written.getvalue()
