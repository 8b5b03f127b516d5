"""From measurements to advice: what each codec would take for a whole buffer, and which one is worth it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sb3_compressed.benchmarking.runner import Measurement
from sb3_compressed.benchmarking.sb3_adapters import SB3

__all__ = ["Advice", "Cost", "advise", "costs"]

#: A buffer is worth changing for at most this part of SB3's memory.
WORTH = 0.5


@dataclass(frozen=True)
class Cost:
    """What one buffer costs; memory is an estimate for as many transitions as it shall hold."""

    contender: str
    transition: float  # bytes
    memory: float  # bytes
    ratio: float  # of SB3's memory
    add: float  # microseconds a transition
    add_ratio: float
    sample: float  # microseconds a batch
    sample_ratio: float
    wrong: str  # what is wrong with what it returns


@dataclass(frozen=True)
class Advice:
    """Which buffer to take, and why."""

    contender: str  # SB3's own where no other is worth it
    reason: str


def costs(measured: Mapping[str, Measurement], n_measured: int, buffer_size: int, batch_size: int) -> list[Cost]:
    """Return what each buffer costs, SB3's first; those that failed are left out.

    Memory of ``n_measured`` transitions is extrapolated to ``buffer_size`` of them: what a buffer begins with and what
    its codec has learned, as reference frames, counts once, everything else grows with the transitions. It is no less
    than what the arrays are known to take: of a small buffer, what a process grows by is noise.

    :raises ValueError: if SB3's own buffer, to which all are compared, could not be measured
    """
    sample = f"sample({batch_size})"
    base = measured[SB3]
    if "error" in base:
        raise ValueError(f"SB3's own buffer could not be measured, its process {base['error']}")

    def memory(one: Measurement) -> float:
        measured = one["rss"] * n_measured + one["growth"] * (buffer_size - n_measured)
        return max(float(measured), float(one["counted"] * buffer_size), 1.0)

    return [
        Cost(
            name,
            memory(one) / buffer_size,
            memory(one),
            memory(one) / memory(base),
            one["add"],
            one["add"] / base["add"],
            one[sample],
            one[sample] / base[sample],
            one["wrong"],
        )
        for name, one in measured.items()
        if "error" not in one
    ]


def advise(every: Sequence[Cost]) -> Advice:
    """Return the buffer with the least product of memory and time, of those with half of SB3's memory at most.

    Time is that of adding a transition and of sampling a batch. So twice the memory must buy half the time; a limit
    instead would let a microsecond decide about gigabytes. Where none is small enough, it is SB3's own.
    """
    base, *ours = every
    ours = [cost for cost in ours if not cost.wrong]
    if not ours:
        return Advice(SB3, "No other buffer could be measured.")
    small = [cost for cost in ours if cost.ratio <= WORTH]
    if not small:
        best = min(ours, key=lambda cost: cost.memory)
        return Advice(
            SB3,
            f"Compression does not pay here: {best.contender}, the smallest of what was tried, would take "
            f"{in_bytes(best.memory)} instead of {in_bytes(base.memory)}; {_times(best)}.",
        )
    best = min(small, key=lambda cost: cost.memory * (cost.add + cost.sample))
    return Advice(
        best.contender,
        f"{in_bytes(best.memory)} instead of {in_bytes(base.memory)}, {1 / best.ratio:.3g} times less; {_times(best)}.",
    )


def _times(cost: Cost) -> str:
    return f"adding takes {cost.add_ratio:.2f}x and sampling {cost.sample_ratio:.2f}x of the time of SB3's"


def in_bytes(nbytes: float) -> str:
    """Return a number of bytes as people read it.

    >>> in_bytes(427.4), in_bytes(56_571), in_bytes(5.6e10)
    ('427 B', '56.6 kB', '56 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 999.5:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"
