"""CPU times of this process and of those that Ray started for it, by what they do, and of all other programs."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from dataclasses import dataclass

import psutil

__all__ = ["CpuTimes", "OtherPrograms", "cpu_times"]

LEARNER, SYSTEM = "learner", "Ray"


@dataclass(frozen=True)
class CpuTimes:
    """Seconds of CPU time.

    :param by_role: those of ``"learner"``, which is this process, of each class of actors by its name, and of
        ``"Ray"``, which are the processes of Ray itself
    """

    by_role: dict[str, float]

    def since(self, before: CpuTimes) -> dict[str, float]:
        """Return the seconds of each role since an earlier measurement."""
        return {role: seconds - before.by_role.get(role, 0.0) for role, seconds in self.by_role.items()}


def cpu_times() -> CpuTimes:
    """Measure all processes that run now."""
    by_role: dict[str, float] = defaultdict(float)
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            times = process.cpu_times()
            role = LEARNER if process == own else _role(process.cmdline())
            by_role[role] += times.user + times.system
    return CpuTimes(dict(by_role))


def _role(command: list[str]) -> str:
    """Return the class of an actor from the title that Ray gives its process, such as ``ray::Shard.insert``."""
    title = command[0] if command else ""
    if not title.startswith("ray::") or title == "ray::IDLE":
        return SYSTEM
    return title.removeprefix("ray::").partition(".")[0].partition("(")[0]


class OtherPrograms:
    """How busy other programs keep the machine, which measurements should not be disturbed by."""

    def __init__(self) -> None:
        self._begin = time.perf_counter(), self._seconds()

    def cores(self) -> float:
        """Return how many cores they have used since, on average."""
        begin, seconds = self._begin
        return max(self._seconds() - seconds, 0.0) / (time.perf_counter() - begin)

    @staticmethod
    def _seconds() -> float:
        of_all = psutil.cpu_times()
        total = sum(getattr(of_all, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
        own = psutil.Process()
        for process in [own, *own.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                times = process.cpu_times()
                # Those of processes that have ended are counted by their parents.
                total -= times.user + times.system + times.children_user + times.children_system
        return total
