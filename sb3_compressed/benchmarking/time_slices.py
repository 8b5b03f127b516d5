"""Run several measurements at the same time, of which only one is active at any moment."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence

from sb3_compressed.benchmarking.measurement import Job, Measurement, json_arguments, measurement_of

__all__ = ["pause", "run_in_time_slices"]

#: An environment variable: the process that runs this one and others in time slices.
PARENT = "SB3_COMPRESSED_PARENT"
#: Requests a signal to this process when its parent ends, see ``man prctl``. It would be stopped for ever.
PR_SET_PDEATHSIG = 1


def pause() -> None:
    """Stop this process with all of its threads, until :func:`run_in_time_slices` continues it.

    Without effect in a process that it has not started, and on systems that cannot stop a process; there, processes run
    one after the other.
    """
    parent = os.environ.get(PARENT)
    if parent is None or not hasattr(signal, "SIGSTOP"):
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the process that would continue this one has ended")
    os.setpgrp()  # fg after Ctrl-Z continues all processes of a group
    # To this thread: a signal to the process may reach another one, and this one would go on for a moment.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def run_in_time_slices(
    command: Callable[[Job], list[str]],
    jobs: Sequence[Job],
    env: dict[str, str] | None = None,
    on_slice: Callable[[Job], object] = lambda job: None,
) -> list[Measurement]:
    """Run jobs at the same time, of which only one is active at any moment; return their measurements.

    A job is active until it calls :func:`pause`, then the next one is. So a machine that becomes slower does so for all
    of them. When each has had its time slice, their order is reversed.

    :param command: returns the command of a job without its last argument, the job's name and arguments as JSON; the
        last line of its output is the measurement as JSON
    :param env: environment variables of the processes, by default those of this one
    :param on_slice: called with a job when its time slice begins
    """
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_Process(job, command(job), env)) for job in jobs]
        active = processes
        while active:
            waiting, active = active[::-1], []
            for process in waiting:
                on_slice(process.job)
                if process.run_until_pause():
                    active.append(process)
        return [process.measurement() for process in processes]


class _Process:
    """A process that is stopped between its time slices. It is killed if it has not ended when this is closed."""

    def __init__(self, job: Job, command: list[str], env: dict[str, str] | None) -> None:
        self.job = job
        self._command = [*command, json_arguments(job)]
        self._env = {**(os.environ if env is None else env), PARENT: str(os.getpid())}
        # Not pipes, which would be full sometime.
        self._out = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by __exit__
        self._err = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._out.close()
        self._err.close()

    def run_until_pause(self) -> bool:
        """Start or continue it, and wait until it pauses or ends; return whether it has paused."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdout=self._out, stderr=self._err, text=True, env=self._env
            )
        else:
            self._process.send_signal(signal.SIGCONT)
        if not hasattr(signal, "SIGSTOP"):
            self._process.wait()
        if self._process.returncode is not None:  # such as one that was killed while it was stopped
            return False
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return True
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return False

    def measurement(self) -> Measurement:
        """Return what it has measured, or its error, after its end."""
        assert self._process is not None
        self._out.seek(0)
        self._err.seek(0)
        return measurement_of(self._process.returncode, self._out.read(), self._err.read())
