"""Progress bars: shown where they are asked for, and only there."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from sb3_compressed.progress import new_progress, progress_bar


@pytest.mark.parametrize("is_shown", [True, False])
def test_a_bar(is_shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(3, "counting sheep", is_shown=is_shown) as advance:
        for _ in range(3):
            advance(1)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert ("counting sheep" in printed.err, "3/3" in printed.err) == (is_shown, is_shown)
    assert is_shown or printed.err == ""


def test_what_is_done_is_said_to_the_letter() -> None:
    progress = new_progress(is_shown=False)
    progress.add_task("recording [/frames].npy", total=1)
    written = StringIO()
    Console(file=written, width=200).print(progress.get_renderable())
    assert "recording [/frames].npy" in written.getvalue()
