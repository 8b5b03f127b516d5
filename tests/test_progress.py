"""Progress bars: shown where they are asked for, and only there."""

from __future__ import annotations

import pytest

from sb3_compressed.progress import progress_bar


@pytest.mark.parametrize("is_shown", [True, False])
def test_a_bar(is_shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(3, "counting sheep", is_shown=is_shown) as advance:
        for _ in range(3):
            advance(1)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert ("counting sheep" in printed.err, "3/3" in printed.err) == (is_shown, is_shown)
    assert is_shown or printed.err == ""
