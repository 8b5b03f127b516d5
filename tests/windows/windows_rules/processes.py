"""Rules about processes and signals."""

from __future__ import annotations

import asyncio  # noqa: F401  # this and others find what is hidden later when they are imported
import concurrent.futures.process  # noqa: F401
import errno
import logging.handlers  # noqa: F401
import multiprocessing
import multiprocessing.context
import multiprocessing.forkserver
import multiprocessing.managers
import multiprocessing.popen_fork
import multiprocessing.popen_spawn_posix
import multiprocessing.resource_tracker
import pathlib  # noqa: F401
import pty  # noqa: F401
import random  # noqa: F401
import selectors  # noqa: F401
import signal
import socket  # noqa: F401
import subprocess
import sys
import uuid  # noqa: F401
from typing import Any

from windows_rules.state import is_library, real, refused, replace_in_os, rules

__all__ = ["install"]

KILL = signal.SIGKILL
TERMINATE = signal.SIGTERM
#: SIGINT, SIGILL, SIGABRT, SIGFPE, SIGSEGV, SIGTERM
SIGNALS = (2, 4, 6, 8, 11, 15)


def _kill(pid: int, sig: int) -> None:
    if sig == 0:
        raise refused("missing", OSError, errno.EINVAL, "os.kill(pid, 0) is CTRL_C_EVENT on Windows")
    real["os.kill"](pid, KILL)  # TerminateProcess


def _terminate(self: Any) -> None:
    if self.poll() is None:
        real["os.kill"](self.pid, KILL)


def _send_signal(self: Any, sig: int) -> None:
    if self.poll() is None:
        if sig not in (TERMINATE, KILL):
            raise ValueError(f"Unsupported signal: {sig} [rule of Windows: missing]")
        real["os.kill"](self.pid, KILL)


def _terminate_worker(self: Any) -> None:
    if self.returncode is None:
        real["os.kill"](self.pid, KILL)


def _signal(number: int, handler: Any) -> Any:
    if int(number) not in SIGNALS and not is_library(sys._getframe(1).f_code.co_filename):
        raise ValueError("invalid signal value [rule of Windows: missing]")
    return real["signal.signal"](number, handler)


def install() -> None:
    """Replace the functions and methods, and remove start methods."""
    if "missing" in rules:
        real["signal.signal"] = signal.signal
        replace_in_os("kill", _kill)
        modules: Any = subprocess, signal, multiprocessing.popen_fork
        programs, signals, workers = modules
        programs.Popen.kill = programs.Popen.terminate = _terminate
        programs.Popen.send_signal = _send_signal
        signals.signal = _signal
        workers.Popen.kill = workers.Popen.terminate = _terminate_worker
    if "spawn" in rules:
        contexts: Any = multiprocessing.context
        spawn = contexts._concrete_contexts["spawn"]
        contexts._concrete_contexts = {"spawn": spawn}
        default = contexts._default_context
        default._default_context = default._actual_context = spawn
        contexts.DefaultContext.get_all_start_methods = lambda self: ["spawn"]
        methods: Any = multiprocessing
        methods.get_all_start_methods = default.get_all_start_methods
