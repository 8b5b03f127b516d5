"""``SaveSession``: runs ``save_program.py``, and kills and stops processes of it while it saves."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from distributed.fault_session import Program
from distributed.save_program import SaveReport, SaveResult

__all__ = ["SaveSession"]

#: Seconds after which the program gives up a shard, and for which faults of these kinds stop one.
TIMEOUT = 2.0
STOPS = {"pause": 0.3 * TIMEOUT, "stop": 2.5 * TIMEOUT}


class SaveSession:
    """The program and the faults of its processes.

    :param folder: what the program continues from
    :param seed: of the times of faults
    :param options: further arguments of the program
    :param n_saves: saves between two faults, at most
    """

    def __init__(self, folder: Path, seed: int, *options: str, n_saves: int = 20) -> None:
        self.folder = folder
        self._most_saves = n_saves
        #: How often each kind of fault has happened.
        self.faults: Counter[str] = Counter()
        #: Of all runs of the program: saves, saves that have raised, and transitions that were compared.
        self.n_saves = self.n_failed = self.n_checked = 0
        self._random = random.Random(seed)
        self._options = [*options, "--timeout", str(TIMEOUT)]
        self._temporary = Path(tempfile.mkdtemp(prefix="ray-"))  # short, since it contains sockets
        self._programs = [self._start()]

    def _start(self) -> Program:
        return Program(
            self.folder, self._options, self._temporary, "distributed.save_program", lambda line: SaveReport(**line)
        )

    def wait_for_saves(self, n: int) -> SaveReport:
        """Wait for further saves."""
        program = self._programs[-1]
        n_before = program.report.n_saves if program.report else 0
        report: SaveReport = program.wait_for(lambda report: report.n_saves >= n_before + n)
        return report

    def cause(self, kind: str) -> None:
        """Cause a fault at a random time, while the program saves.

        :param kind: ``"pause"`` or ``"stop"`` to stop a shard for less or more than the timeout, or what to kill:
            ``"shard"``, ``"writer"``, ``"node"``, or ``"learner"``, after which the program is started again
        """
        report = self.wait_for_saves(self._random.randint(1, self._most_saves))
        time.sleep(self._random.uniform(0, 0.2))
        self.faults[kind] += 1
        if kind == "learner":
            program = self._programs[-1]
            program.process.kill()
            program.wait_for_end(with_agents=False)
            self._count(report)
            self._programs.append(self._start())
            return
        pids = {"writer": report.writers, "node": report.raylets}.get(kind, report.shards)
        running = [pid for pid in pids if pid and psutil.pid_exists(pid)]
        if not running:
            return
        pid = self._random.choice(running)
        with contextlib.suppress(ProcessLookupError):
            if kind not in STOPS:
                os.kill(pid, signal.SIGKILL)
                return
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPS[kind] * self._random.uniform(0.5, 1.5))
            os.kill(pid, signal.SIGCONT)

    def _count(self, report: SaveReport) -> None:
        self.n_saves += report.n_saves
        self.n_failed += report.n_failed
        self.n_checked += report.n_checked

    def stop(self) -> SaveResult:
        """Let the program end, and return its result after checking its counts."""
        self.wait_for_saves(2)
        program = self._programs[-1]
        result = SaveResult(**program.end())
        self._count(SaveReport(**program.lines[-2]))
        program.wait_for_end(with_agents=False)
        if "--storage" in self._options:
            assert result.n_lost == 0, result
        elif "--size" not in self._options:
            assert result.n_loaded + result.n_inserted - result.n_lost == result.n_transitions, result
        return result

    def close(self) -> None:
        """End all processes, and delete what Ray has written."""
        for program in self._programs:
            program.close()
        shutil.rmtree(self._temporary, ignore_errors=True)
