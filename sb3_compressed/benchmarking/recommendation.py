"""From measurements to a recommendation: the cost of each buffer, and which one to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sb3_compressed.benchmarking.adapters import SB3
from sb3_compressed.benchmarking.metrics import format_nbytes
from sb3_compressed.benchmarking.runner import Measurement

__all__ = ["Cost", "costs", "recommend"]

#: A recommended buffer takes at most this part of SB3's memory.
MAX_RATIO = 0.5


@dataclass(frozen=True)
class Cost:
    """Cost of one buffer at full capacity; the ratios are to SB3's buffer."""

    buffer: str  # name of the buffer: SB3, or a codec; a key of `advise --json`
    transition: float  # bytes
    memory: float  # bytes
    ratio: float  # of memory
    add: float  # microseconds per transition
    add_ratio: float
    sample: float  # microseconds per batch, of rollouts per transition and epoch
    sample_ratio: float
    wrong: str  # differences between added and returned data, if any


def costs(measured: Mapping[str, Measurement], n_measured: int, capacity: int, read: str) -> list[Cost]:
    """Return the cost of each buffer that could be measured, SB3's first.

    Memory of ``n_measured`` transitions is extrapolated to ``capacity``: what a buffer allocates at first and the
    trained state of its codec count once, everything else grows with the transitions. It is at least the size of the
    arrays, since the growth of a process is noise for small buffers.

    :param measured: results of :func:`~sb3_compressed.benchmarking.replay_benchmark.measure_replay` or
        :func:`~sb3_compressed.benchmarking.rollout_benchmark.measure_rollout` by buffer name
    :param read: the result with the time of reading: ``sample(...)``, or ``get`` for a whole rollout
    :raises ValueError: if SB3's buffer could not be measured
    """
    base = measured[SB3]
    if "error" in base:
        raise ValueError(f"SB3's buffer could not be measured: {base['error']}")

    def memory(one: Measurement) -> float:
        n_more = capacity - n_measured  # 0 for rollouts, which are measured at full size
        extrapolated = one["rss"] * n_measured + (one["growth"] * n_more if n_more else 0)
        return max(float(extrapolated), float(one["counted"] * capacity), 1.0)

    return [
        Cost(
            buffer=name,
            transition=memory(one) / capacity,
            memory=memory(one),
            ratio=memory(one) / memory(base),
            add=one["add"],
            add_ratio=one["add"] / base["add"],
            sample=one[read] / (n_measured if read == "get" else 1),
            sample_ratio=one[read] / base[read],
            wrong=one["wrong"],
        )
        for name, one in measured.items()
        if "error" not in one
    ]


def recommend(costs: Sequence[Cost], read: str) -> tuple[str, str]:
    """Return the name of the buffer to use and the reason.

    It is the one with the lowest product of memory and time (adding a transition, then reading: a batch, or a rollout
    in PPO's default of ten epochs) among those with at most half of SB3's memory. So twice the memory must save half
    the time; the fastest of them could take gigabytes more to save a microsecond.

    :param costs: SB3's first
    :param read: heading of the time of reading
    :return: SB3's own buffer if no other is small enough
    """

    def times(cost: Cost) -> str:
        return f"add takes {cost.add_ratio:.2f}x and {read} {cost.sample_ratio:.2f}x of SB3's time"

    base, *others = costs
    correct = [cost for cost in others if not cost.wrong]
    if not correct:
        return SB3, "No other buffer could be measured."
    small = [cost for cost in correct if cost.ratio <= MAX_RATIO]
    if not small:
        best = min(correct, key=lambda cost: cost.memory)
        return SB3, (
            f"Compression does not pay off here: the smallest buffer, {best.buffer}, takes "
            f"{format_nbytes(best.memory)} instead of {format_nbytes(base.memory)}; {times(best)}."
        )
    n_reads = 10 if read == "get" else 1
    best = min(small, key=lambda cost: cost.memory * (cost.add + n_reads * cost.sample))
    return best.buffer, (
        f"{format_nbytes(best.memory)} instead of {format_nbytes(base.memory)}, {1 / best.ratio:.3g}x smaller; "
        f"{times(best)}."
    )
