"""Runs a command in a terminal and draws what that shows at the end.

python docs/pictures/terminal.py docs/pictures/demo.svg make demo
"""

from __future__ import annotations

import argparse
import io
import os
import pty
import re
import shlex
import subprocess
import sys
import zlib
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

N_ROWS = 200  # more than any command fills


def run(command: list[str], width: int) -> pyte.Screen:
    """Run a command in a terminal of its own and return the screen that it leaves."""
    screen = pyte.Screen(width, N_ROWS)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment |= {"TERM": "xterm-256color", "COLUMNS": str(width), "LINES": "50"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        while True:
            try:
                shown = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            stream.feed(shown)
    os.close(ours)
    if process.returncode:
        sys.exit(f"{shlex.join(command)} failed:\n" + "\n".join(line.rstrip() for line in screen.display).rstrip())
    return screen


def drawn(screen: pyte.Screen, command: str) -> str:
    """Return a picture of a screen, as SVG."""
    lines = [Text.assemble(("$ ", "bold green"), (command, "bold"))]
    for row in range(N_ROWS):
        characters = [screen.buffer[row][column] for column in range(screen.columns)]
        line = Text.assemble(*((each.data, _style(each)) for each in characters))
        line.rstrip()
        lines.append(line)
    while not lines[-1].plain:
        lines.pop()
    console = Console(record=True, width=screen.columns, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    svg = console.export_svg(title="sb3-compressed", unique_id=f"terminal-{zlib.crc32(command.encode()):08x}")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # pictures fetch nothing


def _style(character: pyte.screens.Char) -> Style:
    return Style(
        color=_colour(character.fg),
        bgcolor=_colour(character.bg),
        bold=character.bold,
        italic=character.italics,
        reverse=character.reverse,
    )


def _colour(name: str) -> str | None:
    """Return Rich's name of a colour: of eight, of eight bright ones, or any in hexadecimal digits."""
    if name == "default":
        return None
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    return name.replace("brown", "yellow").replace("bright", "bright_")


def main() -> None:
    """Draw what a command shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path, help="SVG to write")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    parser.add_argument("--width", type=int, default=100, help="columns (default: %(default)s)")
    arguments = parser.parse_args()
    command = shlex.join(arguments.command)
    arguments.picture.write_text(drawn(run(arguments.command, arguments.width), command), encoding="utf-8")


if __name__ == "__main__":
    main()
