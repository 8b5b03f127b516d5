"""Output is legible on all terminals."""

from __future__ import annotations

import re

import pytest

from sb3_compressed.cli.output import print_result, python_code


def test_lines_of_code_are_not_cut(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"env = make_atari_env({'Breakout' * 20!r})"
    for forced in ("", "1"):
        monkeypatch.setenv("FORCE_COLOR", forced)
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "80")
        print_result({}, python_code(f"{line}\nenv.close()"), as_json=False)
        assert f"{line}\nenv.close()\n" in re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
