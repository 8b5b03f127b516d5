"""A process that has imported torch, SB3 and this package, and forks a test program from itself on request.

Each program is a process of its own, with arguments, environment, working directory and standard streams as if it had
been started by ``python -c``, ``python -m`` or ``python FILE``. It only skips the imports, which take seconds. What
such a program starts with ``sys.executable``, and Ray's workers, are forked as well: see :attr:`ForkServer.executable`.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn

__all__ = ["ForkServer", "ForkedProcess", "accepts", "fork_executables", "fork_server", "import_package"]

#: Beginnings of the names of variables that are read when a process starts or a module is imported. ``LD_LIBRARY_PATH``
#: is none of them: OpenCV changes it when it is imported, and with it in most processes.
READ_AT_START = (
    "COVERAGE", "LD_PRELOAD", "MALLOC", "MKL", "NUMBA", "OMP", "OPENBLAS", "PYTHON", "SB3_COMPRESSED", "TORCH"
)  # fmt: skip

#: Modules that the server has imported, or that Python imports first: of another folder, they would be missed.
SHADOWED = ("sb3_compressed", "sitecustomize.py", "usercustomize.py")
ROOT = Path(__file__).parent.parent
# Programs get one thread of torch each, as the tests have: there are as many processes as cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
#: Taken when the tests are collected, before any of them changes it.
ENVIRONMENT = dict(os.environ)

N_STREAMS = 3  # stdin, stdout, stderr
SIZE_NBYTES = 4
N_WAITING = 100  # requests at a time

#: An executable that takes the arguments of Python.
SCRIPT = """#!/bin/sh
exec '{}' -IS '{}' '{}' "$@"
"""


class ForkedProcess:
    """A forked program, with the methods of :class:`subprocess.Popen` that the tests use.

    :param pid: its process id
    :param status: socket from which its exit status is read, once
    :param stdin: the writing end of its standard input, if that is a pipe
    :param stdout: the reading end of its standard output, if that is a pipe
    """

    def __init__(self, pid: int, status: socket.socket, stdin: IO[str] | None, stdout: IO[str] | None) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or ``None`` while the program runs."""
        with contextlib.suppress(TimeoutError, subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the program has ended and return its exit code, negative for a signal."""
        if self.returncode is None:
            ready, _, _ = select.select([self._status], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(f"forked program {self.pid}", timeout or 0)
            self.returncode = int.from_bytes(_receive(self._status, SIZE_NBYTES), "little", signed=True)
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the program."""
        self.send_signal(signal.SIGKILL)

    def communicate(self) -> tuple[str | None, None]:
        """Close its input, read the rest of its output and wait for its end."""
        with self:
            if self.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self.stdin.close()
            return self.stdout.read() if self.stdout is not None else None, None

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for stream in (self.stdin, self.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self.wait()


class ForkServer:
    """The client's end: starts the server and requests programs from it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fork-server-"))  # short, since it contains a socket
        self._address = self._folder / "socket"
        self._lifetime, theirs = socket.socketpair()
        #: A path for ``sys.executable``, with which programs are forked.
        self.executable = self._folder / "python"
        self.executable.write_text(SCRIPT.format(sys.executable, __file__, self._folder), encoding="utf-8")
        self.executable.chmod(0o700)
        (self._folder / "environment.json").write_text(json.dumps(ENVIRONMENT))
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import fork_server; fork_server.main"
        with theirs, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._address))
            listener.listen(N_WAITING)
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"{code}({theirs.fileno()}, {listener.fileno()}, {str(self.executable)!r})"],
                cwd=ROOT,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), listener.fileno()],
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End the server, which ends when its connection is closed."""
        self._lifetime.close()
        self._process.wait()

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        streams: Sequence[int],
        cwd: Path | None = None,
    ) -> tuple[int, socket.socket]:
        """Fork a program.

        :param arguments: those of Python: ``-c CODE ...``, ``-m MODULE ...`` or ``FILE ...``
        :param environment: its whole environment
        :param streams: descriptors of its standard input, output and error
        :param cwd: its working directory, by default that of this process
        :return: its process id, and a socket for the argument ``status`` of :class:`ForkedProcess`
        """
        return _request(str(self._address), arguments, environment, streams, cwd or Path.cwd())


@cache
def fork_server() -> ForkServer | None:
    """Return the server of this process, ``None`` where processes with libraries loaded cannot be forked safely."""
    return ForkServer() if sys.platform == "linux" else None


def fork_executables() -> None:
    """Fork what this process starts with ``sys.executable`` from now on, such as Ray's workers."""
    if (server := fork_server()) is not None:
        with ForkedProcess(*server.start(["-c", ""], ENVIRONMENT, range(N_STREAMS)), None, None):
            sys.executable = str(server.executable)  # when the server has imported everything: Ray waits some seconds


def accepts(environment: Mapping[str, str], server: Mapping[str, str] = ENVIRONMENT) -> bool:
    """Return whether a forked program finds everything as if it had been started with its environment.

    :param server: the environment of the server
    """
    names = {name for name in {*environment, *server} if name.startswith(READ_AT_START)} - {"PYTHONPATH"}
    paths = (each.get("PYTHONPATH", "").split(os.pathsep) for each in (environment, server))
    folders = {Path(folder) for folder in set.difference(*map(set, paths)) if folder} - {ROOT}
    return all(environment.get(name) == server.get(name) for name in names) and not any(
        (folder / name).exists() for folder in folders for name in SHADOWED
    )


def _request(
    address: str, arguments: Sequence[str], environment: Mapping[str, str], streams: Sequence[int], cwd: Path
) -> tuple[int, socket.socket]:
    """Request a program from the server that listens at an address, see :meth:`ForkServer.start`."""
    blocked = [*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))]
    content = json.dumps(
        {"arguments": [*arguments], "environment": dict(environment), "cwd": str(cwd), "blocked": blocked}
    ).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
    connection.sendmsg([len(content).to_bytes(SIZE_NBYTES, "little")], ancillary)
    connection.sendall(content)
    return int.from_bytes(_receive(connection, SIZE_NBYTES), "little"), connection


def _receive(connection: socket.socket, nbytes: int) -> bytes:
    content = b""
    while len(content) < nbytes:
        part = connection.recv(nbytes - len(content))
        if not part:
            raise EOFError("the fork server has ended; its errors are on the standard error of the tests")
        content += part
    return content


def import_package() -> None:
    """Import every module of this package, which compiles all kernels or reads them from their cache.

    Modules that need something that cannot be imported are left out; tests/test_package.py imports all of them.
    """
    package = importlib.import_module("sb3_compressed")
    for module in pkgutil.walk_packages(package.__path__, "sb3_compressed."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)


# -- the server's end ----------------------------------------------------------------------------------------


def main(lifetime: int, listener: int, executable: str) -> None:
    """Serve; in each forked process, run the requested program instead and exit.

    :param lifetime: descriptor of a connection; the server ends when its other end is closed
    :param listener: descriptor of the socket that accepts requests
    :param executable: what programs start instead of Python
    """
    import __main__

    sys.modules["ray"] = None  # type: ignore[assignment]  # a process reads Ray's configuration when it imports Ray
    import_package()
    for name in [name for name in sys.modules if name == "ray" or name.startswith("sb3_compressed.distributed")]:
        del sys.modules[name]  # of these, only those that do not need Ray were imported
    sys.modules["torch"].set_num_threads(1)  # as in conftest.py
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    gc.collect()
    gc.freeze()  # no collection in a child touches, and thereby copies, the pages of what is imported
    request = _serve(socket.socket(fileno=lifetime), socket.socket(fileno=listener))
    if request is None:
        shutil.rmtree(Path(executable).parent, ignore_errors=True)
        return
    sys.executable = executable
    try:
        _run(request, __main__.__dict__)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except KeyboardInterrupt:
        traceback.print_exc()
        code = -signal.SIGINT
    except BaseException:  # as the interpreter does
        traceback.print_exc()
        code = 1
    _exit(code)


def _run(request: dict[str, Any], namespace: dict[str, Any]) -> None:
    kind, *arguments = request["arguments"]
    added = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:] = [*added, *(folder for folder in sys.path if folder not in added)]
    importlib.invalidate_caches()
    if kind == "-c":
        sys.argv = ["-c", *arguments[1:]]
        sys.path.insert(0, "")
        for name in ("fork_server", "sys"):
            del namespace[name]
        exec(compile(arguments[0], "<string>", "exec"), namespace)
    elif kind == "-m":
        sys.argv = arguments
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *arguments]
        sys.path.insert(0, str(Path(kind).parent))
        runpy.run_path(kind, run_name="__main__")


def _exit(code: int) -> NoReturn:
    """End the process as the interpreter does, but without freeing every object, which takes seconds."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        signal.raise_signal(-code)
    os._exit(code)


def _serve(lifetime: socket.socket, listener: socket.socket) -> dict[str, Any] | None:
    """Fork a process for each request; return it there, and ``None`` here when there are no more requests."""
    running: dict[int, socket.socket] = {}
    awake, wake = socket.socketpair()
    awake.setblocking(False)
    wake.setblocking(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    while True:
        waiting = {connection: pid for pid, connection in running.items()}
        ready, _, _ = select.select([lifetime, listener, awake, *waiting], [], [])
        if awake in ready:
            with contextlib.suppress(BlockingIOError):
                awake.recv(4096)
            _report_ended(running)
        if lifetime in ready:
            return None
        for each in {waiting[connection] for connection in ready if connection in waiting} & running.keys():
            os.kill(each, signal.SIGKILL)  # its client has ended
        if listener not in ready:
            continue
        connection, _ = listener.accept()
        request, streams = _receive_request(connection)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 and newer, of the threads that OpenBLAS stops before a fork
            pid = os.fork() if request else None
        if pid != 0:
            for stream in streams:
                os.close(stream)
        if pid is None:
            connection.close()
        elif pid:
            running[pid] = connection
            with contextlib.suppress(OSError):
                connection.sendall(pid.to_bytes(SIZE_NBYTES, "little"))
        else:
            break
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for opened in (lifetime, listener, connection, awake, wake, *running.values()):
        opened.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    return request


def _receive_request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a request, empty if its client was killed, and the descriptors of the standard streams."""
    size, streams, _, _ = socket.recv_fds(connection, SIZE_NBYTES, N_STREAMS)
    try:
        return json.loads(_receive(connection, int.from_bytes(size, "little")) or "{}"), streams
    except (EOFError, OSError):
        return {}, streams


def _report_ended(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with running.pop(pid) as connection, contextlib.suppress(OSError):  # nobody may wait for it any more
            connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(SIZE_NBYTES, "little", signed=True))


# -- instead of Python ---------------------------------------------------------------------------------------


def run_forked(folder: Path, command: list[str]) -> NoReturn:
    """Run what this process was started for in a forked one, or in Python where that would be another program.

    :param folder: that of the server
    :param command: the arguments of Python
    """
    arguments = command[1:] if command[:1] == ["-u"] else command
    is_program = bool(arguments) and (arguments[0] in ("-c", "-m") or not arguments[0].startswith("-"))
    if not is_program or not accepts(os.environ, json.loads((folder / "environment.json").read_text())):
        os.execv(sys.executable, [sys.executable, *command])
    _, status = _request(str(folder / "socket"), arguments, os.environ, range(N_STREAMS), Path.cwd())
    code = int.from_bytes(_receive(status, SIZE_NBYTES), "little", signed=True)
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no other handler
            signal.signal(-code, signal.SIG_DFL)
        signal.raise_signal(-code)
    sys.exit(code)


if __name__ == "__main__":
    run_forked(Path(sys.argv[1]), sys.argv[2:])
