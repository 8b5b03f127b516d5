"""``FaultSession``: runs ``fault_program.py``, kills processes of it, and checks what is left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from programs import environment_with

from distributed.fault_program import N_COLLECTORS, Report, Result
from distributed.ledger import Audit, audit, read_ledger, runs_of
from distributed.ray_logs import errors_of_ray
from sb3_compressed import CompressedNStepReplayBuffer, CompressedReplayBuffer
from sb3_compressed.distributed.checkpoint_manifest import read_manifest
from sb3_compressed.storage.log_files import has_log

__all__ = ["FaultSession", "Program", "audit_memory", "audit_shards"]

#: Far more seconds than anything takes: only to end what hangs.
DEADLINE = 300.0
#: Ray's agents end by themselves a minute after their node was killed; they have no memory of the program.
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
#: Programs of agents that are forked: the client of the fork server, which has them as an argument, waits for them.
AGENT_FILES = ("/dashboard/agent.py", "/runtime_env/agent/main.py")


class Program:
    """The program, in a session of its own, so that all processes of it can be found.

    :param folder: the argument of the program
    :param options: its other arguments
    :param temporary: the folder of Ray
    """

    def __init__(self, folder: Path, options: list[str], temporary: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        environment = environment_with(RAY_TMPDIR=str(temporary), RAY_DEDUP_LOGS="0")
        environment.pop("RAY_ADDRESS", None)
        self._log = open(folder / "log.txt", "a", encoding="utf-8")  # noqa: SIM115  # closed at its end
        self.process = subprocess.Popen(
            [sys.executable, "-m", "distributed.fault_program", str(folder), *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log, env=environment,
            start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.process.stdout, selectors.EVENT_READ)
        self._folder, self._text = folder, b""
        self.lines: list[Any] = []

    def read(self, timeout: float) -> None:
        """Read what the program has printed."""
        if not self._selector.select(timeout):
            return
        content = os.read(self.process.stdout.fileno(), 1 << 20)  # type: ignore[union-attr]
        if not content:
            time.sleep(min(timeout, 0.01))  # it has ended
        *lines, self._text = (self._text + content).split(b"\n")
        self.lines += [json.loads(line) for line in lines if line.startswith(b"{")]

    @property
    def report(self) -> Report | None:
        """The last report, ``None`` if there is none, or after the result."""
        return Report.from_json(self.lines[-1]) if self.lines and "shards" in self.lines[-1] else None

    def wait_for(self, condition: Callable[[Report], bool]) -> Report:
        """Return the first report that fulfils a condition.

        :raises AssertionError: if the program ends before, or nothing happens for long
        """
        deadline = time.monotonic() + DEADLINE
        while True:
            self.read(0.1)
            report = self.report
            if report is not None and condition(report):
                return report
            self.require(self.process.poll() is None, "the program has ended")
            self.require(time.monotonic() < deadline, f"nothing happens after {report}")

    def wait_for_progress(self, n_batches: int = 3) -> Report:
        """Wait until so many further batches of each buffer were sampled and compared."""
        before = self.report

        def has_progressed(report: Report) -> bool:
            return all(
                now is None or now.n_checked >= (then.n_checked if then else 0) + n_batches * size
                for now, then, size in (
                    (report.shards, before and before.shards, 32), (report.memory, before and before.memory, 16)
                )
            )  # fmt: skip

        return self.wait_for(has_progressed)

    def stop(self) -> Result:
        """End the training, and return the result."""
        (self._folder / "stop").touch()
        deadline = time.monotonic() + DEADLINE
        while self.process.poll() is None:
            self.read(0.1)
            self.require(time.monotonic() < deadline, "the program does not end")
        self.read(0)
        self.require(self.process.returncode == 0, f"the program has ended with {self.process.returncode}")
        return Result(**self.lines[-1])

    def processes(self) -> list[psutil.Process]:
        """Return the processes of the session that run."""
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(pid) == self.process.pid:
                    process = psutil.Process(pid)
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found

    def actors(self, name: str) -> list[psutil.Process]:
        """Return the processes of the actors of a class."""
        return [each for each in self.processes() if _title(each).startswith(f"ray::{name}")]

    def wait_for_end(self, *, with_agents: bool = True) -> None:
        """Wait until no process of the session runs.

        :param with_agents: whether to wait for Ray's agents as well
        """
        deadline = time.monotonic() + DEADLINE
        while left := [each for each in self.processes() if with_agents or not _is_agent(each)]:
            self.process.poll()
            self.require(time.monotonic() < deadline, f"these processes do not end: {list(map(_title, left))}")
            time.sleep(0.1)

    def require(self, condition: bool, message: str) -> None:
        """Raise with the end of the log unless a condition holds."""
        if not condition:
            log = (self._folder / "log.txt").read_text(encoding="utf-8", errors="replace")
            raise AssertionError(f"{message}\n{log[-8000:]}")

    def close(self) -> None:
        """End all processes of the session."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self._selector.close()
        self.process.stdout.close()
        self._log.close()


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return ""


def _is_agent(process: psutil.Process) -> bool:
    try:
        return any(each.startswith(AGENTS) or each.endswith(AGENT_FILES) for each in process.cmdline())
    except psutil.Error:  # it has ended
        return True


def is_sampled(report: Report) -> bool:
    """Return whether batches contain transitions of the present process of the first shard of each buffer."""
    return report.shards.n_sampled[0] > 0 and report.memory is not None and report.memory.n_sampled[0] > 0


class FaultSession:
    """The program and what was killed of it.

    :param folder: what the program continues from
    :param seed: of the times of kills
    :param options: further arguments of the program
    """

    def __init__(self, folder: Path, seed: int, *options: str) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        #: How often each kind of process was killed.
        self.kills: Counter[str] = Counter()
        self._options = list(options)
        #: The process ids that were killed since the program was started.
        self._killed: set[int] = set()
        self._temporary = Path(tempfile.mkdtemp(prefix="ray-"))  # short, since it contains sockets
        self._programs = [self._start()]

    def _start(self) -> Program:
        return Program(self.folder, self._options, self._temporary)

    @property
    def program(self) -> Program:
        """The program that runs."""
        return self._programs[-1]

    def kill(self, kind: str) -> None:
        """Kill a process with SIGKILL at a random time, while batches are sampled.

        :param kind: ``"collector"``, ``"shard"``, ``"memory shard"``, ``"node"``, or ``"learner"``, after which the
            shards are audited and the program is started again
        """
        program = self.program
        report = program.wait_for_progress()
        time.sleep(self.random.uniform(0, 0.3))  # so that it may do anything at the moment
        if kind == "learner":
            program.process.kill()
            program.wait_for_end(with_agents=False)
            self.kills[kind] += 1
            audit_shards(self.folder)
            if (self.folder / "saves" / "distributed.json").exists():
                assert read_manifest(self.folder / "saves").rings_in(self.folder / "saves")
            self._killed.clear()
            self._programs.append(self._start())
            return
        while not (pids := [pid for pid in self._pids(kind, report) if pid and psutil.pid_exists(pid)]):
            report = program.wait_for_progress(1)
        with contextlib.suppress(ProcessLookupError):
            pid = self.random.choice(pids)
            os.kill(pid, signal.SIGKILL)
            self.kills[kind] += 1
            self._killed.add(pid)

    def _pids(self, kind: str, report: Report) -> list[int]:
        """Return the process ids of a kind."""
        if kind == "collector":
            return [each.pid for each in self.program.actors("Collector")]
        if kind == "node":
            return report.raylets
        shards = report.memory if kind == "memory shard" else report.shards
        assert shards is not None
        return shards.pids

    def is_recovered(self, report: Report) -> bool:
        """Return whether everything that was killed runs again."""
        all_shards = filter(None, (report.shards, report.memory))
        pids = [*(pid for shards in all_shards for pid in shards.pids), *report.raylets]
        n_collectors = len({each.pid for each in self.program.actors("Collector")} - self._killed)
        # Shards of a killed node end with it, and are named until their successors have started.
        are_running = all(pid and pid not in self._killed and psutil.pid_exists(pid) for pid in pids)
        return n_collectors == N_COLLECTORS and are_running

    def stop_shards(self) -> None:
        """Stop a shard of each buffer for a while.

        Batches are then sampled from the others, and what is added for the one in memory is dropped and counted.
        """
        program = self.program
        # A shard without transitions cannot be late.
        before = program.wait_for(lambda report: self.is_recovered(report) and is_sampled(report))
        assert before.memory is not None
        pids = before.shards.pids[0], before.memory.pids[0]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        n_late, n_dropped = before.memory.n_late, before.memory.n_dropped
        late = program.wait_for(
            lambda report: (
                report.shards.n_late > before.shards.n_late
                and report.memory is not None
                and report.memory.n_late > n_late
                and report.memory.n_dropped > n_dropped
            )
        )
        for _ in range(3):
            program.wait_for_progress()
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        assert late.memory is not None
        n_sampled = late.shards.n_sampled[0], late.memory.n_sampled[0]
        program.wait_for(
            lambda report: (
                report.shards.n_sampled[0] > n_sampled[0]
                and report.memory is not None
                and report.memory.n_sampled[0] > n_sampled[1]
            )
        )

    def stop(self) -> Result:
        """End the training when everything runs again, and return its result."""
        self.program.wait_for(self.is_recovered)
        self.program.wait_for_progress()
        result = self.program.stop()
        self.program.wait_for_end()
        return result

    def __enter__(self) -> FaultSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.program.wait_for_end(with_agents=False)
        else:
            self.close()

    def require_nothing_left(self) -> None:
        """Wait until all processes have ended; raise if Ray has left shared memory or logged errors of actors."""
        for program in self._programs:
            program.wait_for_end()
        assert [path for path in self._temporary.rglob("*plasma*") if path.is_file()] == []
        errors = errors_of_ray(self._temporary)
        assert not errors, errors

    def close(self) -> None:
        """End all processes, and delete what Ray has written."""
        for program in self._programs:
            program.close()
        shutil.rmtree(self._temporary, ignore_errors=True)


def audit_shards(folder: Path) -> Audit:
    """Compare the shards in the folder of the program with what they have acknowledged; nothing may be missing."""
    rings = [
        CompressedReplayBuffer.from_checkpoint(path, device="cpu", num_threads=1)
        for path in sorted(folder.glob("shards/shard-*/ring-collector-*"))
        if has_log(path)  # a process may be killed after it has made the folder, before anything is in it
    ]
    return audit(rings, read_ledger(folder / "ledger"))


def audit_memory(folder: Path, n_acknowledged: int) -> Audit:
    """Check all transitions that were in memory when the program ended.

    :param n_acknowledged: how many were acknowledged since it began
    """
    n_present = 0
    for path in sorted(folder.glob("memory/cut-*/ring-*")):
        ring = CompressedNStepReplayBuffer.from_checkpoint(path, device="cpu", num_threads=1)
        assert not ring.full, "losses cannot be told from what was overwritten"
        n_present += sum(run.last - run.first for env in range(ring.n_envs) for run in runs_of(ring, env))
    return Audit(n_present, n_acknowledged, n_acknowledged - n_present)
