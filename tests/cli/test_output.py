"""Output is legible on all terminals."""

from __future__ import annotations

import pytest
from commands import set_terminal
from rich.table import Table

from sb3_compressed.cli.output import code, note, print_result

LINE = f"env = make_atari_env({'Breakout' * 20!r})[0:1]"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_code_is_verbatim(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_terminal:
        set_terminal(monkeypatch, 80)
    print_result({}, code(f"{LINE}\n    env.close()"), as_json=False)
    assert capsys.readouterr().out == f"{LINE}\n    env.close()\n"


def test_text_is_wrapped_between_words_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/data/[red]/" + "replay-buffers/" * 5
    text = f"1 damage in\n\n{path} of a buffer: :a: more\nthan one word"
    print_result({}, text, as_json=False)
    assert capsys.readouterr().out == f"{text}\n"
    set_terminal(monkeypatch, 20)
    print_result({}, text, as_json=False)
    note("Error: some more words, also")
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ["1 damage in", "", path, "of a buffer: :a:", "more", "than one word"]
    assert printed.err.splitlines() == ["Error: some more", "words, also"]


def test_tables_are_not_cut(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("buffer", "memory")
    table.add_row("a name that is longer than a line of the terminal", "1.5 GB")
    set_terminal(monkeypatch, 20)
    print_result({}, table, as_json=False)
    assert "a name that is longer than a line of the terminal │ 1.5 GB" in capsys.readouterr().out
