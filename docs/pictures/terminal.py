"""Run a command in a terminal and save its final screen as an SVG.

python docs/pictures/terminal.py docs/pictures/advise.svg sb3-compressed advise PongNoFrameskip-v4
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
from itertools import groupby
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

N_ROWS = 200  # more than any command prints


def run(command: list[str], width: int) -> pyte.Screen:
    """Run a command in a new terminal and return its final screen."""
    screen = pyte.Screen(width, N_ROWS)
    stream = pyte.ByteStream(screen)
    parent, child = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment |= {"TERM": "xterm-256color", "COLUMNS": str(width), "LINES": "50"}
    with subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env=environment
    ) as process:
        os.close(child)
        while True:
            try:
                output = os.read(parent, 65536)
            except OSError:  # the command has closed the terminal
                break
            stream.feed(output)
    os.close(parent)
    if process.returncode:
        sys.exit(
            f"{shlex.join(command)} failed:\n"
            + "\n".join(line.rstrip() for line in screen.display).rstrip()
        )
    return screen


def to_svg(screen: pyte.Screen, command: str) -> str:
    """Return a screen as SVG."""
    lines = [Text.assemble(("$ ", "bold green"), (command, "bold"))]
    for row in range(N_ROWS):
        characters = [screen.buffer[row][column] for column in range(screen.columns)]
        runs = groupby(characters, _style)
        line = Text.assemble(
            *(("".join(character.data for character in run), style) for style, run in runs)
        )
        line.rstrip()
        lines.append(line)
    while not lines[-1].plain:
        lines.pop()
    console = Console(record=True, width=screen.columns, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    svg = console.export_svg(
        title="sb3-compressed", unique_id=f"terminal-{zlib.crc32(command.encode()):08x}"
    )
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # no fonts from the network


def _style(character: pyte.screens.Char) -> Style:
    return Style(
        color=_color(character.fg),
        bgcolor=_color(character.bg),
        bold=character.bold,
        italic=character.italics,
        reverse=character.reverse,
    )


def _color(name: str) -> str | None:
    """Return Rich's name of a pyte color: one of 16 names, or six hexadecimal digits."""
    if name == "default":
        return None
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    return name.replace("brown", "yellow").replace("bright", "bright_")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", type=Path, help="SVG to write")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    parser.add_argument("--width", type=int, default=80, help="columns (default: %(default)s)")
    arguments = parser.parse_args()
    command = shlex.join(arguments.command)
    arguments.picture.write_text(
        to_svg(run(arguments.command, arguments.width), command), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
