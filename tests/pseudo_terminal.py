"""Programs in a pseudo-terminal, with what a person would see on it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyte
from fork_server import ForkedProcess, fork_server
from programs import TIMEOUT_S, Process, environment_with


@dataclass
class Outcome:
    """What a program left in its terminal.

    :param returncode: its exit code
    :param lines: everything it printed, as it was last on the screen or when it scrolled out
    :param is_cursor_visible: whether the cursor is
    :param is_mode_unchanged: whether the terminal echoes and handles line ends as before
    """

    returncode: int
    lines: list[str]
    is_cursor_visible: bool
    is_mode_unchanged: bool


def run_in_terminal(
    code: str,
    width: int = 80,
    height: int = 40,
    on_output: Callable[[pyte.Screen, Process], None] | None = None,
    fresh: bool = False,
) -> Outcome:
    """Run a program in a new terminal until it ends.

    :param code: Python code
    :param width: columns of the terminal
    :param height: lines of the terminal
    :param on_output: called with the screen and the process after each output
    :param fresh: whether it needs an interpreter that has imported nothing
    """
    screen = pyte.HistoryScreen(width, height, history=10_000)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    mode = termios.tcgetattr(theirs)
    environment = {**environment_with(), "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        environment.pop(name, None)
    command = [sys.executable, "-c", code]
    server = None if fresh else fork_server()
    process: Process
    if server is not None and server.accepts(environment):
        process = ForkedProcess(*server.start(command[1:], environment, [theirs] * 3), None, None)
    else:
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, text=True)
    with process:
        try:
            end = time.monotonic() + TIMEOUT_S
            while time.monotonic() < end:
                if select.select([ours], [], [], 0.1)[0]:
                    stream.feed(os.read(ours, 1 << 16))
                    if on_output is not None:
                        on_output(screen, process)
                elif process.poll() is not None:
                    break
            else:
                raise TimeoutError("\n".join(screen.display))
        except BaseException:
            process.kill()
            raise
        is_mode_unchanged = termios.tcgetattr(theirs) == mode
    for descriptor in (ours, theirs):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    history = ["".join(line[column].data for column in range(width)) for line in screen.history.top]
    lines = [line.rstrip() for line in [*history, *screen.display]]
    returncode = process.wait()
    return Outcome(returncode, lines, not screen.cursor.hidden, is_mode_unchanged)
