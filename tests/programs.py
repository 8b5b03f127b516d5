"""Programs in processes of their own: what they print is what is tested.

Where it can, a program is forked from a process that has imported the libraries already; see ``fork_server.py``.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fork_server import ForkedProcess, accepts, fork_server

TESTS = Path(__file__).parent
Process = subprocess.Popen[str] | ForkedProcess
STDERR = 2
TIMEOUT_S = 300  # far from what any takes: only to end one that hangs


def python_path(*folders: Path) -> str:
    """Return the current ``PYTHONPATH`` with these folders prepended."""
    return os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH")]))


def environment_with(**changes: str) -> dict[str, str]:
    """Return the environment of a program that can import the helpers of the tests."""
    return {**os.environ, "PYTHONPATH": python_path(TESTS), **changes}


def run_python(
    arguments: Sequence[object],
    environment: Mapping[str, str],
    *,
    timeout: float | None = TIMEOUT_S,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a Python program until it ends.

    :param arguments: those of Python: ``-c CODE ...``, ``-m MODULE ...`` or ``FILE ...``
    :param environment: its whole environment
    :param timeout: seconds after which it is killed
    :param fresh: whether it needs an interpreter that has imported nothing
    """
    command = [sys.executable, *map(str, arguments)]
    server = None if fresh else fork_server()
    if server is None or not accepts(environment):
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            env=environment,
            timeout=timeout,
            check=False,
        )
    # Not files, whose size some programs limit.
    (out, their_out), (err, their_err) = os.pipe(), os.pipe()
    with open(os.devnull) as nothing:
        started = server.start(command[1:], environment, [nothing.fileno(), their_out, their_err])
    for descriptor in (their_out, their_err):
        os.close(descriptor)
    with ForkedProcess(*started, None, None) as process:
        try:
            printed = _read_all([out, err], timeout)
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, code, *printed)


def _read_all(descriptors: list[int], timeout: float | None) -> list[str]:
    """Read several pipes until each is closed, and close them."""
    content = dict.fromkeys(descriptors, b"")
    end = None if timeout is None else time.monotonic() + timeout
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as opened:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
            opened.callback(os.close, descriptor)
        while selector.get_map():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("a forked program", timeout or 0)
            for key, _ in selector.select(left):
                part = os.read(key.fd, 1 << 16)
                content[key.fd] += part
                if not part:
                    selector.unregister(key.fd)
    return [content[descriptor].decode().replace("\r\n", "\n") for descriptor in descriptors]


def outcome(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program and return its exit code and output."""
    return run_python(["-c", code, *arguments], environment_with(**environment))


def fresh_outcome(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program as ``outcome`` does, in an interpreter that has imported nothing yet."""
    return run_python(["-c", code, *arguments], environment_with(**environment), fresh=True)


def run(code: str, *arguments: object, **environment: str) -> str:
    """Run a program, assert that it succeeds, and return what it printed."""
    done = outcome(code, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(code: str, *arguments: object) -> Process:
    """Start a program of which the lines are read while it runs, or which is killed."""
    server, environment = fork_server(), environment_with()
    command = [sys.executable, "-c", code, *map(str, arguments)]
    if server is None or not accepts(environment):
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", env=environment
        )
    (their_input, our_input), (our_output, their_output) = os.pipe(), os.pipe()
    process = ForkedProcess(
        *server.start(command[1:], environment, [their_input, their_output, STDERR]),
        open(our_input, "w", encoding="utf-8"),  # noqa: SIM115  # closed with the process
        open(our_output, encoding="utf-8"),  # noqa: SIM115
    )
    for descriptor in (their_input, their_output):
        os.close(descriptor)
    return process
