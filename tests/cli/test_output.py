"""Output is legible on all terminals."""

from __future__ import annotations

import pytest

from sb3_compressed.cli.output import print_result


def test_lines_are_verbatim_and_not_cut(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"env = make_atari_env({'Breakout' * 20!r})[0:1]"
    for forced in ("", "1"):
        monkeypatch.setenv("FORCE_COLOR", forced)
        monkeypatch.setenv("COLUMNS", "80")
        print_result({}, f"{line}\nenv.close()", as_json=False)
        assert capsys.readouterr().out == f"{line}\nenv.close()\n"
