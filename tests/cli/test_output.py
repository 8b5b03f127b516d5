"""Output is legible on all terminals."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from rich.console import Console

from sb3_compressed.cli.output import print_result, python_code


def test_code_is_printed_in_colors_of_the_terminal() -> None:
    written = StringIO()
    Console(file=written, force_terminal=True, color_system="256", _environ={}).print(
        python_code('from sb3 import DQN\nmodel = DQN("CnnPolicy", env, buffer_size=1_000)  # a comment\n')
    )
    parts = re.findall(r"\x1b\[([0-9;]*)m([^\x1b]*)", written.getvalue())
    parameters = {int(number) for codes, text in parts if text.strip() for number in codes.split(";") if number}
    assert parameters & set(range(31, 37)), "it is highlighted"
    # White, black, backgrounds or fixed colors of the palette vanish on some backgrounds.
    assert not parameters & {30, 37, 38, *range(40, 49), 90, 97}
    assert "DQN" in written.getvalue()


def test_lines_of_code_are_not_cut(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"env = make_atari_env({'Breakout' * 20!r})"
    for forced in ("", "1"):
        monkeypatch.setenv("FORCE_COLOR", forced)
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "80")
        print_result({}, python_code(f"{line}\nenv.close()"), as_json=False)
        assert f"{line}\nenv.close()\n" in re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
